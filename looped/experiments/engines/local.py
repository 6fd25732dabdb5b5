"""The engine that needs nothing: worker processes on this machine, as many at once as it has devices.

Every GPU gets one worker, or more if more are asked for; without GPUs, every core gets one, with one thread.
A worker that dies is started again and goes on from its last checkpoint. It is given up when it dies again and
again without getting on, or says itself that its job cannot be done. Workers live in sessions of their own, so
that Ctrl-C reaches the driver alone, which asks each of them once; if the driver is killed, they save and stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import torch

import looped
from looped import devices, runs
from looped.experiments import jobs, locks
from looped.experiments.engines import Engine, Handle, Options
from looped.experiments.jobs import Job, Status
from looped.experiments.worker import CRASHED, FULL, HELD, IMPOSSIBLE

KILLS, CRASHES = 10, 3  # how often in a row a worker may be killed, or crash, without getting on
TERMINAL = ("done", "failed", "cancelled")
GRACE_S = 60.0  # for saving, when the engine is closed


@dataclass
class _Worker:
    """A job of this engine and what happened to it."""

    job: Job
    process: subprocess.Popen[bytes] | None = None
    slot: int = -1
    deaths: int = 0  # in a row, without getting on
    step: int = -1  # of the last checkpoint, at the last death
    ended: Status | None = None
    reason: str = ""  # of the last death


class Local(Engine):
    """A pool of worker processes."""

    def __init__(self, root: Path, options: Options) -> None:
        super().__init__(root, options)
        self.slots = slots(options)
        self._free = list(range(len(self.slots)))
        self._workers: dict[str, _Worker] = {}
        self._queue: deque[str] = deque()
        self._cancelled = False

    def submit(self, jobs: Sequence[Job]) -> list[Handle]:
        """Queues jobs."""
        for job in jobs:
            assert job.name not in self._workers, f"{job.name} was submitted twice"
            self._workers[job.name] = _Worker(job)
            self._queue.append(job.name)
        return [Handle(job, job.name) for job in jobs]

    def poll(self, handles: Sequence[Handle]) -> list[Status]:
        """Notices deaths, fills free slots, and says how everything stands."""
        for worker in self._workers.values():
            if worker.process is not None and worker.process.poll() is not None:
                self._bury(worker, worker.process.returncode)
        self._fill()
        return [self._status(self._workers[handle.number]) for handle in handles]

    def cancel(self, handles: Sequence[Handle]) -> None:
        """SIGTERM, once, to those that run."""
        names = {handle.number for handle in handles}
        self._queue = deque(name for name in self._queue if name not in names)
        for name in names:
            worker = self._workers[name]
            if worker.process is not None and worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
            elif worker.ended is None:
                worker.ended = replace(jobs.standing(self.root, worker.job), state="cancelled")
        self._cancelled = True

    def close(self) -> None:
        """Waits until everybody has saved, then ends whoever has not."""
        running = [worker.process for worker in self._workers.values() if worker.process is not None]
        if not self._cancelled:
            self.cancel([Handle(worker.job, name) for name, worker in self._workers.items()])
        deadline = time.monotonic() + GRACE_S
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # --- the pool ------------------------------------------------------------------------------------------
    def _fill(self) -> None:
        """Starts as many as there is room for, leaving out what somebody else is working on."""
        for _ in range(len(self._queue)):
            if not self._free or jobs.is_cancelled(self.root):
                return
            name = self._queue.popleft()
            worker = self._workers[name]
            status = jobs.standing(self.root, worker.job)
            if status.state == "done":
                worker.ended = status
            elif status.state == "running":
                self._queue.append(name)
            else:
                self._start(worker)

    def _start(self, worker: _Worker) -> None:
        slot = self._free.pop(0)
        device = self.slots[slot]
        jobs.put(self.root, worker.job)  # another driver may want the same run for other plans
        job = str(jobs.desk(self.root, f"{worker.job.name}.json"))
        with open(jobs.desk(self.root, f"{worker.job.name}.log"), "ab") as log:
            worker.process = self._spawn([job, "--device", device, "--parent", str(os.getpid())], log)
        worker.slot = slot

    def _spawn(self, words: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """A new process with a worker in it."""
        return subprocess.Popen(
            [sys.executable, "-m", "looped.experiments.worker", *words],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment(), start_new_session=True,
        )  # fmt: skip

    def _bury(self, worker: _Worker, status: int) -> None:
        """Draws the consequence of a worker's end: done, failed for good, or another try."""
        self._free.append(worker.slot)
        worker.process, worker.slot = None, -1
        standing = jobs.standing(self.root, worker.job)
        if standing.state == "done":
            worker.ended = standing
        elif self._cancelled or jobs.is_cancelled(self.root):
            worker.ended = replace(standing, state="cancelled")
        elif status == HELD:
            self._queue.append(worker.job.name)
        else:
            self._judge(worker, status, standing)

    def _judge(self, worker: _Worker, status: int, standing: Status) -> None:
        """Gives a job up, or queues it again."""
        step = jobs.saved_step(self.root / worker.job.name / runs.STATE) or 0
        worker.deaths = 1 if step > worker.step else worker.deaths + 1
        worker.step = step
        worker.reason = _reason(status, standing)
        final = status in (IMPOSSIBLE, FULL) or "every seed stopped" in worker.reason
        patience = KILLS if status < 0 or status > 128 else CRASHES
        if final or worker.deaths >= patience:
            often = "" if final else f" ({worker.deaths} times without getting on)"
            worker.ended = replace(standing, state="failed", reason=worker.reason + often)
            jobs.fail(self.root, worker.job.name, worker.ended.reason)
        else:
            self._queue.appendleft(worker.job.name)

    def _status(self, worker: _Worker) -> Status:
        """What this engine knows, and the folder's word for the rest."""
        if worker.ended is not None:
            return worker.ended
        step, loss = jobs.last_report(self.root / worker.job.name)
        if worker.process is not None:
            return Status("running", step, loss, reason=worker.reason)
        held = locks.is_held(jobs.desk(self.root, f"{worker.job.name}.lock"))
        return Status("running" if held else "queued", step, loss, reason=worker.reason)


def slots(options: Options) -> list[str]:
    """The device of every worker that may run at once: `["cuda:0", "cuda:1"]`, `["cpu", "cpu"]`."""
    device = devices.pick(options.device)
    if device.type == "cuda":
        count = torch.cuda.device_count()
        names = [f"cuda:{i}" for i in range(count)] if options.device == "auto" else [options.device]
        return [names[i % len(names)] for i in range(options.workers or len(names))]
    return ["cpu"] * (options.workers or _cores())


def _cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _environment() -> dict[str, str]:
    """A worker's environment: this very package, and one thread for each worker unless told otherwise."""
    here = str(Path(looped.__file__).resolve().parents[1])
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths)}


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
