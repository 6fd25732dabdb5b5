"""`looped bench`: this program measured against its peers, both in one run.

The benches are in `benchmarks/`, which lies beside the package in a checkout and is not installed with it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated

from looped.cli.arguments import Positional
from looped.cli.output import print_json, print_table
from looped.errors import InputError


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
    has a help of its own."""
    json: bool = False
    """One JSON object: measured values of both sides, "speedup", and how it was measured."""


def run(args: BenchArgs) -> int:
    """Measure and print."""
    benchmarks = _benchmarks()
    measured = benchmarks.measure(args.name, args)
    if args.json:
        print_json(measured)
        return 0
    columns, rows = benchmarks.table(measured)
    print_table(columns, rows, title=benchmarks.BENCHES[args.name][1])
    if "speedup" in measured:
        print(f"speedup {measured['speedup']:.1f}")
    return 0


def _benchmarks() -> ModuleType:
    try:
        return importlib.import_module("benchmarks")
    except ModuleNotFoundError as error:
        if error.name != "benchmarks":
            raise
        raise InputError(
            "`looped bench` needs a checkout of the repository, where benchmarks/ lies: "
            "run `python -m looped bench NAME` there"
        ) from None
