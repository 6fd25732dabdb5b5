"""`looped bench`: this program measured against its peers, both in one run. Knows where each bench lives.

A bench is one row of `BENCHES` and one module with two functions: `measure()` gives the measured values of
both sides and `"speedup"` as a dict, `table(measured)` gives the columns and rows that a person reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Annotated

import tyro

from looped.commands import print_json, print_table
from looped.errors import InputError

# name → (module, summary)
BENCHES: dict[str, tuple[str, str]] = {
    "rasp": ("looped.rasp.bench", "n-RASP-L operations against plain double loops, n = 256"),
}


@dataclass(frozen=True)
class Args:
    """Measure this program against its peers, in one run."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """Which bench: rasp."""
    json: bool = False
    """One JSON object: measured values of both sides and "speedup"."""


def run(args: Args) -> int:
    """Measures and prints."""
    if args.name not in BENCHES:
        raise InputError(f"unknown bench {args.name[:40]!r}; the benches are {', '.join(BENCHES)}")
    module_name, summary = BENCHES[args.name]
    module = import_module(module_name)
    measured: dict[str, object] = module.measure()
    if args.json:
        print_json({"bench": args.name, **measured})
        return 0
    columns, rows = module.table(measured)
    print_table(columns, rows, title=summary)
    print(f"speedup {measured['speedup']:.1f}")
    return 0
