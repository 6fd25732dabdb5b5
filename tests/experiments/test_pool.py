"""What follows from how a worker ended: a worker that makes progress is started again, training or measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from forked import FEW

from looped import checkpoints
from looped.experiments import queue, worker
from looped.experiments.backends import KILLS, LOST, Backend, BackendOptions, WorkerEnd
from looped.experiments.plan import MeasurementPlan
from looped.experiments.queue import Job, Status
from looped.training.trainer import Cadence, train

MANY = MeasurementPlan(tuple(range(1, 2 * KILLS)), samples=2)


class OneByOne(Backend):
    """Starts one worker at a time, which does what it is told and is gone at the next look."""

    def __init__(self, root: Path, work: Callable[[], int], at_once: int = 1) -> None:
        super().__init__(root, BackendOptions())
        self.work, self.at_once, self.deaths = work, at_once, 0

    def room(self) -> int:
        return self.at_once - len(self.workers)

    def start(self, names: Sequence[str]) -> dict[str, None]:
        return dict.fromkeys(names)

    def ended(self) -> dict[str, WorkerEnd]:
        ends = {name: WorkerEnd(self.work()) for name in self.workers}
        self.deaths += len(ends)
        return ends

    def request_stop(self) -> None: ...

    def release(self) -> None: ...


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def part_of(root: Path, job: Job, plan: MeasurementPlan) -> Path:
    return queue.queue_file(root, f"{job.name}.{plan.name}.part")


def measure(root: Path, job: Job, plan: MeasurementPlan, most: int) -> int:
    """Measures so many more lengths and is killed, unless that was all."""
    part = part_of(root, job, plan)
    known = queue.kept_lengths(part)

    def killed() -> None:
        if queue.kept_lengths(part) == known + most < len(plan.lengths):
            raise KeyboardInterrupt

    try:
        result = worker.make_result(root / job.name, plan, torch.device("cpu"), killed, part)
    except KeyboardInterrupt:
        return LOST
    checkpoints.write_json(queue.result_file(Path(job.results), job.name, plan), result)
    part.unlink()
    return LOST


def last_word(engine: OneByOne, job: Job) -> Status:
    """How a job ends."""
    engine.submit([job])
    while (status := engine.poll()[0]).state not in ("done", "failed"):
        assert engine.deaths < 100
    return status


def test_measuring_another_length_each_time_is_getting_on(small, root: Path) -> None:
    job = small(plans=(MANY, FEW))
    train(job.config, root / job.name, cadence=Cadence(samples=4))
    queue.put(root, job)
    engine = OneByOne(root, lambda: measure(root, job, queue.missing_plans(job)[0], 1))
    assert last_word(engine, job).state == "done"
    assert engine.deaths == len(MANY.lengths) + len(FEW.lengths)


@pytest.mark.parametrize("kept", ["nothing", "two lengths", "half a file", "no parts"])
def test_whoever_measures_nothing_more_is_given_up(small, root: Path, kept: str) -> None:
    job = small(plans=(MANY,))
    train(job.config, root / job.name, cadence=Cadence(samples=4))
    queue.put(root, job)
    if kept == "two lengths":
        measure(root, job, MANY, 2)
    elif kept != "nothing":
        part_of(root, job, MANY).write_text('{"parts": {' if kept == "half a file" else '{"parts": 3}')
    engine = OneByOne(root, lambda: LOST)
    status = last_word(engine, job)
    assert (status.state, engine.deaths) == ("failed", KILLS)
    assert status.reason == f"killed by SIGKILL ({KILLS} times without getting on)"


def test_plans_that_are_measured_are_counted_before_a_job_is_done(small, root: Path) -> None:
    job = small(plans=(FEW, MANY))
    train(job.config, root / job.name, cadence=Cadence(samples=4))
    queue.put(root, job)
    measure(root, job, FEW, len(FEW.lengths))
    for room, state in ((0, "queued"), (1, "running")):
        engine = OneByOne(root, lambda: LOST, room)
        engine.submit([job])
        (status,) = engine.poll()
        assert (status.state, status.step, status.measured) == (state, 30, 1)
