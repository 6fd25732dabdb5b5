"""What engines have in common: which jobs wait, which were started, and what follows from how a worker ended.

An engine that starts workers one way or another says in five methods how it does that; here stands when. A worker
that dies is started again and goes on from its last checkpoint, or from the last length it has measured. It is given
up when it dies again and again without getting on, or says itself that its job cannot be done.
"""

from __future__ import annotations

import os
import signal
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import looped
from looped import locks, runs
from looped.experiments import jobs
from looped.experiments.engines import Engine, Handle, Options
from looped.experiments.jobs import Job, Status
from looped.experiments.worker import CRASHED, FULL, HELD, IMPOSSIBLE

KILLS, CRASHES = 10, 3  # how often in a row a worker may be killed, or crash, without getting on
GRACE_S = 60.0  # for saving, when the engine is closed


@dataclass(frozen=True)
class End:
    """How a worker ended."""

    status: int  # its exit status; below 0 the signal that killed it
    why: str = ""  # where an engine knows better than the status
    wanted: bool = False  # somebody stopped it for good, by the engine's own means


LOST = -int(signal.SIGKILL)  # the status of a worker of which nothing is known but that it is gone


@dataclass
class Task:
    """A job of an engine and what happened to it."""

    job: Job
    started: bool = False
    deaths: int = 0  # in a row, without getting on
    got: tuple[int, int, int] = (-1, 0, 0)  # at the last death: step saved, plans done, lengths kept
    ended: Status | None = None
    reason: str = ""  # of the last death
    results: list[Path] = field(init=False)  # a file for each plan

    def __post_init__(self) -> None:
        self.results = jobs.result_files(self.job)


