"""Backends that run jobs: the scheduling they share, worker processes on this machine, and the loop that drives them.

A backend gets jobs from the queue of a folder (`queue.put`) and runs `worker.py` for each until it is done, has failed
for good or is cancelled. `Backend` decides which jobs wait, which are started, and what follows from how a worker
ended; its subclasses say in four methods how workers are started. A worker that dies is started again and goes on from
its last checkpoint, or from the last length it has measured. Its job is given up when it dies repeatedly without
progress, or cannot be done. A further backend is a module with a class and a row in `BACKENDS`.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Literal

import torch

from looped import devices, files, registry, runs
from looped.errors import InputError
from looped.experiments import queue
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
        if not 0 <= self.workers <= MANY:
            raise InputError(
                f"the number of workers must be from 0 (as many as devices) to {MANY}, not {self.workers}"
            )


# Module and class of an engine; packages that the module needs are in the extra of the engine's name.
BACKENDS = {
    "local": "looped.experiments.backends:Local",
    "ray": "looped.experiments.backends.ray:Ray",
    "slurm": "looped.experiments.backends.slurm:Slurm",
}
ONLY = {"address": "ray", "sbatch": "slurm"}  # options that one engine alone understands


def check(name: str, options: BackendOptions) -> None:
    """Raise if there is no engine of that name, or it does not take an option."""
    if name not in BACKENDS:
        raise InputError(f"unknown engine {name[:40]!r}; the engines are {', '.join(BACKENDS)}")
    for option, engine in ONLY.items():
        if engine != name and getattr(options, option):
            raise InputError(f"--{option} is for the engine {engine}, not for {name}")
    if name != "local" and options.device not in ("auto", "cpu", "cuda"):
        chooses = f"{name.capitalize()} chooses the GPU of a run itself"
        raise InputError(f"{chooses}: the device is auto, cpu or cuda, not {options.device!r}")


def start(name: str, root: Path, options: BackendOptions | None = None) -> Backend:
    """The engine of that name, for the jobs of a folder."""
    options = options or BackendOptions()
    check(name, options)
    module, _, engine = BACKENDS[name].partition(":")
    try:
        kind: type[Backend] = getattr(import_module(module), engine)
    except ImportError as error:
        raise InputError(
            f"the engine {name} needs the package {error.name or module}: pip install 'looped[{name}]'"
        ) from None
    return kind(root, options)


Ending = Literal["complete", "failed", "interrupted", "cancelled", "time limit"]
POLL_S = 0.2  # between two looks at all jobs
RUNNING, OPEN = ("running",), ("queued", "running")
KILLS, CRASHES = 10, 3  # how often in a row a worker may be killed, or crash, without getting on
GRACE_S = 60.0  # for saving, when the engine is closed
MANY = 10_000  # workers at once where nothing else bounds them


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
    deaths: int = 0  # in a row, without getting on
    got: tuple[int, int, int] = (-1, 0, 0)  # at the last failure: step saved, plans done, lengths measured
    ended: Status | None = None
    reason: str = ""  # of the last death


class Backend(ABC):
    """Runs jobs of one folder: starts those that wait where there is room, and those again whose worker died."""

    def __init__(self, root: Path, options: BackendOptions) -> None:
        self.root, self.options = root, options
        self.tasks: dict[str, PoolJob] = {}
        self.workers: dict[str, Any] = {}  # by the name of a started job, as the subclass knows its worker
        self.most = options.workers or MANY  # workers at once
        self._queue: deque[str] = deque()
        self._cancelled = False

    # --- what a subclass says -----------------------------------------------------------------------------
    @abstractmethod
    def start(self, names: Sequence[str]) -> dict[str, Any]:
        """Start workers for these jobs; those it could start, the others wait."""

    @abstractmethod
    def ended(self) -> dict[str, WorkerEnd]:
        """Those of `workers` that have ended."""

    @abstractmethod
    def request_stop(self) -> None:
        """Ask all workers to save and stop."""

    @abstractmethod
    def release(self) -> None:
        """End the workers that did not stop in time, and let go of everything."""

    def room(self) -> int:
        """How many more workers may be started now."""
        return self.most - len(self.workers)

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
        for name, task in self.tasks.items():
            if name not in self.workers and task.ended is None:
                task.ended = replace(queue.status_of(self.root, task.job), state="cancelled")
        self.request_stop()

    def close(self) -> None:
        """Wait until all workers have saved, then end those that have not."""
        if not self._cancelled:
            self.cancel()
        deadline = time.monotonic() + GRACE_S
        while self.workers and time.monotonic() < deadline:
            self._collect_ended()
            time.sleep(0.02)
        self.release()

    def worker_words(self, name: str, device: str) -> list[str]:
        """The arguments of a job's worker."""
        return [str(queue.queue_file(self.root, f"{name}.json")), "--device", device, *registry.named_files()]

    # --- the book-keeping ---------------------------------------------------------------------------------
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
        started = self.start(ready) if ready else {}
        self.workers |= started
        self._queue.extendleft(name for name in reversed(ready) if name not in started)

    def _collect_ended(self) -> None:
        """Draw the consequence of each worker's end: done, failed for good, or another try."""
        for name, end in self.ended().items():
            del self.workers[name]
            task = self.tasks[name]
            standing = queue.status_of(self.root, task.job)
            if standing.state == "done":
                task.ended = standing
            elif self._cancelled or queue.is_cancelled(self.root):
                task.ended = replace(standing, state="cancelled")
            elif end.wanted:
                task.ended = replace(standing, state="cancelled", reason=end.why)
            elif end.status == HELD:
                self._queue.append(name)
            else:
                self._retry_or_fail(task, end, standing)

    def _retry_or_fail(self, task: PoolJob, end: WorkerEnd, standing: Status) -> None:
        """Give a job up, or queue it again."""
        step = queue.saved_step(self.root / task.job.name / runs.STATE) or 0
        kept = (queue.part_file(self.root, task.job, plan) for plan in task.job.plans)
        got = step, standing.measured, sum(map(queue.kept_lengths, kept))
        task.deaths = 1 if got > task.got else task.deaths + 1
        task.got = got
        task.reason = end.why or _reason(end.status, standing)
        final = end.status in (IMPOSSIBLE, FULL)
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
        measured = sum(map(Path.is_file, task.job.result_files))  # asked often: a look has to be enough
        started = task.job.name in self.workers
        waits = self.waiting_for(task.job.name) if started else ""
        busy = started and (waits is None or self._cancelled)  # one that was asked to stop is waited for
        if busy or files.is_locked(queue.queue_file(self.root, f"{task.job.name}.lock")):
            return Status("running", step, loss, measured, task.reason)
        return Status("queued", step, loss, measured, waits or task.reason)


