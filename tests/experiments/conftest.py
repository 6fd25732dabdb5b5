"""Small jobs, and an engine for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from forked import FEW, SMALL, Forked

from looped.experiments import queue
from looped.experiments.backends import BackendOptions
from looped.experiments.plan import MeasurementPlan, RunSpec
from looped.experiments.queue import Job

MakeJob = Callable[..., Job]


@pytest.fixture
def small(tmp_path: Path) -> MakeJob:
    """`small("copy", "steps=90")`: a job in `tmp_path / "runs"`, measured into `tmp_path / "results"`."""

    def make(
        task: str = "copy", *more: str, plans: tuple[MeasurementPlan, ...] = (FEW,), save_seconds: float = 60
    ) -> Job:
        run = RunSpec(task, recipe="quick", seeds=(0, 1), set=(*SMALL, *more))
        return Job(run.folder, run.config, plans, str(tmp_path / "results"), save_seconds)

    return make


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks often."""
    monkeypatch.setattr("looped.experiments.backends.POLL_S", 0.02)


@pytest.fixture
def engine(tmp_path: Path) -> Callable[[], Forked]:
    """A new engine of two workers for `tmp_path / "runs"`."""
    return lambda: Forked(tmp_path / "runs", BackendOptions(workers=2, device="cpu"))


@pytest.fixture
def three(small: MakeJob, tmp_path: Path) -> list[Job]:
    """Three jobs on their desk."""
    batch = [small(task) for task in ("copy", "parity", "unique_set")]
    for job in batch:
        queue.put(tmp_path / "runs", job)
    return batch
