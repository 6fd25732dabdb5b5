"""Backends that run jobs: the scheduling they share, worker processes on this machine, and the loop that drives them.

A backend gets jobs from the queue of a folder (`queue.put`) and runs `worker.py` for each until it is done, has failed
for good or is cancelled. The status of a job is in its folder; a backend adds what only it knows: what is waiting, and
that a worker was lost and another one started. A further backend is a module with a class and a row in `BACKENDS`;
packages it needs are an extra of the project.

`Backend` decides which jobs wait, which are started, and what follows from how a worker ended; its subclasses say in
five methods how workers are started. A worker that dies is started again and goes on from its last checkpoint, or from
the last length it has measured. Its job is given up when it dies repeatedly without progress, or cannot be done.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal

import torch

from looped import devices, files, registry, runs
from looped.errors import InputError
from looped.experiments import child, queue
from looped.experiments.queue import Job, Status
from looped.experiments.worker import CRASHED, FULL, HELD, IMPOSSIBLE


@dataclass(frozen=True)
class BackendOptions:
    """What a person may say to an engine; what one does not understand, `start` refuses."""

    workers: int = 0  # at once; 0: as many as the devices
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    address: str = ""  # of a Ray cluster; empty: a new one on this machine
    sbatch: tuple[str, ...] = ()  # options of Slurm's sbatch: `partition=gpu`, `time=4:00:00`

    def __post_init__(self) -> None:
        if not 0 <= self.workers <= 10_000:
            raise InputError(
                f"the number of workers must be from 0 (as many as devices) to 10000, not {self.workers}"
            )


@dataclass(frozen=True)
class BackendEntry:
    """Where an engine is and what it needs."""

    module: str
    engine: str  # the class
    package: str = ""  # that must be installed
    extra: str = ""  # of the project, which brings it
    commands: tuple[str, ...] = ()  # that must be on the PATH
    takes: tuple[str, ...] = ()  # options that it alone understands


BACKENDS: dict[str, BackendEntry] = {
    "local": BackendEntry("looped.experiments.backends", "Local"),
    "ray": BackendEntry("looped.experiments.backends.ray", "Ray", package="ray", extra="ray", takes=("address",)),
    "slurm": BackendEntry(
        "looped.experiments.backends.slurm", "Slurm",
        commands=("sbatch", "squeue", "scancel"), takes=("sbatch",),
    ),
}  # fmt: skip


def check(name: str, options: BackendOptions) -> BackendEntry:
    """The row of an engine; raises if there is none of that name, or it does not take an option."""
    if name not in BACKENDS:
        raise InputError(f"unknown engine {name[:40]!r}; the engines are {', '.join(BACKENDS)}")
    row = BACKENDS[name]
    for other, theirs in BACKENDS.items():
        for option in theirs.takes:
            if option not in row.takes and getattr(options, option):
                raise InputError(f"--{option} is for the engine {other}, not for {name}")
    return row


def start(name: str, root: Path, options: BackendOptions | None = None) -> Backend:
    """The engine of that name, for the jobs of a folder."""
    options = options or BackendOptions()
    row = check(name, options)
    for command in row.commands:
        if shutil.which(command) is None:
            raise InputError(f"the engine {name} needs the command {command}, which is not on the PATH here")
    if row.package:
        try:
            import_module(row.package)
        except ImportError:
            raise InputError(
                f"the engine {name} needs the package {row.package}: pip install 'looped[{row.extra}]'"
            ) from None
    engine = getattr(import_module(row.module), row.engine)(root, options)
    assert isinstance(engine, Backend)
    return engine


Ending = Literal["complete", "failed", "interrupted", "cancelled", "time limit"]
POLL_S = 0.2  # between two looks at all jobs
RUNNING, OPEN = ("running",), ("queued", "running")
KILLS, CRASHES = 10, 3  # how often in a row a worker may be killed, or crash, without getting on
GRACE_S = 60.0  # for saving, when the engine is closed


@dataclass(frozen=True)
class WorkerEnd:
    """How a worker ended."""

    status: int  # its exit status; below 0 the signal that killed it
    why: str = ""  # where an engine knows better than the status
    wanted: bool = False  # it was stopped for good by the scheduler's own commands


LOST = -int(signal.SIGKILL)  # the status of a worker of which nothing is known but that it is gone


@dataclass
class PoolJob:
    """A job of an engine and what happened to it."""

    job: Job
    started: bool = False
    deaths: int = 0  # in a row, without getting on
    got: tuple[int, int, int] = (-1, 0, 0)  # at the last failure: step saved, plans done, lengths measured
    ended: Status | None = None
    reason: str = ""  # of the last death
    results: list[Path] = field(init=False)  # a file for each plan

    def __post_init__(self) -> None:
        self.results = queue.result_files(self.job)


class Backend(ABC):
    """Runs jobs of one folder: starts those that wait where there is room, and those again whose worker died."""

    def __init__(self, root: Path, options: BackendOptions) -> None:
        self.root, self.options = root, options
        self.tasks: dict[str, PoolJob] = {}
        self._queue: deque[str] = deque()
        self._cancelled = False

    # --- what a subclass says -----------------------------------------------------------------------------
    @abstractmethod
    def room(self) -> int:
        """How many more workers may be started now."""

    @abstractmethod
    def start(self, names: Sequence[str]) -> Sequence[str]:
        """Start workers for these jobs; the names of those it could start, the others wait."""

    @abstractmethod
    def ended(self) -> dict[str, WorkerEnd]:
        """The workers that have ended since it was last asked; each is named once."""

    @abstractmethod
    def request_stop(self, names: Sequence[str]) -> None:
        """Ask the workers of these jobs to save and stop."""

    @abstractmethod
    def release(self, names: Sequence[str]) -> None:
        """End the workers of these jobs, which did not stop in time, and let go of everything."""

    def waiting_for(self, name: str) -> str | None:
        """What a started job still waits for; None once its worker runs."""
        return None

    # --- what the runner asks -----------------------------------------------------------------------------
    def submit(self, jobs: Sequence[Job]) -> None:
        """Take jobs in, to be run in this order as far as there is room."""
        for job in jobs:
            assert job.name not in self.tasks, f"{job.name} was submitted twice"
            self.tasks[job.name] = PoolJob(job)
            self._queue.append(job.name)

    def poll(self) -> list[Status]:
        """Notice deaths, fill the room there is, and say how every job stands now. Never waits."""
        self._collect_ended()
        self._fill()
        return [self._status(task) for task in self.tasks.values()]

    def cancel(self) -> None:
        """Ask those that run to save and stop, and start none of the others; `poll` tells when it is so."""
        self._collect_ended()
        self._queue.clear()
        self._cancelled = True
        for task in self.tasks.values():
            if not task.started and task.ended is None:
                task.ended = replace(queue.status_of(self.root, task.job), state="cancelled")
        self.request_stop(self._started())

    def close(self) -> None:
        """Wait until all workers have saved, then end those that have not."""
        if not self._cancelled:
            self.cancel()
        deadline = time.monotonic() + GRACE_S
        while self._started() and time.monotonic() < deadline:
            self._collect_ended()
            time.sleep(0.02)
        self.release(self._started())

    def worker_words(self, name: str, device: str) -> list[str]:
        """The arguments of a job's worker."""
        return [str(queue.queue_file(self.root, f"{name}.json")), "--device", device, *registry.named_files()]

    # --- the book-keeping ---------------------------------------------------------------------------------
    def _started(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.started]

    def _fill(self) -> None:
        """Start as many as there is room for, leaving out what another worker has."""
        room, ready = self.room(), list[str]()
        for _ in range(len(self._queue)):
            if len(ready) >= room or queue.is_cancelled(self.root):
                break
            name = self._queue.popleft()
            status = queue.status_of(self.root, self.tasks[name].job)
            if status.state == "done":
                self.tasks[name].ended = status
            elif status.state == "running":
                self._queue.append(name)
            else:
                queue.put(self.root, self.tasks[name].job)  # another driver may want it for other plans
                ready.append(name)
        started = self.start(ready) if ready else ()
        for name in started:
            self.tasks[name].started = True
        self._queue.extendleft(name for name in reversed(ready) if name not in started)

    def _collect_ended(self) -> None:
        for name, end in self.ended().items():
            self._after_end(self.tasks[name], end)

    def _after_end(self, task: PoolJob, end: WorkerEnd) -> None:
        """Draw the consequence of a worker's end: done, failed for good, or another try."""
        task.started = False
        standing = queue.status_of(self.root, task.job)
        if standing.state == "done":
            task.ended = standing
        elif self._cancelled or queue.is_cancelled(self.root):
            task.ended = replace(standing, state="cancelled")
        elif end.wanted:
            task.ended = replace(standing, state="cancelled", reason=end.why)
        elif end.status == HELD:
            self._queue.append(task.job.name)
        else:
            self._retry_or_fail(task, end, standing)

    def _retry_or_fail(self, task: PoolJob, end: WorkerEnd, standing: Status) -> None:
        """Give a job up, or queue it again."""
        step = queue.saved_step(self.root / task.job.name / runs.STATE) or 0
        got = step, standing.measured, queue.kept_lengths(self.root, task.job)
        task.deaths = 1 if got > task.got else task.deaths + 1
        task.got = got
        task.reason = end.why or _reason(end.status, standing)
        final = end.status in (IMPOSSIBLE, FULL) or "every seed stopped" in task.reason
        patience = KILLS if end.status < 0 or end.status > 128 else CRASHES
        if final or task.deaths >= patience:
            often = "" if final else f" ({task.deaths} times without getting on)"
            task.ended = replace(standing, state="failed", reason=task.reason + often)
            queue.fail(self.root, task.job.name, task.ended.reason)
        else:
            self._queue.appendleft(task.job.name)

    def _status(self, task: PoolJob) -> Status:
        """What this engine knows, and the folder's word for the rest."""
        if task.ended is not None:
            return task.ended
        step, loss = queue.last_report(self.root / task.job.name)
        measured = sum(file.is_file() for file in task.results)  # asked often: a look has to be enough
        waits = self.waiting_for(task.job.name) if task.started else ""
        busy = task.started and (waits is None or self._cancelled)  # one that was asked to stop is waited for
        if busy or files.is_locked(queue.queue_file(self.root, f"{task.job.name}.lock")):
            return Status("running", step, loss, measured, task.reason)
        return Status("queued", step, loss, measured, waits or task.reason)


