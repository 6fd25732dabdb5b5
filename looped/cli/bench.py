"""`looped bench`: this program measured against its peers, both in one run. The benches are in `looped.bench`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from looped import bench
from looped.bench import BENCHES, Options
from looped.cli.arguments import Positional
from looped.cli.output import print_json, print_table


@dataclass(frozen=True, kw_only=True)
class Args(Options):
    """Measure this program against its peers, in one run. Not every bench takes every option."""

    name: Annotated[str, Positional("NAME")]
    """Which bench: train, scale, equal, memory, infer, solve, survive or rasp; ladder has a help of its own."""
    json: bool = False
    """One JSON object: measured values of both sides, "speedup", and how it was measured."""


def run(args: Args) -> int:
    """Measures and prints."""
    measured = bench.measure(args.name, args)
    if args.json:
        print_json(measured)
        return 0
    columns, rows = bench.table(measured)
    print_table(columns, rows, title=BENCHES[args.name][1])
    if "speedup" in measured:
        print(f"speedup {measured['speedup']:.1f}")
    return 0
