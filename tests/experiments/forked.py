"""Runs of a second, and an engine whose workers are forks of the test: no second import of torch for each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from looped.experiments import worker
from looped.experiments.backends import Local, SweepOutcome
from looped.experiments.plan import MeasurementPlan

SMALL = (
    "steps=30", "interval=10", "max_length=3", "batch=2", "model.layers=1", "model.width=8", "model.heads=2",
    "model.bands=2,2",
)  # fmt: skip
FEW = MeasurementPlan(lengths=(2, 4), samples=20, stops=("oracle", "confidence"))


def count(outcome: SweepOutcome, state: str) -> int:
    """How many jobs are in a state at the end."""
    return sum(status.state == state for status in outcome.statuses)


def _born(pid: int) -> str:
    """When a process was started, in the system's ticks; tells it from a later one with the same number."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def victim(root: Path, name: str) -> int | None:
    """The process number of the last worker on a job, if it is still that worker's."""
    try:
        pid, born = (root / ".jobs" / f"{name}.pid").read_text().split()
        return int(pid) if _born(int(pid)) == born else None
    except OSError:
        return None


def strike(root: Path, name: str, number: int) -> int | None:
    """Sends a signal to the last worker on a job; its process number, or None if there is none any more."""
    pid = victim(root, name)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return pid


class Fork:
    """A worker in a fork of this process, with what the engine uses of `Popen`."""

    def __init__(self, words: list[str], log: IO[bytes]) -> None:
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=self._work, args=(words, log))
        self._process.start()
        self.pid = self._process.pid
        note = Path(words[0]).with_suffix(".pid")
        spare = note.with_suffix(f".pid-{self.pid}")
        spare.write_text(f"{self.pid} {_born(self.pid)}")
        spare.replace(note)

    @staticmethod
    def _work(words: list[str], log: IO[bytes]) -> None:
        sys.stderr = open(log.name, "a")  # noqa: SIM115
        sys.exit(worker.main(words))

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("fork", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()


class Forked(Local):
    """The local engine, its workers forked."""

    started = 0

    def _spawn(self, words: list[str], log: IO[bytes]):
        self.started += 1
        return Fork([*words, "--parent", str(os.getpid())], log)
