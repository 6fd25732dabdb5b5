"""What `looped evaluate` and `looped discover` share: runs to load, and where what was measured goes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from looped import checkpoints, devices, provenance
from looped.commands import note, print_json
from looped.errors import InputError
from looped.experiments.plan import LARGEST_SEED, Precision, parse_lengths
from looped.experiments.results import Loaded, load
from looped.zoo import shelf


@dataclass(frozen=True)
class Shared:
    """The options that both commands have."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs (all their seeds), single files such as runs/x/seed-0.safetensors, or shipped models by name."""
    lengths: str = "1:60"
    """Lengths: 1:60 (with both ends), 10:100:10 (every tenth), or 10,20,40."""
    samples: int = 6400
    """Problems a length."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """Of weights and states: fp32, or the model's own where finer; bf16 is how CUDA trains, and much faster there."""
    seed: int = 0
    """Of the test problems."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.json", help_behavior_hint="")] = None
    """Also write the rows and where they come from to this JSON file."""
    json: bool = False
    """Print the rows and where they come from as one JSON object."""


@dataclass(frozen=True)
class Ready:
    """Everything is there, nothing is measured yet."""

    args: Shared
    lengths: list[int]
    device: torch.device
    loaded: list[Loaded]
    began: float

    def deliver(self, rows: Iterable[object], show: Callable[[], None]) -> None:
        """Writes and prints the rows with where they come from; `show` prints them for people."""
        result = {
            "provenance": {
                **provenance.facts(self.device),
                "precision": self.args.precision,
                "wall_seconds": round(time.monotonic() - self.began, 3),
                "runs": [each.origin() for each in self.loaded],
            },
            "rows": list(rows),
        }
        out = self.args.out
        if out is not None:
            checkpoints.write(out, (json.dumps(result, indent=1) + "\n").encode())
        if self.args.json:
            print_json(result)
        else:
            show()
        if out is not None:
            note(f"wrote {out}")


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
    began = time.monotonic()
    return Ready(
        args, lengths, device, [load(_found(path), device, args.precision) for path in args.runs], began
    )


def _found(path: Path) -> Path:
    """The file of a shipped model where its name is given; anything else as it is."""
    name = None if path.exists() or len(path.parts) > 1 else shelf.find(str(path))
    return path if name is None else shelf.path(name)
