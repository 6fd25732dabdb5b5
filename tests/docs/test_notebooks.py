"""The notebooks run from top to bottom, and what their cells end with can be shown.

Cells are plain Python, so no kernel is needed: each is run in one namespace, and the value of its last expression is
rendered as a notebook would render it.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "notebooks"
PAGES = sorted(FOLDER.glob("*.ipynb"))
NAMED = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
SHORT = {  # set after the cell tagged `parameters`
    "2_train_your_own_block": "GRADIENT_STEPS = 20",
    "3_measure_your_own_stopping_rule": "QUESTIONS = 50",
}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A notebook may choose how many threads it takes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def cells(path: Path, kind: str = "code") -> list[dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in found if cell["cell_type"] == kind]


def run(path: Path, folder: Path, parameters: str = "") -> tuple[dict[str, Any], list[str]]:
    """The names after the last cell, and what the cells show; lines of `parameters` are set after that cell's own."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    with contextlib.chdir(folder):
        for number, cell in enumerate(cells(path), 1):
            source = "".join(cell["source"])
            if "parameters" in cell["metadata"].get("tags", ()):
                source = f"{source}\n{parameters}"
            tree = ast.parse(source, f"{path.name}, code cell {number}")
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, f"{path.name}, code cell {number}", "exec"), names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), path.name, "eval"), names)
                show = getattr(value, "_repr_html_", None)
                shown.append(show() if show else repr(value))
    return names, shown


def test_there_are_three() -> None:
    assert len(PAGES) == 3


@NAMED
def test_a_notebook_is_saved_clean(path: Path) -> None:
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert (saved["nbformat"], saved["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in saved["cells"]}) == len(saved["cells"])
    for cell in cells(path):
        assert (cell["outputs"], cell["execution_count"]) == ([], None), "saved without outputs"
        assert not re.search(r"^\s*[%!]", "".join(cell["source"]), re.M), "plain Python alone"


@NAMED
def test_links_of_a_notebook_lead_somewhere(path: Path) -> None:
    text = "".join("".join(cell["source"]) for cell in cells(path, "markdown"))
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    assert [target for target in targets if "://" not in target and not (FOLDER / target).exists()] == []


@NAMED
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    _, shown = run(path, tmp_path, SHORT.get(path.stem, ""))
    assert len(shown) >= 3
    assert sum("<table" in each for each in shown) >= 2


@pytest.mark.slow
def test_the_block_of_the_notebook_learns_to_copy(tmp_path: Path) -> None:
    names, _ = run(FOLDER / "2_train_your_own_block.ipynb", tmp_path)
    assert {row["length"]: row["accuracy"] > 0.95 for row in names["rows"]} == dict.fromkeys(
        (5, 10, 15, 20), True
    )


def test_the_rule_of_the_notebook_does_as_the_notebook_says(tmp_path: Path) -> None:
    path = FOLDER / "3_measure_your_own_stopping_rule.ipynb"
    names, _ = run(path, tmp_path, SHORT[path.stem])
    own = [
        [row["accuracy"] for row in names[rows] if row["stop"] == "sure-and-steady"]
        for rows in ("on_copy", "on_parity")
    ]
    assert own == [[1, 1, 1], [0, 0, 0]]
    assert [row["accuracy"] for rows in names["halting"].values() for row in rows] == [1] * 6
