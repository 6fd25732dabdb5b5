"""How fast, how large, how equal: measurements of this program beside its peers, both sides in one run.

    python -m looped.bench train --task copy --seeds 5 --json      needs torch; the peer needs transformers too
    looped bench train --task copy --seeds 5                       the same, as a table

A bench is one row of `BENCHES` and one module with two functions: `measure(…)` takes options by name and gives the
measured values of both sides as a dict that JSON can hold, with `"speedup"` where one side is faster; `table(measured)`
gives the columns and rows that a person reads. What was asked and where it was measured is added here, so that
`--json` is a line of `results/performance.jsonl` as it stands. Nothing here knows how results are drawn. The length
ladder, which measures models instead of this program, is a folder of its own with its own words: `looped bench ladder
RUN…`.
"""

from __future__ import annotations

import inspect
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from looped.errors import InputError

Measured = dict[str, Any]
Table = tuple[Sequence[str], list[Sequence[object]]]

# name → (module, summary)
BENCHES: dict[str, tuple[str, str]] = {
    "train": ("looped.bench.train", "a gradient step against the ordinary way, last curriculum stage"),
    "scale": ("looped.bench.scale", "cost of a seed against the number of seeds stacked"),
    "equal": ("looped.bench.equal", "the fast paths against the plain one: losses and accuracies"),
    "memory": ("looped.bench.memory", "memory against the number of loop steps"),
    "infer": ("looped.bench.infer", "answers a second with and without early exit; cost against length"),
    "solve": ("looped.bench.solve", "questions of mixed length together, one by one, and a command each"),
    "survive": (
        "looped.bench.survive",
        "a compiled program after noise and a short training, at 1, 2 and 5 times it",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Options:
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
    """Problems a gradient step; the paper's 64 unless given."""


def measure(name: str, options: Options) -> Measured:
    """Runs a bench with the options that were given, and says so; raises if it does not take one of them."""
    if name not in BENCHES:
        raise InputError(f"unknown bench {name[:40]!r}; the benches are {', '.join(BENCHES)}")
    given = {f.name: getattr(options, f.name) for f in fields(Options)}
    given = {key: value for key, value in given.items() if value is not None}
    function = import_module(BENCHES[name][0]).measure
    takes = inspect.signature(function).parameters
    known = [f.name for f in fields(Options) if f.name in takes]
    for key in given:
        if key not in known:
            others = ", ".join(map(_flag, known)) or "none of the options"
            raise InputError(f"the bench {name} takes no {_flag(key)}; it takes {others}")
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
    import torch  # here: a list of the benches must not wait for it

    from looped import devices, provenance

    where = devices.find(device)
    words = [name, *(f"{_flag(key)} {shlex.quote(str(value))}" for key, value in options.items())]
    return {
        **provenance.facts(where),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"looped bench {' '.join(words)} --device {where} --json",
        "threads": torch.get_num_threads(),
        "seconds": seconds,
    }


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
