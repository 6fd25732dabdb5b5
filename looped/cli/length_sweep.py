"""`looped bench ladder`: how far past its training length a model is exact; `looped.bench.ladder` says what that means.

$ looped bench ladder runs/copy-fop-loop-adaptive-long
run                                   seeds  trained  paper  inputs        stop       L99   L999  L99 ended by
copy-fop-loop-adaptive-long@1f0c9a3e      5       19     35  uniform       oracle     …
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from looped.bench.ladder import table
from looped.bench.ladder.climb import Done
from looped.bench.ladder.record import Record
from looped.bench.ladder.words import Request, line, measure, show_table
from looped.cli.arguments import Positional
from looped.cli.output import note, print_json, print_table


@dataclass(frozen=True, kw_only=True)
class Args(Request):
    """Climb the length ladder: the longest lengths at which every seed is exact, and what ends it."""

    runs: Annotated[tuple[Path, ...], Positional("RUN…")] = ()
    """Folders of runs, or files such as runs/x/seed-0.safetensors; those that differ in seeds alone are one model."""


def run(args: Args) -> int:
    """Measures what is missing, then prints everything once."""
    if args.table:
        print(show_table(args))
        return 0
    record, ended = _measured(args)
    data = record.as_dict()
    if args.json:
        print_json(data)
    else:
        print_table(*table.reach_table(data["ladder"]))
        if data["steps"]:
            print()
            print_table(*table.steps_table(data["steps"]))
    if not ended:
        note("left off at the limit; the same command again goes on")
    note(f"wrote {args.out}")
    return 0


def _measured(args: Args) -> tuple[Record, bool]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        bars = {}

        def started(record: Record, keys: Sequence[str]) -> None:
            for key in keys:
                rungs = len(record.runs[key]["lengths"]) * len(record.runs[key]["families"])
                bars[key] = progress.add_task(key, total=rungs)

        def done(rung: Done) -> None:
            progress.advance(bars[rung.key])
            if sys.stderr.isatty():
                console.print(line(rung), markup=False, highlight=False)

        return measure(args, on_rung=done, on_start=started)
