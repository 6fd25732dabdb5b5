"""`looped discover`: which T(n) trained models have found by themselves.

$ looped discover runs/parity-free --lengths 5,10,20 --samples 640
run          length  T(n)  first right  held from  held    stop       exact   steps  random exit
parity-free       5     5          4.0        5.0  1.0000  converged  1.0000    8.0       0.6671
…

A model that was never told T(n) is right from some step on, if it is right at all: `held from` is that step, the mean
over the examples (`held` is their share) that stay right to the end. Several seeds: their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from looped.cli.arguments import Option
from looped.cli.evaluate import Shared, fitted, ready, rules
from looped.cli.output import print_table
from looped.evaluation.loading import LoadedRun
from looped.evaluation.measure import check
from looped.evaluation.steps import discover
from looped.evaluation.stopping import Rule
from looped.experiments.plan import variant
from looped.result_files import over_seeds
from looped.tasks.families import UNIFORM


@dataclass(frozen=True)
class DiscoverArgs(Shared):
    """Find out from which loop step on trained models are right, by length, and what their stopping is worth."""

    lengths: str = "1:20"
    """1:20 (with both ends), 10:100:10 (every tenth), or 10,20,40."""
    samples: int | None = 640
    """Problems per length."""
    stop: Annotated[tuple[str, ...], Option("RULE…")] = ()
    """Stopping rules; unless given, the one that suits how a model was trained."""


def run(args: DiscoverArgs) -> int:
    """Measure everything asked for, then print it once."""
    asked = ready(args, "discover")
    for each in asked.loaded:  # all complaints before any work
        check(each.subject, asked.lengths, asked.samples, stops=stops_of(args, each), family=UNIFORM)
    asked = fitted(asked, lambda loaded: stops_of(args, loaded))

    def one(loaded: LoadedRun, family: str, length: int) -> list[dict[str, Any]]:
        """Rows of a length, with the variant's name where the run is one."""
        named = variant(loaded.seeds[0].config)
        rows = discover(
            loaded.subject, length, asked.samples, seed=args.seed, stops=stops_of(args, loaded), family=family
        )
        return [{**row, "variant": named} for row in rows] if named else rows

    return asked.deliver(asked.gather(one), dict, lambda found: _print(found, args.runs))


def stops_of(args: DiscoverArgs, loaded: LoadedRun) -> tuple[str | Rule, ...]:
    """The rules asked for, or the one for models trained like this."""
    return rules(args.stop or loaded.seeds[0].config.stops)


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
