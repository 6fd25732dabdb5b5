"""`looped discover`: which T(n) trained models have found by themselves.

$ looped discover runs/parity-free --lengths 5,10,20 --samples 640
run          length  T(n)  first right  held from  held    stop       exact   steps  random exit
parity-free       5     5          4.0        5.0  1.0000  converged  1.0000    8.0       0.6671
…

A model that was never told T(n) is right from some step on, if it is right at all: `held from` is that step, the mean
over the examples (`held` is their share) that stay right to the end. Several seeds: their mean.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from looped import checkpoints, devices, provenance
from looped.commands import note, print_json, print_table
from looped.errors import InputError
from looped.evaluation.discovery import discover
from looped.evaluation.measure import check
from looped.evaluation.statistics import over_seeds
from looped.experiments.plan import LARGEST_SEED, Precision, parse_lengths
from looped.experiments.results import Loaded, load
from looped.experiments.spec import variant


@dataclass(frozen=True)
class Args:
    """Find out from which loop step on trained models are right, by length, and what their stopping is worth."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs (all their seeds), or single files such as runs/x/seed-0.safetensors."""
    lengths: str = "1:20"
    """Lengths: 1:20 (with both ends), 10:100:10 (every tenth), or 10,20,40."""
    samples: int = 640
    """Problems a length."""
    stop: tuple[str, ...] = ()
    """Stopping rules; unless given, the one that suits how a model was trained."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """Of the weights and states."""
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
        raise InputError("looped discover needs a RUN: a run's folder or a checkpoint of one seed")
    start = time.monotonic()
    loaded = [load(path, device, args.precision) for path in args.runs]
    for each in loaded:
        check(each.subject, lengths, args.samples, stops=stops_of(args, each), family="uniform")
    found = [_found(args, each, lengths) for each in loaded]
    result = {
        "provenance": {
            **provenance.facts(device),
            "precision": args.precision,
            "wall_seconds": round(time.monotonic() - start, 3),
            "runs": [each.origin() for each in loaded],
        },
        "rows": [row for rows in found for row in rows],
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


def _found(args: Args, loaded: Loaded, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of a run, with its variant's name where it is one."""
    named = variant(loaded.seeds[0].config)
    rows = [
        row
        for length in lengths
        for row in discover(
            loaded.subject, length, args.samples, seed=args.seed, stops=stops_of(args, loaded)
        )
    ]
    return [{**row, "variant": named} for row in rows] if named else rows


def stops_of(args: Args, loaded: Loaded) -> tuple[str, ...]:
    """The rules asked for, or the one for models trained like this."""
    return args.stop or loaded.seeds[0].config.stops


def _print(found: Sequence[Sequence[dict[str, Any]]], paths: Sequence[Path]) -> None:
    """A line for each run, length and rule; means over seeds."""
    names = [
        "run",
        "length",
        "T(n)",
        "first right",
        "held from",
        "held",
        "stop",
        "exact",
        "steps",
        "random exit",
    ]
    lines: list[list[object]] = []
    for path, rows in zip(paths, found, strict=True):
        groups: dict[tuple[int, str], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault((row["length"], row["stop"]), []).append(row)
        for (length, stop), group in groups.items():
            first, held_from = (_mean(group, name, 2) for name in ("first_right", "held_from"))
            held, exact = _mean(group, "held", 4), _mean(group, "accuracy", 4)
            steps, control = _mean(group, "mean_steps", 2), _mean(group, "random_exit", 4)
            needed = group[0]["needed"]
            lines.append([path.name, length, needed, first, held_from, held, stop, exact, steps, control])
    print_table(names, lines)


def _mean(group: Sequence[dict[str, Any]], field: str, digits: int) -> str:
    values = [row[field] for row in group if row[field] is not None]
    return f"{over_seeds(values).mean:.{digits}f}" if values else "–"