# --- processes on this machine -------------------------------------------------------------------------------
class Local(Backend):
    """Worker processes on this machine, as many at once as it has devices.

    Every GPU gets one worker, or more if more are asked for; without GPUs, every core gets one, with one thread.
    Ctrl-C reaches the driver alone, which asks each of them once.
    """

    def __init__(self, root: Path, options: BackendOptions) -> None:
        super().__init__(root, options)
        self._free = slots(options)
        self.most = len(self._free)

    def start(self, names: Sequence[str]) -> dict[str, Any]:
        """A process for each, in a free slot."""
        started = {}
        for name in names:
            device = self._free.pop(0)
            with files.open_appending(queue.queue_file(self.root, f"{name}.log"), "a log") as log:
                started[name] = self._spawn(self.worker_words(name, device), log), device
        return started

    def ended(self) -> dict[str, WorkerEnd]:
        """Processes that are gone; their slots are free again."""
        found = {}
        for name, (process, device) in self.workers.items():
            if (status := process.poll()) is not None:
                found[name] = WorkerEnd(status)
                self._free.append(device)
        return found

    def request_stop(self) -> None:
        """SIGTERM."""
        for process, _ in self.workers.values():
            process.send_signal(signal.SIGTERM)

    def release(self) -> None:
        """SIGKILL."""
        for process, _ in self.workers.values():
            process.kill()
            process.wait()

    def _spawn(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return spawn(words, log, Path.cwd(), safe_path(self.root))


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
    ended = f"its worker ended with status {status}" + (" (see its log)" if status == CRASHED else "")
    return standing.reason or ended


# --- worker processes, of every backend ------------------------------------------------------------------------------
# `-P`: the current folder is not searched for modules.
WORKER = ("-P", "-m", "looped.experiments.worker")
LOOK_S = 0.1  # between two looks at a child and for a request to stop


def safe_path(root: Path) -> str:
    """The PYTHONPATH of workers on the jobs of a folder: this package first, then the absolute folders of ours.

    Whatever others may have put beside a sweep file or among the runs is no module: neither the current folder (which
    an empty or a relative entry would mean) nor the folder of runs or one below it is on the path.
    """
    here, runs_folder = Path.cwd().resolve(), root.resolve()
    package = str(Path(__file__).resolve().parents[3])  # the folder that it is imported from
    paths = [package]
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        folder = Path(entry).resolve() if os.path.isabs(entry) else here
        if folder != here and not folder.is_relative_to(runs_folder) and str(folder) != package:
            paths.append(entry)
    return os.pathsep.join(paths)


def spawn(words: Sequence[str], log: IO[bytes], folder: str | Path, path: str) -> subprocess.Popen[bytes]:
    """A worker in a process and session of its own, which saves and stops when this process is gone."""
    own = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return subprocess.Popen(
        [sys.executable, *WORKER, *words, "--parent", str(os.getpid())], stdin=subprocess.DEVNULL, stdout=log,
        stderr=log, cwd=folder, env={"OMP_NUM_THREADS": "1", **os.environ, **own}, start_new_session=True,
    )  # fmt: skip


def run_worker(words: Sequence[str], log: str, folder: str, stop_file: str) -> int:
    """Run a worker until it ends, as the child of a scheduler's process; its exit status.

    It is asked to save and stop, once, when this process is interrupted or the file `stop_file` appears: not every
    scheduler interrupts reliably. This and what it calls need Python alone, so that the scheduler's process stays small
    and can be sent them by value.
    """
    nonblocking = getattr(os, "O_NONBLOCK", 0)  # never waits for a pipe
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | nonblocking, 0o644), "ab") as file:
        worker = spawn(words, file, folder, os.environ.get("PYTHONPATH", ""))
    asked, ended = False, list[int]()
    # Waited for in a thread of its own: an interrupt of this one inside `poll` would leave the lock of `worker` taken.
    threading.Thread(target=lambda: ended.append(worker.wait()), daemon=True).start()
    while True:
        try:
            while not ended:
                if not asked and os.path.exists(stop_file):
                    raise KeyboardInterrupt
                time.sleep(LOOK_S)
            return ended[0]
        except KeyboardInterrupt:
            if not asked:  # a second signal would end the worker before it has saved
                asked = True
                worker.terminate()


