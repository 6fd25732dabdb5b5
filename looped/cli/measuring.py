"""What `looped evaluate` and `looped discover` share: runs to load, the work itself, where what was measured goes.

A bar on a terminal, a line now and then elsewhere, says how far it is; Ctrl-C loses no length that is done.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import torch

from looped import checkpoints, devices, provenance
from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json, progress
from looped.errors import InputError
from looped.evaluation.loading import LARGEST_SEED, LoadedRun, Precision, load, parse_lengths
from looped.registry import resolve
from looped.tasks.families import UNIFORM
from looped.zoo import registry

R = TypeVar("R")  # a row of results
INTERRUPTED = 130  # the exit status


@dataclass(frozen=True)
class Shared:
    """The options that both commands have."""

    runs: Annotated[tuple[Path, ...], Positional("RUN…")]
    """Folders of runs (all their seeds), single files such as runs/x/seed-0.safetensors, or shipped models by name."""
    lengths: str = "1:60"
    """Lengths: 1:60 (with both ends), 10:100:10 (every tenth), or 10,20,40."""
    samples: int = 6400
    """Problems a length."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """Of products: fp32, or the model's own where finer; bf16; or trained, as in training (bf16 on CUDA)."""
    seed: int = 0
    """Of the test problems."""
    out: Annotated[Path | None, Option("FILE.json", default="")] = None
    """Also write the rows and where they come from to this JSON file."""
    json: bool = False
    """Print the rows and where they come from as one JSON object."""
    block: Annotated[str, Option("FILE.py:Name", default="")] = ""
    """The user's own block that the runs were trained with."""


@dataclass(frozen=True)
class Harvest(Generic[R]):
    """What was measured: the rows of each run, and whether somebody had enough before the end."""

    rows: list[list[R]]
    interrupted: bool


@dataclass(frozen=True)
class Ready:
    """Everything is there, nothing is measured yet."""

    args: Shared
    lengths: list[int]
    device: torch.device
    loaded: list[LoadedRun]
    began: float

    def gather(
        self, measure: Callable[[LoadedRun, str, int], list[R]], families: Sequence[str] = (UNIFORM,)
    ) -> Harvest[R]:
        """Measures every run on every family and length; what is done when Ctrl-C comes is kept."""
        rows: list[list[R]] = [[] for _ in self.loaded]
        parts = list(itertools.product(range(len(self.loaded)), families, self.lengths))
        try:
            with progress(len(parts)) as bar:
                for i, family, length in parts:
                    rows[i] += measure(self.loaded[i], family, length)
                    named = self.args.runs[i].name + ("" if family == UNIFORM else f" {family}")
                    bar.done(f"{named}: length {length}")
        except KeyboardInterrupt:
            if not any(rows):
                raise
            return Harvest(rows, interrupted=True)
        return Harvest(rows, interrupted=False)

    def deliver(
        self, found: Harvest[R], as_json: Callable[[R], dict[str, Any]], show: Callable[[list[list[R]]], None]
    ) -> int:
        """Writes and prints the rows with where they come from, for people by `show`; the exit status."""
        result = {
            "provenance": {
                **provenance.facts(self.device),
                "precision": self.args.precision,
                "wall_seconds": round(time.monotonic() - self.began, 3),
                "runs": [each.origin() for each in self.loaded],
                **({"interrupted": True} if found.interrupted else {}),
            },
            "rows": [as_json(row) for rows in found.rows for row in rows],
        }
        if self.args.json:
            print_json(result)
        else:
            show(found.rows)
        if (out := self.args.out) is not None:  # last: a full disk loses no row
            if found.interrupted and out.exists():  # what was measured whole stays
                out = out.with_name(f"{out.name}.partial")
            checkpoints.write(out, (json.dumps(result, indent=1) + "\n").encode())
            note(f"wrote {out}")
        if found.interrupted:
            note("looped: interrupted; this is what was measured until then")
        return INTERRUPTED if found.interrupted else 0


def ready(args: Shared, command: str) -> Ready:
    """Complains about bad options, then loads the runs."""
    lengths, device = parse_lengths(args.lengths), devices.pick(args.device)
    if not 0 <= args.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {args.seed}")
    if args.out is not None and (args.out.is_dir() or not args.out.parent.is_dir()):
        raise InputError(f"--out must name a file in a folder that exists, not {args.out}")
    if args.out is not None:
        checkpoints.check_writable(args.out)
    if not args.runs:
        raise InputError(f"looped {command} needs a RUN: a run's folder or a checkpoint of one seed")
    if args.block:
        resolve(args.block)
    began = time.monotonic()
    return Ready(
        args, lengths, device, [load(_found(path), device, args.precision) for path in args.runs], began
    )


def _found(path: Path) -> Path:
    """The file of a shipped model where its name is given; anything else as it is."""
    name = None if path.exists() or len(path.parts) > 1 else registry.find(str(path))
    return path if name is None else registry.path(name)
