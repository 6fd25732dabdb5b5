"""The engine for Slurm: an array of batch jobs, each of which is a worker. Slurm's own commands are all it needs.

What Slurm gets is a shell script of a few plain lines, one `python -m looped.experiments.worker` for each run; nothing
is pickled into the shared folder, so nothing that lies there is ever executed but this package. Slurm starts a run
again by itself when it was preempted, requeued or lost its node, and the worker goes on from its last checkpoint.
If the driver is killed, the array lives on, and the next driver finds it: DIR/.jobs/NAME.slurm holds `1234_7`.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from looped import checkpoints, files, registry
from looped.errors import InputError
from looped.experiments import queue
from looped.experiments.backends import LOST, WORKER, Backend, BackendOptions, WorkerEnd, safe_path
from looped.experiments.plan import short_hash
from looped.experiments.queue import Job
from looped.experiments.worker import CRASHED

LOOK_S = 5.0  # between two looks at Slurm's queue, which many people share
HURRY_S = 1.0  # the same while a stop is awaited
ANSWER_S = 60.0  # for one of Slurm's commands
ARRAY = 1000  # tasks of one array, as many as Slurm allows unless told otherwise
OPTION = re.compile(r"(?P<key>[a-z][a-z-]*)(=(?P<value>[^\n]*))?")
OWN = ("array", "job-name", "output", "error", "open-mode", "parsable", "requeue", "no-requeue", "wrap",
       "wait")  # fmt: skip
GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL",
        "DEADLINE")  # fmt: skip
AT_WORK = ("RUNNING", "COMPLETING")
FIELDS = "JobArrayID:48,State:24,exit_code:16,Reason:80"


@dataclass(frozen=True)
class SqueueRow:
    """What `squeue` says of a task of an array."""

    state: str
    status: int  # with which it exited; below 0 the signal that killed it
    reason: str  # why it waits

    @property
    def end(self) -> WorkerEnd | None:
        """How it ended, if it has."""
        if self.state not in OVER:
            return None
        if self.state in ("COMPLETED", "FAILED"):
            return WorkerEnd(self.status)
        if self.state == "CANCELLED":
            return WorkerEnd(LOST, "cancelled in Slurm", wanted=True)
        return WorkerEnd(CRASHED if self.state == "OUT_OF_MEMORY" else LOST, f"Slurm says {self.state}")


class Slurm(Backend):
    """Jobs as tasks of Slurm arrays."""

    def __init__(self, root: Path, options: BackendOptions) -> None:
        super().__init__(root.resolve(), options)
        if missing := [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]:
            raise InputError(
                f"the engine slurm needs the command {missing[0]}, which is not on the PATH here"
            )
        self.words = sbatch_words(options)
        safe = re.sub(r"[^A-Za-z0-9._-]", "-", self.root.name)[:40]
        self.name = f"looped-{safe}-{short_hash(str(self.root))}"
        self.workers: dict[str, tuple[str, float]] = {}  # a job's task, `1234_7`, and when it was submitted
        self._rows: dict[str, SqueueRow] = {}  # by task: how it stood at the last look
        self._looked = self._refused_until = -math.inf

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, but for those an earlier driver's arrays still hold."""
        super().submit(jobs)
        self._look(first=True)
        for job in jobs:
            task = self._remembered(job.name)
            if task in self._rows and not self._rows[task].end:
                self.workers[job.name] = task, 0.0
                self._queue.remove(job.name)

    def room(self) -> int:
        """Slurm queues what has no room; after a refusal, none until the next look."""
        return ARRAY if self._refused_until < time.monotonic() else 0

    def start(self, names: Sequence[str]) -> dict[str, tuple[str, float]]:
        """One array for all of them; none if Slurm refuses while it still works on others."""
        text = script(self.root, names, self.options.device)
        most = f"%{self.options.workers}" if self.options.workers else ""
        log = str(queue.queue_file(self.root, "_slurm.log")).replace("%", "%%")  # Slurm fills in `%a`
        said, complaint = _ask(["sbatch", *self.words, f"--job-name={self.name}", f"--output={log}",
                                f"--array=0-{len(names) - 1}{most}"], text)  # fmt: skip
        number = (said or "").strip().partition(";")[0]
        if not number.isdecimal():
            if not self.workers:
                raise InputError(f"Slurm refused the runs: {complaint}")
            self._refused_until = time.monotonic() + LOOK_S
            for name in names:
                self.tasks[name].reason = complaint
            return {}
        for i, name in enumerate(names):
            checkpoints.write(queue.queue_file(self.root, f"{name}.slurm"), f"{number}_{i}\n".encode())
        return {name: (f"{number}_{i}", time.monotonic()) for i, name in enumerate(names)}

    def ended(self) -> dict[str, WorkerEnd]:
        """Tasks that Slurm says are over, or knows no more."""
        self._look()
        found = {}
        for name, (task, born) in self.workers.items():
            row = self._rows.get(task)
            end = row.end if row else WorkerEnd(LOST, "gone from Slurm's queue")
            if end is not None and self._looked > born:
                found[name] = end
        return found

    def request_stop(self) -> None:
        """Those that run get SIGTERM, and SIGKILL after Slurm's KillWait; those that wait never start."""
        if self.workers:
            _ask(["scancel", *(task for task, _ in self.workers.values())])

    def release(self) -> None:
        """Nothing is held: what was asked to stop, Slurm ends in time."""

    def waiting_for(self, name: str) -> str | None:
        """Slurm's reason."""
        row = self._rows.get(self.workers[name][0])
        return None if row and row.state in AT_WORK else f"waits in Slurm: {row.reason}" if row else ""

    def _look(self, first: bool = False) -> None:
        """Ask Slurm, not too often; what it said last holds while it does not answer."""
        pause = HURRY_S if self._cancelled else LOOK_S
        if not first and (not self.workers or time.monotonic() - self._looked < pause):
            return
        words = ["squeue", "--noheader", "--array", "--states=all", f"--name={self.name}", "-O", FIELDS]
        said, complaint = _ask(words)
        if said is not None:
            self._rows, self._looked = rows(said), time.monotonic()
        elif first:
            raise InputError(f"Slurm does not answer: {complaint}")

    def _remembered(self, name: str) -> str:
        """The task that a driver submitted for a job, if one did."""
        path = queue.queue_file(self.root, f"{name}.slurm")
        try:
            return files.read_bytes(path, "a task's number", 40).decode("ascii", errors="replace").strip()
        except (OSError, InputError):
            return ""


