"""A measurement that is stopped and resumed gives the numbers of an unbroken one, and equal inputs run once."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from test_measure_length import measure_length

from looped.evaluation import measure as counting
from looped.evaluation.measure import Subject, distinct, draw_batches, measure_steps

Make = Callable[..., Subject]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 16 problems, 3 rows at once."""
    monkeypatch.setattr("looped.evaluation.measure.DRAWN_AT_ONCE", 16)
    monkeypatch.setattr("looped.evaluation.rollout.rows_at_once", lambda *args: 3)


def left_off(measure: Callable[..., Any], after: int) -> tuple[Any, int]:
    """What comes of leaving off after so many parts, again and again, and how often that was."""
    state, times = None, 0
    while True:
        seen: list[dict[str, Any]] = []

        def pause(now: dict[str, Any], seen: list[dict[str, Any]] = seen) -> bool:
            seen.append(now)
            return len(seen) == after

        found = measure(state=state, pause=pause)
        if found is not None:
            return found, times
        state, times = json.loads(json.dumps(seen[-1])), times + 1


@pytest.mark.parametrize("after", [1, 2, 5])
@pytest.mark.parametrize("family", ["uniform", "repeated"])
def test_rows(parity: Subject, after: int, family: str) -> None:

    def measure(**how: Any) -> Any:
        return measure_length(parity, 6, family, 40, seed=1, stops=("oracle", "converged"), **how)

    found, times = left_off(measure, after)
    assert found == measure()
    assert times >= 3 // after
    assert family == "repeated" or len({row.accuracy for row in found}) > 1


@pytest.mark.parametrize("after", [1, 4])
def test_steps(parity: Subject, after: int) -> None:

    def measure(**how: Any) -> Any:
        return measure_steps(parity, 4, 20, seed=1, **how)

    found, times = left_off(measure, after)
    assert found == measure()
    assert times >= 1
    assert found[0]["drift"]["mean"] is not None


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"batch": 1, "row": 0},
        {"batch": "1", "row": 0, "right": [[5, 5], [5, 5]], "steps": [[5, 5], [5, 5]]},
        {"batch": 1, "row": 0, "right": [[5, 5]], "steps": [[5, 5], [5, 5]]},
        {"batch": 1, "row": 0, "right": [[5], [5]], "steps": [[5, 5], [5, 5]]},
        {"batch": 1, "row": 0, "right": [[5, 5.5], [5, 5]], "steps": [[5, 5], [5, 5]]},
        {"batch": 1, "row": 0, "right": 5, "steps": [[5, 5], [5, 5]]},
    ],
)
def test_a_damaged_state_is_not_gone_on_from(parity: Subject, state: dict[str, Any]) -> None:
    stops = ("oracle", "converged")
    plain = measure_length(parity, 3, "uniform", 20, seed=0, stops=stops)
    assert measure_length(parity, 3, "uniform", 20, seed=0, stops=stops, state=state) == plain
    good = {"batch": 1, "row": 0, "right": [[5, 5], [5, 5]], "steps": [[5, 5], [5, 5]]}
    assert measure_length(parity, 3, "uniform", 20, seed=0, stops=stops, state=good) != plain, (
        "a whole one is"
    )


def test_equal_inputs_are_computed_once(moving: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = moving("addition")
    for family, most in (("zeros", 1), ("repeated", 4), ("uniform", 16)):
        (batch,) = draw_batches(subject, 5, 16, seed=0, family=family)
        few, counts = distinct(batch)
        assert len(few.tokens) == len(counts) <= most
        again = few.tokens.repeat_interleave(counts, dim=0).tolist()
        assert sorted(again) == sorted(batch.tokens.tolist())
        answers = dict(zip(map(tuple, batch.tokens.tolist()), batch.targets.tolist(), strict=True))
        assert [answers[tuple(row)] for row in few.tokens.tolist()] == few.targets.tolist()
    seen = []
    plain = counting.run_until_stopped

    def counted(model: Any, weights: Any, few: Any, *rest: Any, **options: Any) -> Any:
        seen.append(len(few.tokens))
        return plain(model, weights, few, *rest, **options)

    monkeypatch.setattr(counting, "run_until_stopped", counted)
    rows = measure_length(subject, 5, "zeros", 32, seed=0, stops=("oracle",))
    assert rows is not None
    assert {row.samples for row in rows} == {32}
    assert seen == [1, 1], "once a batch"
