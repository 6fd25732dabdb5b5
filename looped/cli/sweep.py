"""`looped sweep`: many runs from one file, on one backend; the same command again does only what is missing.

$ looped sweep runs.json --out runs/widths
12 runs in runs/widths: 4 done, 8 queued
…
complete: 12 done; wrote runs/widths
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from looped.cli.arguments import Option, Positional
from looped.cli.jobs import COLUMNS, BackendArgs, cells, ending, run_batch, show
from looped.cli.output import note, print_json, print_table
from looped.experiments.plan import SweepFile, read_sweep
from looped.experiments.queue import Job


@dataclass(frozen=True, kw_only=True)
class SweepArgs(BackendArgs):
    """Run many runs. The same command again does what is missing, however the last one ended."""

    file: Annotated[Path, Positional("FILE")]
    """JSON: a list of runs, or a grid of tasks × methods × recipes × settings; docs/scale.md shows both."""
    out: Annotated[Path | None, Option("DIR", default="(default: runs/ and the file's name)")] = None
    """The folder of the runs, one folder each; results go to DIR/results."""
    python: bool = False
    """FILE is a Python program: execute it, and take what it assigns to the name `sweep`. Trust it first."""
    json: bool = False
    """Print how every run ended as one JSON object."""


def run(args: SweepArgs) -> int:
    """Run what is missing and say how it ended."""
    root = args.out or Path("runs") / args.file.stem
    batch = make_jobs(read_sweep(args.file, args.python), root, args.save_every)
    args.options  # noqa: B018  complains before anything is done
    if args.dry_run:
        return show(batch, root, args.json)
    outcome, status = run_batch(args, root, batch)
    if args.json:
        print_json({"folder": str(root), "ending": outcome.ending, "runs": outcome.facts()})
    else:
        pairs = zip(outcome.batch, outcome.statuses, strict=True)
        print_table(COLUMNS, [cells(*pair) for pair in pairs])
    note(ending(outcome, root))
    return status


def make_jobs(sweep: SweepFile, root: Path, save_seconds: float) -> list[Job]:
    """The jobs a sweep asks for, in its order."""
    results = str((root / "results").resolve()) if sweep.plan else ""
    return [
        Job(run.folder, run.config, (sweep.plan.fit(run),) if sweep.plan else (), results, save_seconds)
        for run in sweep.runs
    ]