def script(root: Path, names: Sequence[str], device: str) -> str:
    """The batch script: the i-th task of the array becomes the worker of the i-th run.

    Names of runs are words of letters, digits, `-`, `_` and `.`; whatever else is in it is quoted.
    """
    queue_file, own = shlex.quote(str(queue.queue_file(root, ""))), shlex.join(registry.named_files())
    return f"""#!/bin/sh
# Task i of this array works on the i-th of these runs; what it says goes to its log.
set -- {" ".join(names)}
shift "$SLURM_ARRAY_TASK_ID"
exec >> {queue_file}/"$1.log" 2>&1
cd {shlex.quote(os.getcwd())} || exit 1
export PYTHONPATH={shlex.quote(safe_path(root))} PYTHONSAFEPATH=1
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-${{SLURM_CPUS_PER_TASK:-1}}}}"
exec {shlex.quote(sys.executable)} {" ".join(WORKER)} {queue_file}/"$1.json" --device {device} {own}
"""


def sbatch_words(options: BackendOptions) -> list[str]:
    """The options of `sbatch`: ours, and those a person gives as `partition=gpu`, `time=4:00:00` or `exclusive`."""
    words, keys = ["--parsable", "--requeue", "--open-mode=append"], set[str]()
    for option in options.sbatch:
        match = OPTION.fullmatch(option)
        if match is None:
            raise InputError(f"--sbatch takes an option of sbatch such as partition=gpu, not {option[:60]!r}")
        if match["key"] in OWN:
            raise InputError(f"--sbatch cannot set {match['key']}, which looped sets itself")
        keys.add(match["key"])
        words.append(f"--{option}")
    if options.device == "cuda" and not keys & set(GPUS):
        words.append("--gres=gpu:1")
    return words


def rows(text: str) -> dict[str, SqueueRow]:
    """What `squeue` printed, by task: `1234_7  FAILED  512  NonZeroExitCode`."""
    found = {}
    for line in text.splitlines():
        words = line.split(maxsplit=3)
        if len(words) >= 3:
            number, state, code, *reason = words
            found[number] = SqueueRow(state, _status(code), "".join(reason).strip())
    return found


def _status(text: str) -> int:
    """Exit status or minus the signal, from how `wait` codes them (`512`) or as written for people (`2:0`)."""
    status, colon, killer = text.partition(":")
    if not status.isdecimal() or (colon and not killer.isdecimal()):
        return CRASHED
    code, number = (int(status), int(killer)) if colon else (int(status) >> 8, int(status) & 127)
    return -number or code


def _ask(words: list[str], text: str | None = None) -> tuple[str | None, str]:
    """What one of Slurm's commands printed, None if it failed, and what it complained of."""
    try:
        said = subprocess.run(words, input=text, capture_output=True, text=True, timeout=ANSWER_S)
    except (subprocess.TimeoutExpired, OSError) as error:
        return None, f"{words[0]}: {error}"
    lines = [line for line in said.stderr.splitlines() if line.strip()] or ["it said nothing"]
    return None if said.returncode else said.stdout, " ".join(lines[-1].split())[:300]
