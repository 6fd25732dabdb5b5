"""One job in its own process: what it trains, and how often it looks up from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from forked import FEW

from looped import runs
from looped.experiments import queue, worker
from looped.experiments.plan import MeasurementPlan
from looped.experiments.queue import Job


@pytest.mark.parametrize(("plans", "evaluated"), [((FEW,), {200}), ((), {100, 200})])
def test_what_is_measured_afterwards_is_evaluated_once(
    small: Callable[..., Job], tmp_path: Path, plans: tuple[MeasurementPlan, ...], evaluated: set[int]
) -> None:
    job = small("copy", "steps=200", plans=plans)
    queue.put(tmp_path / "runs", job)
    worker.work(tmp_path / "runs", job, "cpu", lambda: False)
    rows = runs.read_metrics(tmp_path / "runs" / job.name)
    assert {row["step"] for row in rows if row["kind"] == "evaluation"} == evaluated
