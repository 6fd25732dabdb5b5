"""The driver: watches an engine to the end, stops it kindly once, and leaves at once when told twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from looped.experiments import queue
from looped.experiments.backends import StatusListener, run_jobs
from looped.experiments.queue import Job, Status


class Scripted:
    """An engine that says what it was told to say."""

    def __init__(self, root: Path, script: list[list[Status] | type[BaseException]]) -> None:
        self.root = root
        self.script, self.calls = list(script), []

    def submit(self, jobs: Sequence[Job]) -> None:
        self.calls.append("submit")

    def poll(self) -> list[Status]:
        said = self.script.pop(0)
        if isinstance(said, list):
            return said
        raise said

    def cancel(self) -> None:
        self.calls.append("cancel")

    def close(self) -> None:
        self.calls.append("close")


class Ear(StatusListener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def show(self, batch, statuses) -> None:
        self.heard.append(statuses[0].state)

    def end(self) -> None:
        self.heard.append("end")


QUEUED, RUNNING, DONE = Status("queued"), Status("running", 3), Status("done")
FAILED, CANCELLED = Status("failed", reason="x"), Status("cancelled")


@pytest.mark.parametrize(
    ("script", "stop", "ending", "calls"),
    [
        ([[QUEUED], [RUNNING], [DONE]], False, "complete", ["submit", "close"]),
        ([[QUEUED], [FAILED]], False, "failed", ["submit", "close"]),
        ([[RUNNING], [RUNNING], [CANCELLED]], True, "interrupted", ["submit", "cancel", "close"]),
        ([[QUEUED], [QUEUED]], True, "interrupted", ["submit", "cancel", "close"]),
        ([[RUNNING], [DONE]], True, "complete", ["submit", "cancel", "close"]),
    ],
)
def test_endings(small, tmp_path: Path, script, stop: bool, ending: str, calls: list[str]) -> None:
    engine, ear = Scripted(tmp_path, script), Ear()
    outcome = run_jobs(engine, [small()], listener=ear, stop=lambda: stop)
    assert (outcome.ending, engine.calls, engine.script) == (ending, calls, [])
    assert ear.heard == [*(statuses[0].state for statuses in script), "end"]
    assert queue.jobs_in(tmp_path)[0] == [small()], "what was asked for is written down"


@pytest.mark.parametrize(
    ("blow", "calls"), [(KeyboardInterrupt, ["submit"]), (RuntimeError, ["submit", "close"])]
)
def test_a_bug_closes_the_engine_and_a_second_interrupt_waits_for_nobody(
    small, tmp_path: Path, blow: type[BaseException], calls: list[str]
) -> None:
    engine, ear = Scripted(tmp_path, [[RUNNING], blow]), Ear()
    with pytest.raises(blow):
        run_jobs(engine, [small()], listener=ear)
    assert (engine.calls, ear.heard) == (calls, ["running", "end"])


def test_an_old_wish_to_cancel_does_not_stop_a_new_start(small, tmp_path: Path) -> None:
    queue.cancel(tmp_path)
    assert run_jobs(Scripted(tmp_path, [[RUNNING], [DONE]]), [small()]).ending == "complete"
    assert not queue.is_cancelled(tmp_path)