# --- processes on this machine -------------------------------------------------------------------------------


class Local(Backend):
    """Worker processes on this machine, as many at once as it has devices.

    Every GPU gets one worker, or more if more are asked for; without GPUs, every core gets one, with one thread.
    Workers live in sessions of their own, so that Ctrl-C reaches the driver alone, which asks each of them once; if
    the driver is killed, they save and stop.
    """

    def __init__(self, root: Path, options: BackendOptions) -> None:
        super().__init__(root, options)
        self.slots = slots(options)
        self._free = list(range(len(self.slots)))
        self._running: dict[str, tuple[subprocess.Popen[bytes], int]] = {}  # by job: the process and its slot

    def room(self) -> int:
        """The free slots."""
        return len(self._free)

    def start(self, names: Sequence[str]) -> Sequence[str]:
        """A process for each, in a free slot."""
        for name in names:
            slot = self._free.pop(0)
            words = [*self.worker_words(name, self.slots[slot]), "--parent", str(os.getpid())]
            with files.open_appending(queue.queue_file(self.root, f"{name}.log"), "a log") as log:
                self._running[name] = self._spawn(words, log), slot
        return names

    def ended(self) -> dict[str, WorkerEnd]:
        """Processes that are gone; their slots are free again."""
        found = {}
        for name, (process, slot) in list(self._running.items()):
            status = process.poll()
            if status is not None:
                found[name] = WorkerEnd(status)
                self._free.append(slot)
                del self._running[name]
        return found

    def request_stop(self, names: Sequence[str]) -> None:
        """SIGTERM."""
        for name in names:
            self._running[name][0].send_signal(signal.SIGTERM)

    def release(self, names: Sequence[str]) -> None:
        """SIGKILL."""
        for name in names:
            process, _ = self._running[name]
            process.kill()
            process.wait()

    def _spawn(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """A new process with a worker in it."""
        return subprocess.Popen(
            [sys.executable, *child.WORKER, *words],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child.environment(self.root), start_new_session=True,
        )  # fmt: skip


def slots(options: BackendOptions) -> list[str]:
    """The device of every worker that may run at once: `["cuda:0", "cuda:1"]`, `["cpu", "cpu"]`."""
    device = devices.find(options.device)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        names = [f"cuda:{i}" for i in range(count)] if options.device == "auto" else [options.device]
        return [names[i % len(names)] for i in range(options.workers or len(names))]
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return ["cpu"] * (options.workers or len(own))


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


# --- until all have ended --------------------------------------------------------------------------------------------
# Nothing is kept here: killed at any moment and started again, `run_jobs` finds in the folders what is missing.


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
