"""Measurements of this program beside its peers, both sides in one run: speed, memory, equality of its paths.

    looped bench train --task copy --seeds 5 --json                from a checkout; the peer needs transformers
    python -m benchmarks suite --out results.jsonl --limit 150     everything, a line each

A bench is one row of `BENCHES` and one module with two functions: `measure(…)` takes options by name and gives the
measured values of both sides as a dict that JSON can hold, with `"speedup"` where one side is faster; `table(measured)`
gives the columns and rows that a person reads. What was asked and where it was measured is added here, so that
`--json` is a line of `results/performance.jsonl` as it stands.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Annotated, Any

from looped.cli.arguments import Positional
from looped.errors import InputError
from looped.output import print_json, print_table

Measured = dict[str, Any]
Table = tuple[Sequence[str], list[Sequence[object]]]

# name → (module, summary)
BENCHES: dict[str, tuple[str, str]] = {
    "train": ("benchmarks.train", "a gradient step against the ordinary way, last curriculum stage"),
    "scale": ("benchmarks.scale", "cost of a seed against the number of seeds stacked"),
    "equal": ("benchmarks.equal", "the fast paths against the plain one: losses and accuracies"),
    "memory": ("benchmarks.memory", "memory against the number of loop steps"),
    "infer": ("benchmarks.infer", "answers per second with and without early exit; cost against length"),
    "solve": ("benchmarks.solve", "questions of mixed length together, one by one, and a command each"),
    "survive": (
        "benchmarks.robustness",
        "a compiled program after noise and a short training, at 1, 2 and 5 times it",
    ),
    "rasp": ("benchmarks.rasp_operations", "n-RASP-L operations against plain double loops, n = 256"),
}


MOST = 1_000_000  # of anything that an option counts


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What may be asked of a bench; None leaves it to the bench, which need not take every option."""

    task: str | None = None
    """Which task."""
    seeds: int | None = None
    """How many seeds are trained side by side; for `scale`, the most."""
    device: str | None = None
    """auto, cpu, cuda or cuda:N."""
    precision: str | None = None
    """Of matrix products: fp32, bf16, or auto (bf16 on CUDA, fp32 on the CPU)."""
    steps: int | None = None
    """Gradient steps that are timed, or compared by `equal`."""
    peer_steps: int | None = None
    """Gradient steps of the peer that are timed; 0 leaves the peer out."""
    train_steps: int | None = None
    """Gradient steps of the short training that `equal`, `infer` and `survive` measure the result of."""
    samples: int | None = None
    """Problems that are answered."""
    model: str | None = None
    """For `infer`, a checkpoint (runs/x/seed-0.safetensors) instead of a short training; for `solve`, any model."""
    length: int | None = None
    """The longest problem; the paper's training length unless given."""
    width: int | None = None
    """Of the model; the paper's 256 unless given."""
    batch: int | None = None
    """Problems per gradient step; the paper's 64 unless given."""
    block: str | None = None
    """For `train`, a block of yours, FILE.py:Name, in the place of ours."""


@dataclass(frozen=True, kw_only=True)
class BenchArgs(BenchOptions):
    """Measure this program against its peers, in one run. Not every bench takes every option."""

    name: Annotated[str, Positional("NAME")]
    """Which bench: train, scale, equal, memory, infer, solve, survive or rasp; `ladder`, a length sweep,
    and `chomsky`, the fifteen tasks of that suite, have a help of their own."""
    json: bool = False
    """One JSON object: measured values of both sides, "speedup", and how it was measured."""


def run_bench(args: BenchArgs) -> int:
    """`looped bench`: measure and print."""
    measured = measure(args.name, args)
    if args.json:
        print_json(measured)
        return 0
    columns, rows = table(measured)
    print_table(columns, rows, title=BENCHES[args.name][1])
    if "speedup" in measured:
        print(f"speedup {measured['speedup']:.1f}")
    return 0


def measure(name: str, options: BenchOptions) -> Measured:
    """Run a bench with the options that were given, and say so; raises if it does not take one of them."""
    if name not in BENCHES:
        raise InputError(f"unknown bench {name[:40]!r}; the benches are {', '.join(BENCHES)}")
    given = {f.name: getattr(options, f.name) for f in fields(BenchOptions)}
    given = {key: value for key, value in given.items() if value is not None}
    function = import_module(BENCHES[name][0]).measure
    takes = inspect.signature(function).parameters
    known = [f.name for f in fields(BenchOptions) if f.name in takes]
    for key in given:
        if key not in known:
            others = ", ".join(map(_flag, known)) or "none of the options"
            raise InputError(f"the bench {name} takes no {_flag(key)}; it takes {others}")
        if isinstance(given[key], int) and not 0 <= given[key] <= MOST:
            raise InputError(f"{_flag(key)} must be from 0 to {MOST:,}, not {given[key]:,}")
    began = time.monotonic()
    measured = {"bench": name, **function(**given)}
    seconds = round(time.monotonic() - began, 2)
    device = given.pop("device", takes["device"].default if "device" in takes else "cpu")
    return {**measured, "options": given, "provenance": _provenance(name, given, device, seconds)}


def table(measured: Measured) -> Table:
    """Columns and rows of what `measure` gave."""
    found: Table = import_module(BENCHES[measured["bench"]][0]).table(measured)
    return found


def _provenance(name: str, options: Measured, device: str, seconds: float) -> Measured:
    import shlex  # here: a list of the benches must not wait for all this
    from datetime import UTC, datetime

    import torch

    from looped import devices

    where = devices.find(device)
    words = [name, *(f"{_flag(key)} {shlex.quote(str(value))}" for key, value in options.items())]
    return {
        **devices.facts(where),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"looped bench {' '.join(words)} --device {where} --json",
        "threads": torch.get_num_threads(),
        "seconds": seconds,
    }


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
