"""`looped figure`: draws from files of results alone; no model, no torch.

$ looped figure results/parity.json results/copy.json --out accuracy.svg
wrote accuracy.svg
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json
from looped.errors import InputError


@dataclass(frozen=True)
class FigureArgs:
    """Draw results: accuracy by length or loop step, a run's training, a length sweep, or learned halting."""

    results: Annotated[tuple[Path, ...], Positional("RESULTS…")]
    """Files of rows, as `looped evaluate --out` writes them; for --kind training, a run's metrics.jsonl."""
    out: Annotated[Path, Option("FILE.svg")]
    """Where to write: .svg, .png or .pdf."""
    kind: Literal["auto", "length", "step", "training", "ladder", "halting"] = "auto"
    """What lies across: the length, the loop step, or the gradient step; auto asks the rows. `ladder`: a length sweep;
    halting: learned halting, from the rows of `looped discover`."""
    title: str = ""
    """Above the figure."""
    stop: Annotated[tuple[str, ...], Option("RULE…")] = ()
    """Only rows of these stopping rules."""
    json: bool = False
    """Print what was drawn as one JSON object."""


def run(args: FigureArgs) -> int:
    """Read, draw, write."""
    from looped import figures  # matplotlib takes a second to load

    if not args.results:
        raise InputError("looped figure needs a file of results to draw")
    kind = args.kind
    sweeps = figures.read_length_sweeps(args.results) if kind == "ladder" else None
    if kind == "auto":
        with contextlib.suppress(InputError):  # then they are something else
            sweeps = figures.read_length_sweeps(args.results)
    if sweeps is not None:
        kind, rows, figure = "ladder", sweeps, figures.length_sweep(sweeps, args.title)
    elif kind == "training" or (kind == "auto" and {path.name for path in args.results} == {"metrics.jsonl"}):
        rows = [row for path in args.results for row in figures.read_metrics(path)]
        kind, figure = "training", figures.training(rows, args.title)
    else:
        rows, trained = figures.read_rows(args.results)
        if args.stop:
            rows = [row for row in rows if row.get("stop") in args.stop]
            if not rows:
                raise InputError(f"there are no rows of the stopping rules {', '.join(args.stop)}")
        if kind == "auto":
            kind = "step" if "step" in rows[0] else "length"
            kind = "halting" if all(map(figures.is_halting, rows)) else kind
        if kind == "step":
            figure = figures.by_step(rows, args.title)
        else:
            draw = figures.halting if kind == "halting" else figures.accuracy_by_length
            figure = draw(rows, trained, args.title)
    figures.save(figure, args.out)
    if args.json:
        print_json({"out": str(args.out), "kind": kind, "rows": len(rows)})
    note(f"wrote {args.out}")
    return 0
