"""`looped sweep`: many runs from one file, on one engine; the same command again does only what is missing.

$ looped sweep runs.json --out runs/widths
12 runs in runs/widths: 4 done, 8 queued
…
complete: 12 done; wrote runs/widths
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json, print_table
from looped.errors import InputError
from looped.experiments import board, drive, engines, jobs, sweepfile
from looped.experiments.drive import Outcome
from looped.experiments.engines import Options
from looped.experiments.jobs import Job
from looped.training.interrupt import Interrupt


@dataclass(frozen=True)
class Args:
    """Run many runs. The same command again does what is missing, however the last one ended."""

    file: Annotated[Path, Positional("FILE")]
    """JSON: a list of runs, or a grid of tasks × methods × recipes × settings; docs/scale.md shows both."""
    engine: str = "local"
    """Who runs them: local (processes here), ray (extra `ray`) or slurm (arrays of batch jobs)."""
    address: Annotated[str, Option("HOST:PORT", default="(default: a new one here)")] = ""
    """The Ray cluster to use; auto is the one this machine belongs to."""
    sbatch: Annotated[tuple[str, ...], Option("OPTION=VALUE", repeat=True)] = ()
    """An option of Slurm's sbatch: --sbatch partition=gpu --sbatch time=4:00:00."""
    out: Annotated[Path | None, Option("DIR", default="(default: runs/ and the file's name)")] = None
    """The folder of the runs, one folder each; results go to DIR/results."""
    workers: int = 0
    """Runs at once; 0: one for each GPU, or for each core where there is none."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    python: bool = False
    """FILE is a Python program: execute it, and take what it assigns to the name `sweep`. Trust it first."""
    time_limit: float = math.inf
    """Stop cleanly after this many seconds, to go on later."""
    save_every: float = 60.0
    """Seconds between two checkpoints of a run."""
    dry_run: bool = False
    """Only show what is done and what is missing."""
    json: bool = False
    """Print how every run ended as one JSON object."""


def run(args: Args) -> int:
    """Runs what is missing and says how it ended."""
    root = args.out or Path("runs") / args.file.stem
    batch = make_jobs(sweepfile.read(args.file, args.python), root, args.save_every)
    options = Options(args.workers, args.device, args.address, args.sbatch)
    engines.check(args.engine, options)
    if args.dry_run:
        return show(batch, root, args.json)
    outcome, status = work(args.engine, root, batch, options, args.time_limit)
    if args.json:
        print_json({"folder": str(root), "ending": outcome.ending, "runs": outcome.facts()})
    else:
        _print(outcome)
    note(ending(outcome, root))
    return status


def make_jobs(sweep: sweepfile.Sweep, root: Path, save_seconds: float) -> list[Job]:
    """The jobs a sweep asks for, in its order."""
    results = str((root / "results").resolve()) if sweep.plan else ""
    return [
        Job(run.folder, run.config, (sweep.plan.fit(run),) if sweep.plan else (), results, save_seconds)
        for run in sweep.runs
    ]


def work(
    engine: str, root: Path, batch: list[Job], options: Options, time_limit: float
) -> tuple[Outcome, int]:
    """Brings jobs to their end under the eyes of a person; also the exit status."""
    drive.check_limit(time_limit)
    if root.exists() and not root.is_dir():
        raise InputError(f"{root} is a file, not a folder for runs")
    for job in batch:
        jobs.check_folder(root, job)
    statuses = [jobs.standing(root, job) for job in batch]
    done = all(status.state == "done" for status in statuses)
    started = None if done else engines.start(engine, root, options)
    note(f"{len(batch)} runs in {root}: {board.totals(statuses)}")
    if started is None:
        return Outcome("complete", tuple(batch), tuple(statuses)), 0
    with Interrupt() as asked:
        outcome = drive.drive(started, batch, watcher=board.watcher(), stop=asked, time_limit_s=time_limit)
    return outcome, asked.status or int(outcome.ending == "failed")


def show(batch: list[Job], root: Path, as_json: bool) -> int:
    """What is done and what is missing."""
    statuses = [jobs.standing(root, job) for job in batch]
    if as_json:
        print_json(
            {"folder": str(root), "runs": [jobs.facts(*pair) for pair in zip(batch, statuses, strict=True)]}
        )
    else:
        print_table(board.COLUMNS, [board.cells(*pair) for pair in zip(batch, statuses, strict=True)])
    note(f"{len(batch)} runs in {root}: {board.totals(statuses)}")
    return 0


def ending(outcome: Outcome, root: Path) -> str:
    """How it ended, and how to go on."""
    said = f"{outcome.ending}: {board.totals(outcome.statuses)}; wrote {root}"
    return said if outcome.ending == "complete" else f"{said}; the same command does what is missing"


def _print(outcome: Outcome) -> None:
    rows = [board.cells(*pair) for pair in zip(outcome.batch, outcome.statuses, strict=True)]
    print_table(board.COLUMNS, rows)
