"""One evaluation length: the rows of `evaluate` by a shorter way, and drift and overrun where they are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from looped import methods, tasks
from looped.batches import Batch
from looped.evaluation import decode, rollout, stopping
from looped.evaluation import measure as measuring
from looped.evaluation.decode import run_until_stopped
from looped.evaluation.measure import (
    Row,
    Subject,
    check,
    draw_batches,
    has_steps,
    length_grid,
    measure,
    measure_steps,
    oracle_steps,
)
from looped.evaluation.rollout import correct_at, drift, extras, read, step_record, unroll_grid, window
from looped.evaluation.stopping import OnlineRule
from looped.fast import build
from looped.training.recipes import make

Make = Callable[..., Subject]
ONLINE = ("oracle", "converged", "converged=1", "threshold=0.5", "threshold=0.02")


def measure_length(
    subject: Subject, length: int, family: str, samples: int, *, stops: Sequence[str], **how: Any
) -> list[Row] | None:
    """As a length sweep measures it."""
    rules = check(subject, [length], samples, stops=stops, family=family)
    last = 2 * oracle_steps(subject, length)
    return measuring.measure_length(
        subject, length, samples, rules=rules, family=family, max_steps=last, **how
    )


def until(batch: Batch, last: int) -> Tensor:
    """The same limit for every row."""
    return torch.full_like(batch.steps, last)


def test_one_pass_reads_only_where_somebody_stops(moving: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = moving("copy")
    (batch,) = draw_batches(subject, 4, 30, seed=0)
    times = []
    monkeypatch.setattr("looped.evaluation.rollout.read", lambda *args: times.append(1) or read(*args))
    oracle = stopping.Oracle()
    found = run_until_stopped(subject.model, subject.weights, batch, [oracle], until(batch, 8))
    assert len(times) == 1, "all examples stop at the same step, and no rule asked before"
    whole = unroll_grid(subject.model, subject.weights, batch, 8)
    assert torch.equal(found[0].steps, oracle.steps(whole))
    assert torch.equal(decode.exact(found[0], batch), correct_at(whole, oracle.steps(whole)))


@pytest.mark.parametrize("task", ["copy", "parity", "multiplication"])
def test_one_pass_stops_where_the_grid_does(moving: Make, task: str, at_once: Callable[[int], None]) -> None:
    at_once(7)
    subject = moving(task)
    (batch,) = draw_batches(subject, 3, 30, seed=0)
    rules = [stopping.get(name) for name in ONLINE]
    online = [rule for rule in rules if isinstance(rule, OnlineRule)]
    last = 2 * int(batch.steps.max())
    found = run_until_stopped(subject.model, subject.weights, batch, online, until(batch, last))
    whole = unroll_grid(subject.model, subject.weights, batch, last)
    chosen = [rule.steps(whole) for rule in rules]
    assert len({tuple(steps.flatten().tolist()) for steps in chosen}) > 2, "the rules differ here"
    for answers, steps in zip(found, chosen, strict=True):
        assert torch.equal(answers.steps, steps)
        assert torch.equal(decode.exact(answers, batch), correct_at(whole, steps))


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
    found = run_until_stopped(subject.model, subject.weights, batch, rules, until(batch, 100))
    assert all(decode.exact(answers, batch).all() for answers in found)
    assert [int(answers.steps[0, 0]) for answers in found] == [6, 9]
    assert len(steps) == 9


@pytest.mark.parametrize("method", ["ut", "pondernet"])
def test_who_answers_token_by_token_is_measured_as_evaluate_does(method: str) -> None:
    config = make("parity", method, "quick", (0, 1))
    model = build(replace(config.model, width=16, heads=2))
    weights = model.prepare(model.layout.initialise([0, 1]))
    subject = Subject(tasks.get("parity"), methods.get(method), model, weights, (0, 1), 3, "quick")
    rows = measure_length(subject, 3, "uniform", 40, seed=0, stops=["halt"])
    assert rows == measure(subject, [3], 40, seed=0, stops=["halt"])
    assert not has_steps(subject)


@pytest.mark.parametrize("family", ["uniform", "zeros", "repeated", "p=0.2"])
@pytest.mark.parametrize("stops", [("oracle", "converged"), ("confidence", "oracle", "confidence-batch")])
def test_rows_are_those_of_evaluate(moving: Make, family: str, stops: tuple[str, ...]) -> None:
    subject = moving("copy")
    found = measure_length(subject, 3, family, 40, seed=2, stops=stops)
    plain = measure(subject, [3], 40, seed=2, stops=stops, family=family)
    assert found == plain


def test_a_next_token_method(moving: Make) -> None:
    subject = moving("copy", "ntp-loop")
    assert measure_length(subject, 2, "ones", 6, seed=0, stops=("oracle",)) == measure(
        subject, [2], 6, seed=0, stops=("oracle",), family="ones"
    )


def test_all_batches_of_a_length_count(parity: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looped.evaluation.measure.DRAWN_AT_ONCE", 16)
    for stops in (("oracle", "converged"), ("oracle", "confidence-batch")):
        for family in ("uniform", "p=0.2"):
            found = measure_length(parity, 6, family, 40, seed=2, stops=stops)
            assert found == measure(parity, [6], 40, seed=2, stops=stops, family=family)
            assert {row.accuracy for row in found} - {0, 1}, "some right, some wrong"


# --- drift and overrun -------------------------------------------------------------------------------------


def test_a_model_that_is_late_by_one_and_then_holds(exact: Make) -> None:
    """Compiled addition answers at T + 1; at T it is never right."""
    (found,) = measure_steps(exact("addition"), 5, 12, seed=0) or []
    assert found["needed"] == 5
    assert found["overrun"] == {"+0": 0, "+1": 1, "+5": 1, "+50%": 1, "+100%": 1, "+200%": 1}
    assert found["drift"] == {"never": 0, "mean": 1, "low": 1, "high": 1, "best": 1, "from": 1, "to": 10}
    oracle, own = measure_length(exact("addition"), 5, "uniform", 12, seed=0, stops=("oracle", "halt")) or []
    assert (oracle.accuracy, own.accuracy, own.mean_steps) == (0, 1, 6)


def test_an_answer_that_stands_too_early_fools_the_rule_that_waits_for_it(exact: Make) -> None:
    rows = (
        measure_length(exact("parity"), 8, "p=0.2", 50, seed=0, stops=("oracle", "converged", "halt")) or []
    )
    assert [row.accuracy == 1 for row in rows] == [True, False, True]


def test_by_hand() -> None:
    """Four examples, T = 2, seven steps: right at 2–3, at 2–7, from 4 on, never."""
    right = ["0110000", "0111111", "0001111", "0000000"]
    curve = [sum(row[t] == "1" for row in right) / 4 for t in range(7)]
    found = step_record(curve, [2, 2, 4, 0], 2)
    assert found["overrun"] == {"+0": 0.5, "+1": 0.5, "+5": 0.5, "+50%": 0.5, "+100%": 0.5, "+200%": 0.5}
    assert found["drift"] == {
        "never": 0.25, "mean": pytest.approx(2 / 3), "low": 0, "high": 2, "best": 0, "from": None, "to": None,
    }  # fmt: skip
    assert step_record([0.1 * t for t in range(1, 10)], [9], 3)["overrun"] == pytest.approx(
        {"+0": 0.3, "+1": 0.4, "+5": 0.8, "+50%": 0.5, "+100%": 0.6, "+200%": 0.9}
    )


def test_steps_are_those_of_a_grid(parity: Subject) -> None:
    found = measure_steps(parity, 6, 40, seed=0)
    assert found is not None
    unrolled = length_grid(parity, 6, 40, seed=0, max_steps=18)
    for s, each in enumerate(found):
        for name, step in (("+0", 6), ("+1", 7), ("+50%", 9), ("+200%", 18)):
            assert each["overrun"][name] == float(unrolled.correct[s, step - 1].double().mean())
        first = rollout.first_correct(unrolled)[s]
        assert each["drift"]["never"] == pytest.approx(float((first == 0).double().mean()))
        if s == 0:
            assert each["drift"]["mean"] == pytest.approx(float((first - 6).double().mean()))
    assert -6 < found[0]["drift"]["mean"] < 0, "a guess may be right before T"


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
    found = drift(first, 50)
    assert found == {"never": 0, "mean": 0.5, "low": -44, "high": 45}
    never = drift(torch.zeros(3, dtype=torch.long), 5)
    assert never == {"never": 1, "mean": None, "low": None, "high": None}


@pytest.mark.parametrize(("needed", "half"), [(1, 1), (2, 1), (7, 4), (40, 20)])
def test_extras(needed: int, half: int) -> None:
    assert extras(needed) == {"+0": 0, "+1": 1, "+5": 5, "+50%": half, "+100%": needed, "+200%": 2 * needed}
