"""The README tells the truth: its example, its tree, its commands, its links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from looped.bench.ladder.words import Request, show_table
from looped.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of one language, in order."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.M | re.S)
    return [text for name, text in fenced if name == language]


def test_the_readmes_examples_are_short() -> None:
    """What they print is held to the page by tests/docs."""
    for example in blocks("python"):
        assert len(example.strip().splitlines()) <= 12, "an example is meant to be ten lines or so"


def tree_paths(tree: str) -> set[str]:
    """Paths in an annotated tree: two spaces of indent a level, names, two spaces or more, a description.

    Several names may share a line: `  one.py two.py    what both are for`.
    """
    paths: set[str] = set()
    folders: list[str] = []
    for line in filter(str.strip, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.split(r" {2,}", line.strip())[0].split(" ")
        del folders[depth:]
        paths.update("/".join([*folders, name.rstrip("/")]) for name in names)
        folders.append(names[-1].rstrip("/"))
    return paths


def disk_paths(folder: Path, depth: int) -> set[str]:
    """Everything below a folder to a depth, without caches and the `__init__.py` that every folder has.

    Shipped models (weights and the cards beside them) are named by their folder alone.
    """
    paths = {folder.relative_to(ROOT).as_posix()}
    for path in folder.iterdir():
        if path.name.startswith(("__init__", "__pycache__", ".")):
            continue
        if path.with_suffix(".safetensors").is_file():
            continue
        paths |= (
            disk_paths(path, depth - 1)
            if path.is_dir() and depth > 1
            else {path.relative_to(ROOT).as_posix()}
        )
    return paths


def is_empty(path: Path) -> bool:
    """A folder that holds no file: git does not know it."""
    return path.is_dir() and not any(p.is_file() for p in path.rglob("*") if "__pycache__" not in p.parts)


def test_the_readmes_tree_is_the_disk() -> None:
    (tree,) = (block for block in blocks("") if block.startswith("looped/"))
    listed = tree_paths(tree)
    on_disk = {path for path in disk_paths(ROOT / "looped", 2) if not is_empty(ROOT / path)}
    missing = sorted(on_disk - listed)
    gone = sorted(path for path in listed if not (ROOT / path).exists())
    assert not missing, f"not in the README's tree: {', '.join(missing)}"
    assert not gone, f"in the README's tree but not on the disk: {', '.join(gone)}"


def test_a_tree_is_read_as_it_is_drawn() -> None:
    lines = [
        "looped/",
        "  vocab.py    tokens",
        "  tasks/      what",
        "    copy.py parity.py   two of them",
        "  cli.py      thin",
        "tests/",
    ]
    assert tree_paths("\n".join(lines)) == {
        "looped",
        "looped/vocab.py",
        "looped/tasks",
        "looped/tasks/copy.py",
        "looped/tasks/parity.py",
        "looped/cli.py",
        "tests",
    }


def test_the_readmes_commands_are_the_commands() -> None:
    listed = re.findall(r"^\| `looped (\w+)", README, flags=re.M)
    assert listed == list(COMMANDS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


LADDERS = ("parity", "copy", "addition", "binary_sum", "multiplication", "unique_set")


def test_the_ladders_table_is_drawn_from_the_results() -> None:
    files = tuple(ROOT / "results" / f"ladder-{task}.json" for task in LADDERS)
    drawn = show_table(Request(table=files)).strip()
    assert drawn in README
    assert drawn in (ROOT / "docs" / "length.md").read_text(encoding="utf-8")


def test_the_table_of_who_knows_when_to_stop_is_the_guides() -> None:
    start = README.index("| | Universal Transformer")
    table = README[start : README.index("\n\n", start)]
    assert table.count("\n") > 10
    assert table in (ROOT / "docs" / "halting.md").read_text(encoding="utf-8"), "two copies, one truth"
