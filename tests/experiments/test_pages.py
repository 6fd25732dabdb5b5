"""The pages about experiments tell the truth: their files of runs can be read, their commands exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from looped import tasks
from looped.cli import COMMANDS
from looped.experiments import paper, plan

DOCS = Path(__file__).parents[2] / "docs"
SCALE = (DOCS / "scale.md").read_text(encoding="utf-8")
REPRODUCTION = (DOCS / "reproduction.md").read_text(encoding="utf-8")
TABLES = (DOCS / "paper_tables.md").read_text(encoding="utf-8")


def test_the_pages_files_of_runs_can_be_read() -> None:
    examples = re.findall(r"^```json\n(.*?)^```$", SCALE, flags=re.M | re.S)
    listed, grid = (plan.parse_sweep(json.loads(example), "scale.md") for example in examples)
    assert [run.folder for run in listed.runs][1] == "parity-by-ntp"
    assert (len(grid.runs), grid.plan is not None) == (8, True)


@pytest.mark.parametrize("page", [SCALE, REPRODUCTION])
def test_the_pages_commands_exist(page: str) -> None:
    named = re.findall(r"^looped (\w+)", page, flags=re.M)
    assert named
    assert set(named) <= set(COMMANDS)


def test_every_figure_and_its_lengths_are_on_the_page() -> None:
    assert set(re.findall(r"looped reproduce (\w+)", REPRODUCTION)) == set(paper.FIGURES)
    for name, task in tasks.TASKS.items():
        assert f"{name.replace('_', ' ')} {task.paper.test_length}" in " ".join(REPRODUCTION.split())


def test_every_claim_names_a_figure() -> None:
    rows = re.findall(r"^\| +\d+ \| .* \| (\S+) \|.*\|.*\|$", TABLES, flags=re.M)
    assert len(rows) == 19
    assert re.findall(r"^\| (\d+) \| ", REPRODUCTION, flags=re.M) == [str(i + 1) for i in range(19)]
    assert set(rows) - {"–"} == set(paper.FIGURES)


@pytest.mark.parametrize(
    ("task", "length", "row"),
    [("parity", 40, "– at twice that"), ("copy", 35, "– past that"), ("addition", 19, "– inside"),
     ("addition", 30, "– past that")],
)  # fmt: skip
def test_who_knows_when_to_stop_is_told_from_the_results(task: str, length: int, row: str) -> None:
    """The column of the paper's block in the table that README and docs/halting.md share."""
    table = (DOCS / "halting.md").read_text(encoding="utf-8").partition(f"| {task}: trained to |")[2]
    cell = next(line for line in table.splitlines() if line.startswith(f"| {row} |")).split("|")[4]
    found = {
        result["seed"]: result["accuracy"]
        for path in (DOCS.parent / "results" / "archive" / "first-start").glob(
            f"{task}-fop-loop-adaptive-fast.accuracy-*.json"
        )
        for result in json.loads(path.read_text(encoding="utf-8"))["rows"]
        if (result["length"], result["stop"]) == (length, "oracle")
    }
    assert sorted(found) == [0, 1, 2, 3, 4]
    told = [float(word) for word in cell.partition(" at ")[0].split()]
    assert told == [round(found[seed], 2) for seed in sorted(found)]
