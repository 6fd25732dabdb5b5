"""Who starts the workers: one small interface, and a row for everything that has it.

An engine gets jobs that lie on the desk of a folder (`jobs.put`) and sees to it that `worker.py` runs for each
until it is done, has failed for good or is cancelled. What is true of a job stands in its folder; an engine
adds what only it knows: what is waiting, and that a worker was lost and another one started.

A further engine is a module with a class and a row in `ENGINES`; packages it needs are an extra of the project.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from looped.errors import InputError
from looped.experiments.jobs import Job, Status


@dataclass(frozen=True)
class Options:
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
class Handle:
    """A submitted job, for whoever submitted it."""

    job: Job
    number: str  # by which the engine knows it


class Engine(ABC):
    """Runs jobs of one folder."""

    def __init__(self, root: Path, options: Options) -> None:
        self.root, self.options = root, options

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> list[Handle]:
        """Takes jobs in, to be run in this order as far as there is room."""

    @abstractmethod
    def poll(self, handles: Sequence[Handle]) -> list[Status]:
        """How they stand now; also the moment at which an engine does its work. Never waits."""

    @abstractmethod
    def cancel(self, handles: Sequence[Handle]) -> None:
        """Asks those that run to save and stop, and starts none of the others; `poll` tells when it is so."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of everything; what still runs is asked to save and stop."""


@dataclass(frozen=True)
class Row:
    """Where an engine is and what it needs."""

    module: str
    engine: str  # the class
    package: str = ""  # that must be installed
    extra: str = ""  # of the project, which brings it
    commands: tuple[str, ...] = ()  # that must be on the PATH
    takes: tuple[str, ...] = ()  # options that it alone understands


ENGINES: dict[str, Row] = {
    "local": Row("looped.experiments.engines.local", "Local"),
    "ray": Row("looped.experiments.engines.ray", "Ray", package="ray", extra="ray", takes=("address",)),
    "slurm": Row(
        "looped.experiments.engines.slurm", "Slurm",
        commands=("sbatch", "squeue", "scancel"), takes=("sbatch",),
    ),
}  # fmt: skip


def check(name: str, options: Options) -> Row:
    """The row of an engine; raises if there is none of that name, or it does not take an option."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name[:40]!r}; the engines are {', '.join(ENGINES)}")
    row = ENGINES[name]
    for other, theirs in ENGINES.items():
        for option in theirs.takes:
            if option not in row.takes and getattr(options, option):
                raise InputError(f"--{option} is for the engine {other}, not for {name}")
    return row


def start(name: str, root: Path, options: Options | None = None) -> Engine:
    """The engine of that name, for the jobs of a folder."""
    options = options or Options()
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
    assert isinstance(engine, Engine)
    return engine
