"""`looped status`: how the runs in a folder stand, read from their files alone.

$ looped status runs/widths
run                                     state    step       loss    measured
copy-fop-loop-adaptive-quick-0b6a1f22   done     1000/1000  0.0021       1/1
copy-fop-loop-adaptive-quick-9c41d07e   running   412/1000  0.0830       0/1
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from looped.cli.arguments import Positional
from looped.cli.output import note, print_json, print_table
from looped.cli.sweep import COLUMNS, cells, totals
from looped.errors import InputError
from looped.experiments import queue
from looped.experiments.queue import Job, Status


@dataclass(frozen=True)
class StatusArgs:
    """Show how runs stand: queued, running, done, interrupted, cancelled, or failed with the reason."""

    folder: Annotated[Path, Positional("DIR")]
    """The folder of the runs: that of a sweep, or `runs`."""
    json: bool = False
    """Print one JSON object for each run."""


def run(args: StatusArgs) -> int:
    """Read and print; exit status 1 if a run has failed or cannot be read."""
    found, problems = queue.jobs_in(args.folder)
    if not found and not problems:
        raise InputError(f"{args.folder} holds no runs")
    known: list[tuple[Job, Status]] = []
    for job in found:
        try:
            known.append((job, queue.status_of(args.folder, job)))
        except InputError as error:  # a damaged result hides no other run
            problems.append(str(error))
    statuses = [status for _, status in known]
    if args.json:
        for job, status in known:
            print_json(queue.facts(job, status))
    else:
        print_table(COLUMNS, [cells(*pair) for pair in known])
    for problem in problems:
        note(f"looped: {problem}")
    note(totals(statuses))
    return int(bool(problems) or any(status.state == "failed" for status in statuses))
