"""The paper's figures as data: the right methods, lengths and rules, and nothing trained twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from looped import tasks
from looped.errors import InputError
from looped.experiments import paper
from looped.experiments.paper import FigureChoice

METHODS = {
    "main": ["fop-loop-adaptive", "ntp", "ntp-pause", "ntp-loop"],
    "ablation": ["fop-loop-adaptive", "fop-loop-adaptive-wo", "fop", "fop-pause", "fop-loop-fixed"],
    "stopping": ["fop-loop-adaptive"],
    "rules": ["fop-loop-adaptive", "fop-loop-fixed"],
}


@pytest.mark.parametrize("name", METHODS)
def test_a_figure_has_every_task_with_its_methods(name: str) -> None:
    rows = paper.rows([paper.get(name)])
    assert [(row.run.method, row.run.task) for row in rows] == [
        (method, task) for method in METHODS[name] for task in tasks.TASKS
    ], "the method itself comes first, on all tasks"
    for row in rows:
        near = tasks.get(row.run.task).paper.test_length
        assert row.plan.samples == 6400
        assert row.run.seeds == ((0, 1, 2, 3, 4) if row.run.method == "fop-loop-adaptive" else (0, 1, 2))
        assert row.run.recipe == "fast"
        reach = {"stopping": [near, near], "rules": [1, near]}.get(name, [1, 2 * near])
        assert [row.plan.lengths[0], row.plan.lengths[-1]] == reach
        assert row.plan.kind == ("steps" if name == "stopping" else "accuracy")
        assert row.plan.fit(row.run) == row.plan


def test_the_rules_are_compared_on_the_method_alone() -> None:
    rows = paper.rows([paper.get("rules")])
    stops = {row.run.method: row.plan.stops for row in rows}
    assert stops["fop-loop-adaptive"] == (
        "oracle",
        "confidence-batch",
        "confidence",
        "threshold",
        "converged",
    )
    assert stops["fop-loop-fixed"] == ("oracle",)


def test_figures_share_their_runs() -> None:
    rows = paper.rows(list(map(paper.get, paper.FIGURES)))
    shared = paper.by_run(rows)
    assert len(shared) == 8 * len(tasks.TASKS)
    assert len({run.folder for run in shared}) == len(shared)
    plans = {run.method: len(found) for run, found in shared.items()}
    assert plans["fop-loop-adaptive"] == 3, "accuracy, steps, rules"
    assert plans["fop-loop-fixed"] == 2, "accuracy far and near"
    assert plans["ntp"] == 1


def test_two_lines_that_would_be_one_run_are_refused(tmp_path: Path) -> None:
    halting = paper.get("halting")
    choice = FigureChoice(tasks=("parity",), set=("model.positions=start",))
    with pytest.raises(
        InputError, match=r"with model\.positions=start set, 2 lines would be one run, parity-fop"
    ):
        paper.make_jobs([halting], choice, tmp_path)
    jobs = paper.make_jobs([halting], FigureChoice(tasks=("parity",)), tmp_path)
    assert len({job.name for job in jobs}) == len(jobs)


# Golden: a measurement that is there must be found again.
LENGTHS = {
    "copy": (1, 5, 10, 15, 19, 20, 25, 30, 35, 40, 50, 60, 70),
    "binary_sum": (1, 5, 10, 15, 19, 20, 24, 30, 40, 48),
    "multiplication": (1, 2, 4, 6, 8, 10, 11, 12, 14, 16, 20, 24, 28, 32),
}


@pytest.mark.parametrize("task", LENGTHS)
def test_lengths_lie_closer_where_more_is_asked(task: str) -> None:
    assert paper.far(tasks.get(task)) == LENGTHS[task]


def test_every_task_is_measured_at_the_lengths_one_asks_for_first() -> None:
    for task in map(tasks.get, tasks.TASKS):
        assert {1, task.paper.max_length, task.paper.test_length} < set(paper.far(task))


def test_several_figures_share_their_methods() -> None:
    both = [paper.get("main"), paper.get("ablation")]
    (row,) = paper.rows(both, FigureChoice(tasks=("copy",), methods=("fop",)))
    assert (row.run.method, row.run.seeds) == ("fop", (0, 1, 2))
    with pytest.raises(
        InputError, match="figure main and ablation has no method 'ut'; it has fop-loop-adapt"
    ):
        paper.rows(both, FigureChoice(methods=("ut",)))


def test_a_choice_changes_every_run() -> None:
    choice = FigureChoice("quick", (7,), ("steps=5",), ("copy",), ("ntp",), 10, (3, 4), "bf16")
    (row,) = paper.rows([paper.get("main")], choice)
    assert (row.run.task, row.run.method, row.run.config.steps, row.run.config.seeds) == (
        "copy",
        "ntp",
        5,
        (7,),
    )
    assert (row.plan.samples, row.plan.lengths, row.plan.precision) == (10, (3, 4), "bf16")


@pytest.mark.parametrize(
    ("figure", "choice", "complaint"),
    [
        ("maine", FigureChoice(), "unknown figure 'maine'; the figures are main, ablation, stopping, rules"),
        ("main", FigureChoice(tasks=("sorting",)), "unknown task 'sorting'"),
        (
            "main",
            FigureChoice(methods=("fop",)),
            "figure main has no method 'fop'; it has fop-loop-adaptive, ntp",
        ),
        ("main", FigureChoice(samples=0), "the number of samples"),
        ("main", FigureChoice(lengths=(0,)), "a length must be between 1 and"),
    ],
)
def test_choices_that_cannot_be(figure: str, choice: FigureChoice, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        paper.rows([paper.get(figure)], choice)
