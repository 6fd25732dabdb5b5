"""One rung: the rows of `evaluate` by a shorter way, and drift and overrun where they are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from looped.bench.ladder import rung
from looped.bench.ladder.rung import (
    distinct,
    drift,
    extras,
    measure_rung,
    measure_steps,
    step_records,
    window,
)
from looped.bench.ladder.watch import watch
from looped.evaluation import stopping
from looped.evaluation.grid import StepGrid, correct_at, unroll_grid
from looped.evaluation.measure import Subject, draw_batches, measure
from looped.evaluation.stopping import OnlineRule

Make = Callable[..., Subject]
ONLINE = ("oracle", "converged", "converged=1", "threshold=0.5", "threshold=0.02")


@pytest.mark.parametrize("task", ["copy", "parity", "multiplication"])
def test_one_pass_stops_where_the_grid_does(moving: Make, task: str) -> None:
    subject = moving(task)
    (batch,) = draw_batches(subject, 3, 30, seed=0)
    rules = [stopping.get(name) for name in ONLINE]
    online = [rule for rule in rules if isinstance(rule, OnlineRule)]
    last = 2 * int(batch.steps.max())
    found = watch(subject.model, subject.weights, batch, online, last, chunk=7)
    grid = unroll_grid(subject.model, subject.weights, batch, last)
    chosen = [rule.steps(grid) for rule in rules]
    assert len({tuple(steps.flatten().tolist()) for steps in chosen}) > 2, "the rules differ here"
    assert torch.equal(found.steps, torch.stack(chosen))
    assert torch.equal(found.correct, torch.stack([correct_at(grid, steps) for steps in chosen]))


def test_one_pass_ends_when_nobody_waits(exact: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = exact("copy")
    (batch,) = draw_batches(subject, 6, 5, seed=0)
    steps = []
    one = type(subject.model).step

    def counted(self: object, *args: Tensor) -> Tensor:
        steps.append(1)
        return one(subject.model, *args)

    monkeypatch.setattr(type(subject.model), "step", counted)
    rules = [stopping.Oracle(), stopping.Converged(3)]
    found = watch(subject.model, subject.weights, batch, rules, 100)
    assert found.correct.all()
    assert found.steps[:, 0, 0].tolist() == [6, 9]
    assert len(steps) == 9


@pytest.mark.parametrize("family", ["uniform", "zeros", "repeated", "p=0.2"])
@pytest.mark.parametrize("stops", [("oracle", "converged"), ("confidence", "oracle", "confidence-batch")])
def test_rows_are_those_of_evaluate(moving: Make, family: str, stops: tuple[str, ...]) -> None:
    subject = moving("copy")
    found = measure_rung(subject, 3, family, 40, seed=2, stops=stops)
    plain = measure(subject, [3], 40, seed=2, stops=stops, family=family, max_steps=6)
    assert found == plain


def test_a_next_token_method_has_rows_and_no_steps(moving: Make) -> None:
    subject = moving("copy", "ntp-loop")
    assert measure_rung(subject, 2, "ones", 6, seed=0, stops=("oracle",)) == measure(
        subject, [2], 6, seed=0, stops=("oracle",), family="ones"
    )
    assert measure_steps(subject, 2, 6, seed=0) == []


def test_equal_inputs_are_computed_once(moving: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = moving("addition")
    for family, most in (("zeros", 1), ("repeated", 4), ("uniform", 60)):
        (batch,) = draw_batches(subject, 5, 60, seed=0, family=family)
        few, kind = distinct(batch)
        assert len(few.tokens) <= most
        assert torch.equal(few.tokens[kind], batch.tokens)
        assert torch.equal(few.targets[kind], batch.targets)
    seen = []
    monkeypatch.setattr(
        rung,
        "watch",
        lambda model, weights, few, *rest: seen.append(few) or watch(model, weights, few, *rest),
    )
    assert {row.samples for row in measure_rung(subject, 5, "zeros", 60, seed=0, stops=("oracle",))} == {60}
    assert [len(few.tokens) for few in seen] == [1]


# --- drift and overrun -------------------------------------------------------------------------------------


def test_a_model_that_is_late_by_one_and_then_holds(exact: Make) -> None:
    """Compiled addition answers at T + 1; at T it is never right."""
    (found,) = measure_steps(exact("addition"), 5, 12, seed=0)
    assert found["needed"] == 5
    assert found["overrun"] == {"+0": 0, "+1": 1, "+5": 1, "+50%": 1, "+100%": 1, "+200%": 1}
    assert found["drift"] == {"never": 0, "mean": 1, "low": 1, "high": 1, "best": 1, "from": 1, "to": 10}
    oracle, own = measure_rung(exact("addition"), 5, "uniform", 12, seed=0, stops=("oracle", "halt"))
    assert (oracle.accuracy, own.accuracy, own.mean_steps) == (0, 1, 6)


def test_an_answer_that_stands_too_early_fools_the_rule_that_waits_for_it(exact: Make) -> None:
    rows = measure_rung(exact("parity"), 8, "p=0.2", 50, seed=0, stops=("oracle", "converged", "halt"))
    assert [row.accuracy == 1 for row in rows] == [True, False, True]


def test_by_hand(exact: Make) -> None:
    """Four examples, T = 2, eight steps: right at 2–3, at 2–8, from 4 on, never."""
    right = ["01100000", "01111111", "00011111", "00000000"]
    correct = torch.tensor([[[sign == "1" for sign in row] for row in zip(*right, strict=True)]])
    nothing = torch.zeros(correct.shape)
    grid = StepGrid(correct, nothing, nothing.bool(), torch.full((4,), 2))
    (found,) = step_records(exact("copy"), 2, grid)
    assert found["overrun"] == {"+0": 0.5, "+1": 0.5, "+5": 0.5, "+50%": 0.5, "+100%": 0.5, "+200%": 0.5}
    assert found["drift"] == {
        "never": 0.25, "mean": pytest.approx(2 / 3), "low": 0, "high": 2, "best": 0, "from": None, "to": None,
    }  # fmt: skip
    assert (found["samples"], found["length"], found["needed"]) == (4, 2, 2)


@pytest.mark.parametrize(
    ("curve", "needed", "expected"),
    [
        ([0, 1, 1, 1, 0, 0], 3, {"best": 0, "from": -1, "to": 1}),
        ([0, 0, 0.995, 1, 0.98, 1], 3, {"best": 1, "from": 0, "to": 1}),
        ([1, 1, 1], 1, {"best": 0, "from": 0, "to": 2}),
        ([0.3, 0.9, 0.2], 1, {"best": 1, "from": None, "to": None}),
        ([0, 0, 0], 2, {"best": 0, "from": None, "to": None}),
    ],
)
def test_the_window(curve: list[float], needed: int, expected: dict[str, int | None]) -> None:
    assert window(torch.tensor(curve, dtype=torch.double), needed) == expected


def test_quantiles() -> None:
    first = torch.arange(100) + 1
    found = drift(first, torch.full((100,), 50))
    assert found == {"never": 0, "mean": 0.5, "low": -44, "high": 45}
    never = drift(torch.zeros(3, dtype=torch.long), torch.full((3,), 5))
    assert never == {"never": 1, "mean": None, "low": None, "high": None}


@pytest.mark.parametrize(("needed", "half"), [(1, 1), (2, 1), (7, 4), (40, 20)])
def test_extras(needed: int, half: int) -> None:
    assert extras(needed) == {"+0": 0, "+1": 1, "+5": 5, "+50%": half, "+100%": needed, "+200%": 2 * needed}
