"""Tables of a text from results alone: right means, no row without a result, and the text of the project up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from looped import checkpoints, serial, tasks
from looped.errors import InputError
from looped.experiments import paper, queue
from looped.experiments.paper import FigureChoice, PlannedRun
from scripts import paper_tables

ROOT = Path(__file__).parents[2]


def put(folder: Path, figure: str, task: str, method: str, value: Any, recipe: str = "fast") -> None:
    """A result with rows as a worker writes them; `value(seed, length, stop or step)` is the accuracy."""
    (measured,) = paper.rows([paper.get(figure)], FigureChoice(recipe, tasks=(task,), methods=(method,)))
    plan = measured.plan.fit(measured.run)
    rows = [
        {
            "task": task, "method": method, "recipe": recipe, "seed": seed, "length": length, "samples": 10,
            "accuracy": value(seed, length, what), **named,
        }
        for length in plan.lengths
        for what, named in parts(measured)
        for seed in measured.run.seeds
    ]  # fmt: skip
    origin = {"plan": serial.to_json(plan), "runs": [{"config": serial.to_json(measured.run.config)}]}
    file = queue.result_file(folder, measured.run.folder, plan)
    checkpoints.write_json(file, {"provenance": origin, "rows": rows})


def parts(measured: PlannedRun) -> list[tuple[Any, dict[str, Any]]]:
    """What rows of one length and seed are told apart by."""
    if measured.plan.kind == "steps":
        near = measured.plan.lengths[0]
        return [(t, {"step": t, "chosen": near + 1, "surprise": 0.1}) for t in range(1, 2 * near + 1)]
    return [(stop, {"stop": stop, "mean_steps": 1.0}) for stop in measured.plan.stops]


def table(name: str, folder: Path) -> list[list[str]]:
    """The cells of a table, without its head."""
    text = paper_tables.fill(f"a\n<!-- table {name} -->\nold\n<!-- end -->\nb\n", folder, folder)
    assert text.startswith("a\n<!--")
    assert text.endswith("<!-- end -->\nb\n")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_method_and_length_of_a_task(tmp_path: Path) -> None:
    put(
        tmp_path,
        "main",
        "copy",
        "fop-loop-adaptive",
        lambda seed, length, _: 1.0 if length < 30 else 0.5 + seed / 8,
    )
    put(tmp_path, "ablation", "copy", "fop", lambda seed, length, _: 0.9999 if length == 1 else 0.0)
    ours, fop = table("copy", tmp_path)
    assert ours == ["fop-loop-adaptive (5 seeds)", *["1"] * 7, *[".750"] * 6]
    assert fop == ["fop (3 seeds)", ">.999", *["0"] * 12]
    assert table("parity", tmp_path) == []
    assert table("accuracy", tmp_path) == [
        ["copy", "19", "1", "35", "**.750 ± .088**", ".500 .625 .750 .875 1"]
    ]


def test_the_two_recipes_side_by_side(tmp_path: Path) -> None:
    method = "fop-loop-adaptive"
    put(tmp_path, "main", "copy", method, lambda seed, length, _: float(length < 30 or seed > 0), "paper")
    assert table("recipes", tmp_path) == [], "nothing to stand beside"
    put(tmp_path, "main", "copy", method, lambda seed, length, _: 0.5)
    put(tmp_path, "main", "parity", method, lambda seed, length, _: 0.25)
    rows = table("recipes", tmp_path)
    assert [row[1] for row in rows] == ["19", "20", "25", "30", "35", "40", "50", "60", "70"]
    halves = [".500", ".500 .500 .500 .500 .500"]
    assert rows[0] == ["copy", "19", "1", "1 1 1 1 1", *halves]
    assert rows[3] == ["copy", "30", ".800 ± .200", "0 1 1 1 1", *halves]


def test_where_confidence_stops(tmp_path: Path) -> None:
    put(tmp_path, "stopping", "parity", "fop-loop-adaptive", lambda seed, _, step: float(step == 40 + seed))
    rows = table("stopping", tmp_path)
    assert rows == [
        ["parity", "40", "40", "41 41 41 41 41", "0 1 0 0 0", "1 0 0 0 0", "0 0 1 0 0", "0 0 0 0 0"]
    ]


def test_rules_beside_the_fixed_depth(tmp_path: Path) -> None:
    said = {"oracle": 1.0, "confidence-batch": 0.75, "confidence": 0.5, "threshold": 0.25, "converged": 0.0}
    put(tmp_path, "rules", "addition", "fop-loop-adaptive", lambda seed, length, stop: said[stop])
    assert table("rules", tmp_path) == [["addition", "30", "1", ".750", ".500", ".250", "0"]]
    put(tmp_path, "rules", "addition", "fop-loop-fixed", lambda seed, length, stop: 0.125)
    assert table("rules", tmp_path)[0][-1] == ".125"


def test_the_papers_recipe_with_and_without_injection(tmp_path: Path) -> None:
    put(tmp_path, "ablation", "copy", "fop-loop-adaptive-wo", lambda seed, length, _: 0.25, "paper")
    assert table("paper", tmp_path) == [], "nothing to compare with"
    put(
        tmp_path, "ablation", "copy", "fop-loop-adaptive", lambda seed, length, _: float(length < 40), "paper"
    )
    put(
        tmp_path, "ablation", "copy", "fop-loop-adaptive", lambda seed, length, _: 0.0
    )  # `fast` has no row here
    with_it, without = table("paper", tmp_path)
    assert with_it == ["copy", "yes", "1", "35", "**1**", "1 1 1 1 1", "40: 0; 50: 0; 60: 0; 70: 0"]
    assert without[1:5] == ["no", ".250", "35", "**.250**"]


def test_no_result_no_row_and_no_such_table(tmp_path: Path) -> None:
    for name in ("accuracy", "stopping", "rules", "recipes", "paper", "paper-stopping", *tasks.TASKS):
        assert table(name, tmp_path) == []
    with pytest.raises(InputError, match="there is no table 'sorting'"):
        table("sorting", tmp_path)


def test_a_text_is_filled_in_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.md"
    text.write_text("é\n<!-- table accuracy -->\n<!-- end -->\n", encoding="utf-8")
    assert paper_tables.main([str(text), "--results", str(tmp_path)]) == 0
    assert (
        text.read_text(encoding="utf-8") == "é\n<!-- table accuracy -->\n*Not measured yet.*\n<!-- end -->\n"
    )
    assert paper_tables.main([str(tmp_path / "none.md")]) == 2
    assert "there is no text" in capsys.readouterr().err


def test_the_tables_of_the_project_are_those_of_its_results() -> None:
    folder = Path("results/archive/first-start")  # until every run has been made with the authors' start
    for page in ("reproduction.md", "paper_tables.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        filled = paper_tables.fill(text, ROOT / folder, ROOT / "results")
        assert filled == text, f"run `python -m scripts.paper_tables docs/{page} --results {folder}`"
    for name in ("accuracy", "stopping", "rules", "recipes", *tasks.TASKS):
        assert f"<!-- table {name} -->" in text
