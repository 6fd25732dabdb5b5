"""`looped status` reads how the runs in a folder stand; `looped cancel` asks them to save and stop.

$ looped status runs/widths
run                                     state    step       loss    measured
copy-fop-loop-adaptive-quick-0b6a1f22   done     1000/1000  0.0021       1/1
copy-fop-loop-adaptive-quick-9c41d07e   running   412/1000  0.0830       0/1
$ looped cancel runs/widths
stopped: 1 done, 1 cancelled; the command that started them goes on from there

Workers of a sweep hear a cancel on any machine, and so does `looped train`; `python -m looped.training` on a bare
machine takes signals alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from looped.cli.arguments import Option, Positional
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


def run_status(args: StatusArgs) -> int:
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


POLL_S = 0.2


@dataclass(frozen=True)
class CancelArgs:
    """Stop the runs in a folder; each saves first, and the command that started them goes on from there."""

    folder: Annotated[Path, Positional("DIR")]
    """The folder of the runs."""
    wait: Annotated[float, Option("SECONDS")] = 60.0
    """Seconds to wait until all have stopped."""
    json: bool = False
    """Print how everything stands then, as one JSON object."""


def run_cancel(args: CancelArgs) -> int:
    """Ask, and wait; exit status 1 if something still runs."""
    if not args.wait >= 0:
        raise InputError(f"--wait must be 0 seconds or more, not {args.wait:g}")
    found, problems = queue.jobs_in(args.folder)
    for problem in problems:
        note(f"looped: {problem}")
    if not found:
        raise InputError(f"{args.folder} holds no runs")
    queue.cancel(args.folder)
    deadline = time.monotonic() + args.wait
    while True:
        statuses = [queue.status_of(args.folder, job) for job in found]
        running = sum(status.state == "running" for status in statuses)
        if not running or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    if args.json:
        rows = list(map(queue.facts, found, statuses))
        print_json({"folder": str(args.folder), "running": running, "runs": rows})
    verdict = f"{running} still running" if running else "stopped"
    note(f"{verdict}: {totals(statuses)}; the command that started them goes on from there")
    return int(running > 0)
