"""The backend that needs nothing: worker processes on this machine, as many at once as it has devices.

Every GPU gets one worker, or more if more are asked for; without GPUs, every core gets one, with one thread.
Workers live in sessions of their own, so that Ctrl-C reaches the driver alone, which asks each of them once; if
the driver is killed, they save and stop.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import torch

from looped import devices, files, registry
from looped.experiments import child, queue
from looped.experiments.backends import BackendOptions, Pool, WorkerEnd, environment


class Local(Pool):
    """A pool of worker processes."""

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
            words = [
                str(queue.queue_file(self.root, f"{name}.json")),
                "--device",
                self.slots[slot],
                *registry.named_files(),
            ]
            with files.open_appending(queue.queue_file(self.root, f"{name}.log"), "a log") as log:
                self._running[name] = self._spawn([*words, "--parent", str(os.getpid())], log), slot
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
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(self.root), start_new_session=True,
        )  # fmt: skip


def slots(options: BackendOptions) -> list[str]:
    """The device of every worker that may run at once: `["cuda:0", "cuda:1"]`, `["cpu", "cpu"]`."""
    device = devices.find(options.device)
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
