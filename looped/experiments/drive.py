"""From jobs to their end: submits, watches, and stops kindly. Knows no engine and no display.

The driver keeps nothing: killed at any moment and started again, it finds in the folders what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from looped.errors import InputError
from looped.experiments import jobs
from looped.experiments.engines import Engine
from looped.experiments.jobs import Job, Status

Ending = Literal["complete", "failed", "interrupted", "cancelled", "time limit"]
POLL_S = 0.2
RUNNING, OPEN = ("running",), ("queued", "running")


class Watcher:
    """Hears how jobs stand; this one ignores it."""

    def show(self, batch: Sequence[Job], statuses: Sequence[Status]) -> None:
        """How all jobs stand now, in the same order at each call."""

    def end(self) -> None:
        """Nothing more will come."""


@dataclass(frozen=True)
class Outcome:
    """How a drive ended, and every job with it."""

    ending: Ending
    batch: tuple[Job, ...]
    statuses: tuple[Status, ...]

    def facts(self) -> list[dict[str, Any]]:
        """The same for a machine, a row each."""
        return [jobs.facts(*pair) for pair in zip(self.batch, self.statuses, strict=True)]

    def count(self, state: str) -> int:
        """How many jobs are in a state."""
        return sum(status.state == state for status in self.statuses)


def check_limit(seconds: float | None) -> None:
    """Raises unless it leaves some time."""
    if seconds is not None and not seconds > 0:
        raise InputError(f"the time limit must be above 0 seconds, not {seconds:g}")


def drive(
    engine: Engine,
    batch: Sequence[Job],
    *,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
    time_limit_s: float | None = None,
) -> Outcome:
    """Runs what is missing of the jobs, until all have ended or somebody wants to stop."""
    check_limit(time_limit_s)
    watcher, root = watcher or Watcher(), engine.root
    jobs.uncancel(root)
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    wanted: Ending | None = None
    hurried = False
    try:
        for job in batch:
            jobs.put(root, job)
        handles = engine.submit(batch)
        while True:
            statuses = engine.poll(handles)
            watcher.show(batch, statuses)
            if not any(status.state in (RUNNING if wanted else OPEN) for status in statuses):
                break
            if wanted is None:
                wanted = _wanted(root, stop, deadline)
                if wanted:
                    engine.cancel(handles)
            time.sleep(POLL_S)
    except (
        KeyboardInterrupt
    ):  # a second Ctrl-C: whoever still works notices that nobody waits, saves and stops
        hurried = True
        raise
    finally:
        watcher.end()
        if not hurried:
            engine.close()
    if all(status.state == "done" for status in statuses):
        wanted = "complete"
    return Outcome(wanted or "failed", tuple(batch), tuple(statuses))


def _wanted(root: Path, stop: Callable[[], bool], deadline: float | None) -> Ending | None:
    """Why to stop now, if there is a reason."""
    if stop():
        return "interrupted"
    if jobs.is_cancelled(root):
        return "cancelled"
    if deadline is not None and time.monotonic() >= deadline:
        return "time limit"
    return None