# --- until all have ended --------------------------------------------------------------------------------------------
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
        return list(map(queue.facts, self.batch, self.statuses))


def check_limit(seconds: float) -> None:
    """Raise unless the limit leaves some time."""
    if not seconds > 0:
        raise InputError(f"the time limit must be above 0 seconds, not {seconds:g}")


def run_jobs(
    backend: Backend,
    batch: Sequence[Job],
    *,
    listener: StatusListener | None = None,
    stop: Callable[[], bool] = lambda: False,
    time_limit_s: float = math.inf,
) -> SweepOutcome:
    """Run what is missing of the jobs, until all have ended or a stop is requested.

    Nothing is kept here: killed at any moment and started again, it finds in the folders what is missing.
    """
    check_limit(time_limit_s)
    listener, root = listener or StatusListener(), backend.root
    queue.clear_cancel(root)
    deadline = time.monotonic() + time_limit_s
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
            if wanted is None and (wanted := _wanted(root, stop, deadline)):
                backend.cancel()
            time.sleep(POLL_S)
    except KeyboardInterrupt:  # a second Ctrl-C: workers notice that their parent is gone, save and stop
        hurried = True
        raise
    finally:
        listener.end()
        if not hurried:
            backend.close()
    ending = "complete" if all(status.state == "done" for status in statuses) else wanted or "failed"
    return SweepOutcome(ending, tuple(batch), tuple(_named(status, ending) for status in statuses))


def _named(status: Status, ending: Ending) -> Status:
    """A job that was stopped without `looped cancel` is not cancelled: it was interrupted, or never began."""
    if status.state != "cancelled" or ending not in ("interrupted", "time limit"):
        return status
    return replace(status, state="interrupted" if status.step else "queued")


def _wanted(root: Path, stop: Callable[[], bool], deadline: float) -> Ending | None:
    """Why to stop now, if there is a reason."""
    if stop():
        return "interrupted"
    if queue.is_cancelled(root):
        return "cancelled"
    return "time limit" if time.monotonic() >= deadline else None
