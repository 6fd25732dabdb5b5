"""Figures from hand-made rows: what is drawn, that it is always the same, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from looped import figures
from looped.errors import InputError
from looped.rasp import programs
from looped.rasp.trace import trace


def row(**changes: Any) -> dict[str, Any]:
    base = {"task": "copy", "method": "fop-loop-adaptive", "recipe": "fast", "seed": 0, "length": 10}
    return base | {"stop": "oracle", "accuracy": 1.0, "samples": 64, "mean_steps": 10.0} | changes


ROWS = [
    row(
        task=task,
        method=method,
        seed=seed,
        length=length,
        accuracy=1 / length if method == "ntp" else 1 - seed / 10,
    )
    for task in ("copy", "parity")
    for method in ("fop-loop-adaptive", "ntp")
    for seed in (0, 1)
    for length in (5, 10, 20)
]


def test_accuracy_by_length_has_a_panel_a_task_and_a_line_a_method() -> None:
    figure = figures.accuracy_by_length(ROWS, {"copy": 10})
    panels = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title(loc="left") for panel in panels] == ["copy", "parity"]
    lines = {
        line.get_label(): line for line in panels[0].get_lines() if not str(line.get_label()).startswith("_")
    }
    assert set(lines) == {"fop-loop-adaptive", "ntp"}
    assert list(lines["fop-loop-adaptive"].get_xdata()) == [5, 10, 20]
    assert list(lines["fop-loop-adaptive"].get_ydata()) == pytest.approx([0.95] * 3)
    uprights = [line for line in panels[0].get_lines() if list(line.get_xdata()) == [10, 10]]
    assert len(uprights) == 1, "the training length is marked"
    assert not [line for line in panels[1].get_lines() if len(line.get_xdata()) == 2], (
        "and only where it is known"
    )
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == ["fop-loop-adaptive", "ntp"]


def test_lines_are_told_apart_by_rule_where_there_are_several() -> None:
    figure = figures.accuracy_by_length([row(), row(stop="converged", accuracy=0.5)])
    labels = {line.get_label() for line in figure.axes[0].get_lines()}
    assert labels == {"fop-loop-adaptive, oracle", "fop-loop-adaptive, converged"}


@pytest.mark.parametrize(("trained", "side"), [(5, "left"), (10, "left"), (50, "right")])
def test_the_training_length_is_told_where_there_is_room(trained: int, side: str) -> None:
    rows = [row(length=length) for length in (5, 10, 50, 100)]
    (label,) = figures.accuracy_by_length(rows, {"copy": trained}).axes[0].texts
    assert label.get_ha() == side


def test_doubling_names_lengths_on_its_axis_unless_their_names_would_touch() -> None:
    panel = figures.accuracy_by_length([*ROWS, row(length=11)], doubling=True).axes[0]
    assert panel.get_xscale() == "log"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["5", "10", "20"]


@pytest.mark.parametrize(
    ("count", "expected"), [(5, ["exact match", "", "", "exact match", "", ""]), (4, ["exact match", ""] * 2)]
)
def test_every_row_of_panels_says_what_lies_upwards(count: int, expected: list[str]) -> None:
    rows = [row(task=f"task {i}") for i in range(count)]
    assert [panel.get_ylabel() for panel in figures.accuracy_by_length(rows).axes] == expected


def test_by_step_marks_the_chosen_step() -> None:
    steps = [row(step=t, surprise=abs(t - 3) / 10, chosen=3, accuracy=float(t == 3)) for t in range(1, 6)]
    figure = figures.by_step(steps)
    assert [list(line.get_xdata()) for line in figure.axes[0].get_lines()] == [[1, 2, 3, 4, 5], [3, 3]]
    with pytest.raises(InputError, match="have no loop steps"):
        figures.by_step(ROWS)


def test_training_has_a_line_a_seed(tmp_path: Path) -> None:
    lines = [
        {"kind": "training", "step": step, "seed": seed, "loss": 1 / step, "accuracy": 0.5, "length": 3}
        for step in (10, 20)
        for seed in (0, 7)
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([json.dumps(line) for line in lines] + ['{"kind": "trai']))
    read = figures.read_metrics(path)
    assert read == lines, "a last line that was cut off is left out"
    figure = figures.training(read)
    assert [line.get_label() for line in figure.axes[0].get_lines()] == ["seed 0", "seed 7"]
    with pytest.raises(InputError, match="no training steps"):
        figures.training([{"kind": "evaluation"}])


def test_a_programs_figure_shows_every_cell() -> None:
    program = programs.get("copy")
    run = trace(program, program.row(["1", "0"]))
    names = program.vocab.decode(run.row.tolist())
    figure = figures.programs([("copy", names, {name: run.grid(name) for name in run.variables})])
    texts = [text.get_text() for text in figure.axes[0].texts]
    cells = len(names) * (1 + len(run.grid("seq")))
    assert len(figure.axes[0].patches) == cells
    assert texts.count("step 1") == texts.count("step 2") == 1
    shaded = [patch for patch in figure.axes[0].patches if patch.get_facecolor()[0] < 1]
    changed = sum(
        now != before
        for step in range(1, 3)
        for now, before in zip(run.grid("seq")[step], run.grid("seq")[step - 1], strict=True)
    )
    assert len(shaded) == changed > 0


@pytest.mark.parametrize("suffix", figures.SUFFIXES)
def test_the_same_rows_give_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        figures.save(figures.accuracy_by_length(ROWS, {"copy": 10}, "title"), tmp_path / f"{name}{suffix}")
    first = (tmp_path / f"a{suffix}").read_bytes()
    assert first == (tmp_path / f"b{suffix}").read_bytes()
    assert len(first) > 1000


def test_drawing_needs_no_torch() -> None:
    code = "import sys; import looped.figures; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


REFUSED = {
    "not JSON": ("hello", "is not JSON"),
    "no rows": ('{"provenance": {}}', 'no list of "rows"'),
    "a list": ("[1, 2]", 'no list of "rows"'),
    "rows of something else": ('{"rows": [1]}', 'no list of "rows"'),
    "a row without a task": ('{"rows": [{"method": "m", "length": 1, "accuracy": 1}]}', "no valid 'task'"),
    "a length in words": (json.dumps({"rows": [row(length="ten")]}), "no valid 'length'"),
    "an accuracy that is none": (json.dumps({"rows": [row(accuracy=True)]}), "no valid 'accuracy'"),
    "an accuracy above 1": (json.dumps({"rows": [row(accuracy=1.5)]}), "outside 0 to 1"),
    "NaN": ('{"rows": [{"task": "a", "method": "m", "length": 1, "accuracy": NaN}]}', "holds NaN"),
    "empty": ("", "no rows to draw"),
    "deep": ("[" * 100_000, "is not JSON"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_file_is_named_with_its_reason(case: str, tmp_path: Path) -> None:
    text, reason = REFUSED[case]
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=reason) as caught:
        figures.read_rows([path])
    assert "bad.json" in str(caught.value)


def test_rows_may_stand_one_on_a_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in ROWS))
    assert figures.read_rows([path]) == (ROWS, {})


def test_the_training_length_comes_from_the_provenance(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    runs = [{"config": {"task": "copy", "max_length": 19}}]
    path.write_text(json.dumps({"provenance": {"runs": runs}, "rows": ROWS}))
    assert figures.read_rows([path])[1] == {"copy": 19}


class TestCommand:
    @pytest.fixture
    def results(self, tmp_path: Path) -> Path:
        path = tmp_path / "rows.json"
        path.write_text(json.dumps({"rows": ROWS}))
        return path

    def test_draws(self, results: Path, tmp_path: Path, cli: Any) -> None:
        code, out, err = cli("figure", str(results), "--out", str(tmp_path / "x.svg"), "--json")
        assert (code, json.loads(out)["kind"], json.loads(out)["rows"]) == (0, "length", len(ROWS))
        assert "wrote" in err
        assert (tmp_path / "x.svg").read_text().startswith("<?xml")

    @pytest.mark.parametrize(
        ("words", "complaint"),
        [
            (["--out", "x.gif"], "ends in .svg, .png, .pdf"),
            (["--out", "nowhere/x.svg"], "no folder nowhere"),
            (["--out", "x.svg", "--stop", "halt"], "no rows of the stopping rules halt"),
            (["--out", "x.svg", "--kind", "step"], "no loop steps"),
        ],
    )
    def test_refuses(self, words: list[str], complaint: str, results: Path, cli: Any) -> None:
        code, out, err = cli("figure", str(results), *words)
        assert (code, out) == (2, "")
        assert complaint in err
        assert err.count("\n") == 1

    def test_a_missing_file(self, tmp_path: Path, cli: Any) -> None:
        code, _, err = cli("figure", str(tmp_path / "none.json"), "--out", "x.svg")
        assert code == 2
        assert "cannot be read as a file of results" in err


def test_different_runs_are_not_averaged_as_seeds(tmp_path: Path) -> None:
    one, other = row(accuracy=0.0), row(accuracy=1.0)
    with pytest.raises(InputError, match="two accuracies for seed 0 of fop-loop-adaptive"):
        figures.accuracy_by_length([one, other])
    line = figures.accuracy_by_length([other, other, row(seed=1, accuracy=0.5)]).axes[0].lines[0]
    assert list(line.get_ydata()) == [0.75]  # the same row from two files counts once


def test_no_length_lies_below_one(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"rows": [row(length=-3)]}))
    with pytest.raises(InputError, match="a length lies below 1"):
        figures.read_rows([tmp_path / "r.json"])


def test_a_title_is_taken_as_it_is(tmp_path: Path) -> None:
    figure = figures.accuracy_by_length(ROWS, title=r"$\frac{$ and 5 $")
    figures.save(figure, tmp_path / "x.svg")
    assert r"$\frac{$ and 5 $" in (tmp_path / "x.svg").read_text()


def test_a_picture_is_whole_or_the_old_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure, path = figures.accuracy_by_length(ROWS), tmp_path / "x.svg"
    path.write_text("old")

    def full(name: Path, **options: object) -> None:
        Path(name).write_text("half of")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", full)
    with pytest.raises(InputError, match=r"x\.svg could not be written: No space left on device"):
        figures.save(figure, path)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
