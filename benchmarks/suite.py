"""Every measurement of `docs/performance.md` in one go, in order of importance, a JSON line each as it is done.

    {"bench": "train", …measured…, "options": {…}, "provenance": {commit, device, date, seconds, …}}

Nothing is started once the limit has passed; what was left out is said. A line is written whole, so that a run that
is cut off leaves every finished measurement behind. `results/performance.jsonl` is such a file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import benchmarks
from benchmarks import BenchOptions, Measured
from benchmarks.stages import free
from looped import devices, tasks

Job = tuple[str, dict[str, object]]

TINY: dict[str, object] = {"width": 16, "batch": 4}


def run(out: Path, *, device: str = "auto", limit: float = 600.0, small: bool = False) -> list[Measured]:
    """Append a line for each measurement to `out`; the lines."""
    where = devices.pick(device)
    start = time.monotonic()
    lines = []
    for name, options in jobs(where, small):
        label = " ".join([name, *(f"--{key.replace('_', '-')} {value}" for key, value in options.items())])
        if time.monotonic() - start > limit:
            _say(f"left out, no time: {label}")
            continue
        measured = benchmarks.measure(name, BenchOptions(**options, device=str(where)))  # type: ignore[arg-type]
        free(where)
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(measured, allow_nan=False) + "\n")
        _say(
            f"{time.monotonic() - start:6.1f} s  {label}: speedup {measured.get('speedup', float('nan')):.2f}"
        )
        lines.append(measured)
    return lines


def jobs(device: torch.device, small: bool) -> Iterator[Job]:
    """What is measured, most important first; `small` keeps the list and shrinks the sizes."""
    yield from _small_jobs() if small else _cuda_jobs() if device.type == "cuda" else _cpu_jobs()


def _cuda_jobs() -> Iterator[Job]:
    for task in tasks.TASKS:
        yield "train", {"task": task, "seeds": 5}
    yield "memory", {"task": "copy"}
    yield "scale", {"task": "copy", "seeds": 32}
    yield "train", {"task": "copy", "seeds": 1}
    yield "infer", {"task": "copy"}
    yield "equal", {"task": "copy", "seeds": 2, "batch": 16}  # longer than all others together


def _cpu_jobs() -> Iterator[Job]:
    for precision in ("bf16", "fp32"):
        yield "train", {"task": "copy", "seeds": 1, "precision": precision, "steps": 5, "peer_steps": 5}
    quick: dict[str, object] = {"task": "copy", "width": 64}
    yield "scale", {**quick, "seeds": 4, "steps": 3}
    yield "equal", {**quick, "steps": 200, "train_steps": 200, "length": 8}
    yield "memory", {**quick, "batch": 4}
    yield "infer", {**quick, "train_steps": 300, "samples": 512, "length": 1024}


def _small_jobs() -> Iterator[Job]:
    for task in tasks.TASKS:
        yield (
            "train",
            {**TINY, "task": task, "seeds": 2, "length": 3, "steps": 2, "peer_steps": 1, "width": 64},
        )
    yield "equal", {**TINY, "steps": 4, "train_steps": 4, "samples": 8, "length": 4}
    yield "memory", {**TINY, "steps": 20, "length": 6}
    yield "scale", {**TINY, "seeds": 2, "steps": 1, "length": 3}
    yield "infer", {**TINY, "train_steps": 4, "samples": 8, "length": 32}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