class Pool(Engine):
    """Starts waiting jobs where there is room, and those again whose worker died."""

    def __init__(self, root: Path, options: Options) -> None:
        super().__init__(root, options)
        self.tasks: dict[str, Task] = {}
        self._queue: deque[str] = deque()
        self._cancelled = False

    # --- what an engine says ------------------------------------------------------------------------------
    @abstractmethod
    def room(self) -> int:
        """How many more workers may be started now."""

    @abstractmethod
    def start(self, names: Sequence[str]) -> Sequence[str]:
        """Starts workers for these jobs; the names of those it could start, the others wait."""

    @abstractmethod
    def ended(self) -> dict[str, End]:
        """The workers that have ended since it was last asked; each is named once."""

    @abstractmethod
    def ask(self, names: Sequence[str]) -> None:
        """Asks the workers of these jobs to save and stop."""

    @abstractmethod
    def release(self, names: Sequence[str]) -> None:
        """Ends the workers of these jobs, which did not stop in time, and lets go of everything."""

    def waits(self, name: str) -> str | None:
        """What a started job still waits for; None once its worker runs."""
        return None

    # --- an engine's four methods -------------------------------------------------------------------------
    def submit(self, jobs: Sequence[Job]) -> list[Handle]:
        """Queues jobs."""
        for job in jobs:
            assert job.name not in self.tasks, f"{job.name} was submitted twice"
            self.tasks[job.name] = Task(job)
            self._queue.append(job.name)
        return [Handle(job, job.name) for job in jobs]

    def poll(self, handles: Sequence[Handle]) -> list[Status]:
        """Notices deaths, fills the room there is, and says how everything stands."""
        self._bury_all()
        self._fill()
        return [self._status(self.tasks[handle.number]) for handle in handles]

    def cancel(self, handles: Sequence[Handle]) -> None:
        """Asks those that were started once, and forgets the others."""
        self._bury_all()
        names = {handle.number for handle in handles}
        self._queue = deque(name for name in self._queue if name not in names)
        self._cancelled = True
        for task in (self.tasks[name] for name in names):
            if not task.started and task.ended is None:
                task.ended = replace(jobs.standing(self.root, task.job), state="cancelled")
        self.ask([name for name in self._started() if name in names])

    def close(self) -> None:
        """Waits until everybody has saved, then ends whoever has not."""
        if not self._cancelled:
            self.cancel([Handle(task.job, name) for name, task in self.tasks.items()])
        deadline = time.monotonic() + GRACE_S
        while self._started() and time.monotonic() < deadline:
            self._bury_all()
            time.sleep(0.02)
        self.release(self._started())

    def adopt(self, names: Sequence[str]) -> None:
        """Takes jobs for started, whose workers an earlier driver has left behind."""
        for name in names:
            self._queue.remove(name)
            self.tasks[name].started = True

    # --- the book-keeping ---------------------------------------------------------------------------------
    def _started(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.started]

    def _fill(self) -> None:
        """Starts as many as there is room for, leaving out what somebody else is working on."""
        room, ready = self.room(), list[str]()
        for _ in range(len(self._queue)):
            if len(ready) >= room or jobs.is_cancelled(self.root):
                break
            name = self._queue.popleft()
            status = jobs.standing(self.root, self.tasks[name].job)
            if status.state == "done":
                self.tasks[name].ended = status
            elif status.state == "running":
                self._queue.append(name)
            else:
                jobs.put(self.root, self.tasks[name].job)  # another driver may want it for other plans
                ready.append(name)
        started = self.start(ready) if ready else ()
        for name in started:
            self.tasks[name].started = True
        self._queue.extendleft(name for name in reversed(ready) if name not in started)

    def _bury_all(self) -> None:
        for name, end in self.ended().items():
            self._bury(self.tasks[name], end)

    def _bury(self, task: Task, end: End) -> None:
        """Draws the consequence of a worker's end: done, failed for good, or another try."""
        task.started = False
        standing = jobs.standing(self.root, task.job)
        if standing.state == "done":
            task.ended = standing
        elif self._cancelled or jobs.is_cancelled(self.root):
            task.ended = replace(standing, state="cancelled")
        elif end.wanted:
            task.ended = replace(standing, state="cancelled", reason=end.why)
        elif end.status == HELD:
            self._queue.append(task.job.name)
        else:
            self._judge(task, end, standing)

    def _judge(self, task: Task, end: End, standing: Status) -> None:
        """Gives a job up, or queues it again."""
        step = jobs.saved_step(self.root / task.job.name / runs.STATE) or 0
        got = step, standing.measured, jobs.kept_lengths(self.root, task.job)
        task.deaths = 1 if got > task.got else task.deaths + 1
        task.got = got
        task.reason = end.why or _reason(end.status, standing)
        final = end.status in (IMPOSSIBLE, FULL) or "every seed stopped" in task.reason
        patience = KILLS if end.status < 0 or end.status > 128 else CRASHES
        if final or task.deaths >= patience:
            often = "" if final else f" ({task.deaths} times without getting on)"
            task.ended = replace(standing, state="failed", reason=task.reason + often)
            jobs.fail(self.root, task.job.name, task.ended.reason)
        else:
            self._queue.appendleft(task.job.name)

    def _status(self, task: Task) -> Status:
        """What this engine knows, and the folder's word for the rest."""
        if task.ended is not None:
            return task.ended
        step, loss = jobs.last_report(self.root / task.job.name)
        measured = sum(file.is_file() for file in task.results)  # asked often: a look has to be enough
        waits = self.waits(task.job.name) if task.started else ""
        busy = task.started and (waits is None or self._cancelled)  # whoever was asked is heard to the end
        if busy or locks.is_held(jobs.desk(self.root, f"{task.job.name}.lock")):
            return Status("running", step, loss, measured, task.reason)
        return Status("queued", step, loss, measured, waits or task.reason)


def environment() -> dict[str, str]:
    """A worker's environment: this very package, and one thread for each worker unless told otherwise."""
    paths = [package_folder(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def package_folder() -> str:
    """The folder that this package is imported from."""
    return str(Path(looped.__file__).resolve().parents[1])


def _reason(status: int, standing: Status) -> str:
    """Why a worker ended, in words."""
    if status == FULL:
        return standing.reason or "the disk is full"
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status > 128:
        return f"stopped by {signal.Signals(status - 128).name}"
    if standing.reason:
        return standing.reason
    return f"its worker ended with status {status}" + (" (see its log)" if status == CRASHED else "")
