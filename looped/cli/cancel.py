"""`looped cancel`: asks every run in a folder to save and stop, on whatever machine it runs.

$ looped cancel runs/widths
stopped: 4 done, 8 cancelled; the command that started them goes on from there

Workers of a sweep hear it, and `looped train`; `python -m looped.training` on a bare machine takes signals alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json
from looped.cli.sweep import totals
from looped.errors import InputError
from looped.experiments import queue
from looped.experiments.queue import Status

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


def run(args: CancelArgs) -> int:
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
        statuses: list[Status] = [queue.status_of(args.folder, job) for job in found]
        running = sum(status.state == "running" for status in statuses)
        if not running or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    if args.json:
        rows = [queue.facts(*pair) for pair in zip(found, statuses, strict=True)]
        print_json({"folder": str(args.folder), "running": running, "runs": rows})
    verdict = f"{running} still running" if running else "stopped"
    note(f"{verdict}: {totals(statuses)}; the command that started them goes on from there")
    return int(running > 0)
