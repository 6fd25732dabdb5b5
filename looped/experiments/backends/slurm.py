"""The engine for Slurm: an array of batch jobs, each of which is a worker. Slurm's own commands are all it needs.

What Slurm gets is a shell script of a few plain lines, one `python -m looped.experiments.worker` for each run; nothing
is pickled into the shared folder, so nothing that lies there is ever executed but this package. Slurm starts a run
again by itself when it was preempted, requeued or lost its node, and the worker goes on from its last checkpoint.
If the driver is killed, the array lives on, and the next driver finds it: DIR/.jobs/NAME.slurm holds `1234_7`.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from looped import checkpoints, files, registry
from looped.errors import InputError
from looped.experiments import child, queue
from looped.experiments.backends import LOST, Backend, BackendOptions, WorkerEnd
from looped.experiments.plan import short_hash
from looped.experiments.queue import Job
from looped.experiments.worker import CRASHED

LOOK_S = 5.0  # between two looks at Slurm's queue, which many people share
HURRY_S = 1.0  # the same while a stop is awaited
ANSWER_S = 60.0  # for one of Slurm's commands
ARRAY = 1000  # tasks of one array, as many as Slurm allows unless told otherwise
OPTION = re.compile(r"(?P<key>[a-z][a-z-]*)(=(?P<value>[^\n]*))?")
OWN = (
    "array",
    "job-name",
    "output",
    "error",
    "open-mode",
    "parsable",
    "requeue",
    "no-requeue",
    "wrap",
    "wait",
)
GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL",
        "DEADLINE")  # fmt: skip
AT_WORK = ("RUNNING", "COMPLETING")
FIELDS = "JobArrayID:48,State:24,exit_code:16,Reason:80"


@dataclass(frozen=True)
class SqueueRow:
    """What `squeue` says of a task of an array."""

    state: str
    code: int  # exit status
    signal: int  # that killed it
    reason: str  # why it waits

    @property
    def end(self) -> WorkerEnd | None:
        """How it ended, if it has."""
        if self.state not in OVER:
            return None
        if self.state in ("COMPLETED", "FAILED"):
            return WorkerEnd(-self.signal or self.code)
        if self.state == "CANCELLED":
            return WorkerEnd(LOST, "cancelled in Slurm", wanted=True)
        return WorkerEnd(CRASHED if self.state == "OUT_OF_MEMORY" else LOST, f"Slurm says {self.state}")


class Slurm(Backend):
    """Jobs as tasks of Slurm arrays."""

    def __init__(self, root: Path, options: BackendOptions) -> None:
        super().__init__(root.resolve(), options)
        self.words = sbatch_words(options)
        safe = re.sub(r"[^A-Za-z0-9._-]", "-", self.root.name)[:40]
        self.name = f"looped-{safe}-{short_hash(str(self.root))}"
        self._ids: dict[str, str] = {}  # by job: `1234_7`
        self._born: dict[str, float] = {}  # when it was submitted
        self._rows: dict[str, SqueueRow] = {}  # by task: how it stood at the last look
        self._looked = self._tried = -1e9

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, but for those an earlier driver's arrays still hold."""
        super().submit(jobs)
        self._look(first=True)
        left = {job.name: self._remembered(job.name) for job in jobs}
        alive = {name: task for name, task in left.items() if task in self._rows and not self._rows[task].end}
        self._ids.update(alive)
        self._born.update(dict.fromkeys(alive, 0.0))
        for name in alive:
            self._queue.remove(name)
            self.tasks[name].started = True

    def room(self) -> int:
        """Slurm queues what has no room; after a refusal, none until the next look."""
        return ARRAY if self._tried < time.monotonic() else 0

    def start(self, names: Sequence[str]) -> Sequence[str]:
        """One array for all of them; none if Slurm refuses while it still works on others."""
        text = script(self.root, names, self.options.device)
        most = f"%{self.options.workers}" if self.options.workers else ""
        said = _say(["sbatch", *self.words, f"--job-name={self.name}", f"--array=0-{len(names) - 1}{most}",
                     f"--output={_plain(queue.queue_file(self.root, '_slurm.log'))}"], text)  # fmt: skip
        number = said.stdout.strip().partition(";")[0]
        if said.returncode or not number.isdecimal():
            if not self._ids:
                raise InputError(f"Slurm refused the runs: {_last(said)}")
            self._tried = time.monotonic() + LOOK_S
            for name in names:
                self.tasks[name].reason = _last(said)
            return ()
        for i, name in enumerate(names):
            self._ids[name], self._born[name] = f"{number}_{i}", time.monotonic()
            checkpoints.write(queue.queue_file(self.root, f"{name}.slurm"), f"{number}_{i}\n".encode())
        return names

    def ended(self) -> dict[str, WorkerEnd]:
        """Tasks that Slurm says are over, or knows no more."""
        self._look()
        found = {}
        for name, number in list(self._ids.items()):
            if self._looked <= self._born[name]:
                continue
            row = self._rows.get(number)
            end = row.end if row else WorkerEnd(LOST, "gone from Slurm's queue")
            if end is not None:
                found[name] = end
                del self._ids[name]
        return found

    def request_stop(self, names: Sequence[str]) -> None:
        """Those that run get SIGTERM, and SIGKILL after Slurm's KillWait; those that wait never start."""
        if names:
            _say(["scancel", *(self._ids[name] for name in names)])

    def release(self, names: Sequence[str]) -> None:
        """Nothing is held: what was asked to stop, Slurm ends in time."""

    def waiting_for(self, name: str) -> str | None:
        """Slurm's reason."""
        row = self._rows.get(self._ids[name])
        return None if row and row.state in AT_WORK else f"waits in Slurm: {row.reason}" if row else ""

    def _look(self, first: bool = False) -> None:
        """Ask Slurm, not too often; what it said last holds while it does not answer."""
        pause = HURRY_S if self._cancelled else LOOK_S
        if not first and (not self._ids or time.monotonic() - self._looked < pause):
            return
        said = _say(["squeue", "--noheader", "--array", "--states=all", f"--name={self.name}", "-O", FIELDS])
        if said.returncode and first:
            raise InputError(f"Slurm does not answer: {_last(said)}")
        if not said.returncode:
            self._rows = rows(said.stdout)
            self._looked = time.monotonic()

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
export PYTHONPATH={shlex.quote(child.safe_path(root))} PYTHONSAFEPATH=1
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-${{SLURM_CPUS_PER_TASK:-1}}}}"
exec {shlex.quote(sys.executable)} {" ".join(child.WORKER)} {queue_file}/"$1.json" --device {device} {own}
"""


def sbatch_words(options: BackendOptions) -> list[str]:
    """The options of `sbatch`: ours, and those a person gives as `partition=gpu`, `time=4:00:00` or `exclusive`."""
    if options.device not in ("auto", "cpu", "cuda"):
        raise InputError(
            f"Slurm chooses the GPU of a run itself: the device is auto, cpu or cuda, not {options.device!r}"
        )
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
            found[number] = SqueueRow(state, *_exit(code), "".join(reason).strip())
    return found


def _exit(text: str) -> tuple[int, int]:
    """Exit status and signal, from how `wait` codes them (`512`) or as they are written for people (`2:0`)."""
    status, colon, killer = text.partition(":")
    if not status.isdecimal() or (colon and not killer.isdecimal()):
        return CRASHED, 0
    return (int(status), int(killer)) if colon else (int(status) >> 8, int(status) & 127)


def _say(words: list[str], text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands."""
    try:
        return subprocess.run(words, input=text, capture_output=True, text=True, timeout=ANSWER_S)
    except (subprocess.TimeoutExpired, OSError) as error:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: {error}")


def _last(said: subprocess.CompletedProcess[str]) -> str:
    """What a command complained of."""
    lines = [line for line in said.stderr.splitlines() if line.strip()] or ["it said nothing"]
    return " ".join(lines[-1].split())[:300]


def _plain(path: Path) -> str:
    """A path in which Slurm finds no `%` to fill in."""
    return str(path).replace("%", "%%")
