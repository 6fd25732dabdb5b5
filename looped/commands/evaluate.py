"""`looped evaluate`: how often trained models are exactly right, by length and stopping rule.

$ looped evaluate runs/copy-fop-loop-adaptive-quick --lengths 10,20 --samples 640
run                           length  stop    family   exact            steps
copy-fop-loop-adaptive-quick      10  oracle  uniform  1.0000 ± 0.0000   10.0
copy-fop-loop-adaptive-quick      20  oracle  uniform  0.9891 ± 0.0047   20.0

Several seeds: mean ± standard error. A single seed: Wilson's 95 % interval.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from looped import checkpoints, devices, provenance
from looped.commands import note, print_json, print_table
from looped.errors import InputError
from looped.evaluation.measure import Row, check, measure
from looped.evaluation.statistics import over_seeds, wilson
from looped.experiments.plan import LARGEST_SEED, Precision, parse_lengths
from looped.experiments.results import Loaded, load
from looped.zoo import shelf


@dataclass(frozen=True)
class Args:
    """Measure trained models: the share of whole answers that are right, on fresh random problems."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs (all their seeds), single files such as runs/x/seed-0.safetensors, or shipped models by name."""
    lengths: str = "1:60"
    """Lengths: 1:60 (with both ends), 10:100:10 (every tenth), or 10,20,40."""
    samples: int = 6400
    """Problems a length."""
    stop: tuple[str, ...] = ("oracle",)
    """Stopping rules: oracle, confidence, confidence-batch, threshold, threshold=0.001, converged=5, …"""
    family: tuple[str, ...] = ("uniform",)
    """Input families: uniform, zeros, ones, repeated, p=0.05, …; `looped tasks --json` lists each task's."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """Of the weights and states; bf16 is how CUDA trains, and several times faster there."""
    seed: int = 0
    """Of the test problems."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.json", help_behavior_hint="")] = None
    """Also write the rows and where they come from to this JSON file."""
    json: bool = False
    """Print the rows and where they come from as one JSON object."""


def run(args: Args) -> int:
    """Measures everything asked for, then prints it once."""
    lengths, device = parse_lengths(args.lengths), devices.pick(args.device)
    if not 0 <= args.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {args.seed}")
    if args.out is not None and (args.out.is_dir() or not args.out.parent.is_dir()):
        raise InputError(f"--out must name a file in a folder that exists, not {args.out}")
    if not args.runs:
        raise InputError("looped evaluate needs a RUN: a run's folder or a checkpoint of one seed")
    start = time.monotonic()
    loaded = [load(_found(path), device, args.precision) for path in args.runs]
    for each in loaded:  # all complaints before any work
        for family in args.family:
            check(each.subject, lengths, args.samples, stops=args.stop, family=family)
    found = _measured(args, loaded, lengths)
    result = {
        "provenance": {
            **provenance.facts(device),
            "precision": args.precision,
            "wall_seconds": round(time.monotonic() - start, 3),
            "runs": [each.origin() for each in loaded],
        },
        "rows": [row.as_dict() for rows in found for row in rows],
    }
    if args.out is not None:
        checkpoints.write(args.out, (json.dumps(result, indent=1) + "\n").encode())
    if args.json:
        print_json(result)
    else:
        _print(found, args.runs)
    if args.out is not None:
        note(f"wrote {args.out}")
    return 0


def _found(path: Path) -> Path:
    """The file of a shipped model where its name is given; anything else as it is."""
    name = None if path.exists() or len(path.parts) > 1 else shelf.find(str(path))
    return path if name is None else shelf.path(name)


def _measured(args: Args, loaded: Sequence[Loaded], lengths: Sequence[int]) -> list[list[Row]]:
    """The rows of each run."""
    from rich.console import Console
    from rich.progress import Progress

    found: list[list[Row]] = []
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        for each in loaded:
            rows: list[Row] = []
            for family in args.family:
                bar = progress.add_task(f"{each.path.name} {family}", total=len(lengths))
                rows += measure(
                    each.subject, lengths, args.samples, seed=args.seed, stops=args.stop, family=family,
                    on_progress=lambda _, bar=bar: progress.advance(bar),  # type: ignore[misc]
                )  # fmt: skip
            found.append(rows)
    return found


def _print(found: Sequence[Sequence[Row]], paths: Sequence[Path]) -> None:
    """A line for each run, length, rule and family; seeds as mean and error."""
    lines: list[list[object]] = []
    for path, rows in zip(paths, found, strict=True):
        groups: dict[tuple[int, str, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row.length, row.stop, row.family), []).append(row)
        lines += [
            [path.name, *key, _exact(group), round(over_seeds([row.mean_steps for row in group]).mean, 2)]
            for key, group in groups.items()
        ]
    print_table(["run", "length", "stop", "family", "exact", "steps"], lines)


def _exact(group: Sequence[Row]) -> str:
    spread = over_seeds([row.accuracy for row in group])
    if spread.error is not None:
        return f"{spread.mean:.4f} ± {spread.error:.4f}"
    low, high = wilson(group[0].accuracy, group[0].samples)
    return f"{spread.mean:.4f} ({low:.4f} to {high:.4f})"
