"""`looped verify`: a model measured by the leaderboard's protocol, as a row that the same command gives again.

$ looped verify parity-paper
length  questions  right   worst distribution
    20        144  1.0000  uniform 1.0000
   …
parity-paper: exact to 40 on every input distribution; 71 of 71 edge cases right; fewer than 90% …
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from looped import checkpoints, devices, registry, tasks
from looped.cli.arguments import Option, OwnPart, Positional
from looped.cli.output import note, print_json, print_table
from looped.errors import InputError
from looped.evaluation.loading import parse_lengths
from looped.evaluation.measure import check_samples
from looped.registry import NamedParts
from looped.solve import load
from looped.solve.verify import SAMPLES, Entrant, of_adapter, of_solver, verify

QUICK = 16  # questions of each length and distribution where --lengths is given alone


@dataclass(frozen=True)
class VerifyArgs:
    """Measure a model by the leaderboard's protocol: fixed questions of 20 to 1,000 symbols from every input
    distribution, exact match, edge cases. Takes one to ten minutes on two cores; a model that fails takes less."""

    model: Annotated[str, Positional("MODEL")]
    """A shipped model's name, TASK-compiled, a run's folder (its first seed), a checkpoint's file, a published model
    (its folder, or hub:OWNER/NAME), or FILE.py:Name, a callable from a question's tokens to the answer's."""
    task: Annotated[str | None, Option("TASK", default="")] = None
    """What is asked; FILE.py:Name of a model needs it, other models have their own."""
    name: Annotated[str | None, Option("NAME", default="")] = None
    """The model's name in the row; by default as it was given."""
    lengths: Annotated[str, Option("LENGTHS", default="")] = ""
    """Other lengths than the protocol's, for a quick try: 20,40; such a row is not listed."""
    samples: Annotated[int | None, Option("N", default="")] = None
    """Questions of each length and input distribution; such a row is not listed."""
    out: Annotated[Path | None, Option("FILE.json", default="")] = None
    """Also write the row, and how it was measured, to this file."""
    method: OwnPart = ()
    """A method of your own that the model was trained by."""
    block: OwnPart = ()
    """A block of your own that the model was trained with."""
    json: bool = False
    """Print the row, and how it was measured, as one JSON object."""


def run(args: VerifyArgs) -> int:
    """Measure on the CPU and print."""
    plan = _plan(args)
    if args.out is not None:
        checkpoints.check_writable(args.out)
    given = NamedParts(method=args.method, block=args.block)
    entrant = _entrant(args)
    given.check()
    began = time.monotonic()
    lines: list[tuple[object, ...]] = []

    def on_length(length: int, right: dict[str, int], count: int) -> None:
        worst = min(right, key=lambda family: right[family])
        share = sum(right.values()) / (count * len(right))
        lines.append((length, count * len(right), f"{share:.4f}", f"{worst} {right[worst] / count:.4f}"))
        note(f"length {length}: {share:.4f} right after {time.monotonic() - began:.0f} s")

    row = verify(entrant, plan, on_length)
    measured = {"seconds": round(time.monotonic() - began, 1), **devices.facts("cpu")}
    told = {"row": row, "measured": measured}
    if args.out is not None:
        checkpoints.write(args.out, (json.dumps(told, indent=1) + "\n").encode())
    if args.json:
        print_json(told)
        return 0
    print_table(("length", "questions", "right", "worst distribution"), lines)
    print(_sentence(row))
    return 0


def _plan(args: VerifyArgs) -> dict[int, int] | None:
    """Questions by length where they are not the protocol's."""
    if not args.lengths and args.samples is None:
        return None
    if args.samples is not None:
        check_samples(args.samples)
    lengths = parse_lengths(args.lengths) if args.lengths else list(SAMPLES)
    return dict.fromkeys(lengths, args.samples or QUICK)


def _entrant(args: VerifyArgs) -> Entrant:
    task = None if args.task is None else tasks.get(registry.resolve("task", args.task))
    file, colon, _ = args.model.rpartition(":")
    if colon and file.endswith(".py"):
        if task is None:
            raise InputError(f"{args.model} is not ours, so name what it is asked: --task TASK")
        adapter = registry.find("model", registry.resolve("model", args.model))
        return of_adapter(adapter, Path(file), args.name or args.model, task)
    solver = load(args.model)
    if task is not None and solver.task is not task:
        raise InputError(f"{args.model} is a model for {solver.task.name}, not for {task.name}")
    return of_solver(solver, args.name or solver.name)


def _sentence(row: dict[str, Any]) -> str:
    edges, held = row["edge_cases"], row["exact_to"]
    exact = f"exact to {held} on every input distribution" if held else "not exact at any length"
    ended = f"; ended because {row['ended']}" if row["ended"] else ""
    listed = "" if row["listed"] else f"; not for the leaderboard: {row['not_listed']}"
    return f"{row['model']}: {exact}; {edges['right']} of {edges['of']} edge cases right{ended}{listed}"
