"""The README tells the truth: its example, its tree, its commands, its links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from looped.cli import COMMANDS
from looped.cli.length_sweep import markdown_of

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The README's fenced blocks of one language, in order."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.M | re.S)
    return [text for name, text in fenced if name == language]


def test_the_readme_is_short() -> None:
    assert README.count("\n") <= 150


def test_the_readmes_examples_are_short() -> None:
    """What they print is held to the page by tests/docs."""
    for example in blocks("python"):
        assert len(example.strip().splitlines()) <= 12, "an example is meant to be ten lines or so"


def test_the_readmes_tree_names_folders_that_exist() -> None:
    (tree,) = (block for block in blocks("") if block.startswith("looped/"))
    lines = [line for line in tree.splitlines() if line.strip()]
    inside = {line.split()[0].rstrip("/") for line in lines if line.startswith("  ")}
    folders = {path.parent.name for path in (ROOT / "looped").glob("*/__init__.py")}
    assert inside == folders
    outside = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert [name for name in outside if not (ROOT / name).is_dir()] == []


def test_the_page_of_commands_lists_the_commands() -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `looped (\w+)", page, flags=re.M) == list(COMMANDS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


LADDERS = ("parity", "copy", "addition", "binary_sum", "multiplication", "unique_set")


def test_the_ladders_table_is_drawn_from_the_results() -> None:
    files = tuple(ROOT / "results" / f"ladder-{task}.json" for task in LADDERS)
    drawn = markdown_of(files).strip()
    assert drawn in (ROOT / "docs" / "length.md").read_text(encoding="utf-8")
