"""Run jobs on a backend: submit them, poll their status, stop them cleanly. Knows no backend and no display.

The runner keeps no state: killed at any moment and started again, it finds in the folders what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from looped.errors import InputError
from looped.experiments import queue
from looped.experiments.backends import Backend
from looped.experiments.queue import Job, Status

Ending = Literal["complete", "failed", "interrupted", "cancelled", "time limit"]
POLL_S = 0.2
RUNNING, OPEN = ("running",), ("queued", "running")


class StatusListener:
    """Is told the status of jobs; this one ignores it."""

    def show(self, batch: Sequence[Job], statuses: Sequence[Status]) -> None:
        """The status of all jobs now, in the same order at each call."""

    def end(self) -> None:
        """Nothing more will come."""


@dataclass(frozen=True)
class SweepOutcome:
    """How running some jobs ended, and the status of each."""

    ending: Ending
    batch: tuple[Job, ...]
    statuses: tuple[Status, ...]

    def facts(self) -> list[dict[str, Any]]:
        """The same for a machine, a row each."""
        return [queue.facts(*pair) for pair in zip(self.batch, self.statuses, strict=True)]

    def count(self, state: str) -> int:
        """How many jobs are in a state."""
        return sum(status.state == state for status in self.statuses)


def check_limit(seconds: float | None) -> None:
    """Raise unless the limit leaves some time."""
    if seconds is not None and not seconds > 0:
        raise InputError(f"the time limit must be above 0 seconds, not {seconds:g}")


def run_jobs(
    backend: Backend,
    batch: Sequence[Job],
    *,
    listener: StatusListener | None = None,
    stop: Callable[[], bool] = lambda: False,
    time_limit_s: float | None = None,
) -> SweepOutcome:
    """Run what is missing of the jobs, until all have ended or a stop is requested."""
    check_limit(time_limit_s)
    listener, root = listener or StatusListener(), backend.root
    queue.clear_cancel(root)
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    wanted: Ending | None = None
    hurried = False
    try:
        for job in batch:
            queue.put(root, job)
        backend.submit(batch)
        while True:
            statuses = backend.poll()
            listener.show(batch, statuses)
            if not any(status.state in (RUNNING if wanted else OPEN) for status in statuses):
                break
            if wanted is None:
                wanted = _wanted(root, stop, deadline)
                if wanted:
                    backend.cancel()
            time.sleep(POLL_S)
    except KeyboardInterrupt:  # a second Ctrl-C: workers notice that their parent is gone, save and stop
        hurried = True
        raise
    finally:
        listener.end()
        if not hurried:
            backend.close()
    if all(status.state == "done" for status in statuses):
        wanted = "complete"
    ending = wanted or "failed"
    return SweepOutcome(ending, tuple(batch), tuple(_named(status, ending) for status in statuses))


def _named(status: Status, ending: Ending) -> Status:
    """A job that was stopped without `looped cancel` is not cancelled: it was interrupted, or never began."""
    if status.state != "cancelled" or ending not in ("interrupted", "time limit"):
        return status
    return replace(status, state="interrupted" if status.step else "queued")


def _wanted(root: Path, stop: Callable[[], bool], deadline: float | None) -> Ending | None:
    """Why to stop now, if there is a reason."""
    if stop():
        return "interrupted"
    if queue.is_cancelled(root):
        return "cancelled"
    if deadline is not None and time.monotonic() >= deadline:
        return "time limit"
    return None
