"""`looped evaluate`: how often trained models are exactly right, by length and stopping rule.

$ looped evaluate runs/copy-fop-loop-adaptive-quick --lengths 10,20 --samples 640
run                           length  stop    family   exact            steps
copy-fop-loop-adaptive-quick      10  oracle  uniform  1.0000 ± 0.0000   10.0
copy-fop-loop-adaptive-quick      20  oracle  uniform  0.9891 ± 0.0047   20.0

Several seeds: mean ± standard error. A single seed: Wilson's 95 % interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from looped.cli.measuring import Shared, ready
from looped.cli.output import print_table
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.loading import LoadedRun
from looped.evaluation.measure import Row, check, measure
from looped.evaluation.statistics import over_seeds, wilson


@dataclass(frozen=True)
class EvaluateArgs(Shared):
    """Measure trained models: the share of whole answers that are right, on fresh random problems."""

    stop: tuple[str, ...] = ("oracle",)
    """Stopping rules: oracle, confidence, confidence-batch, threshold, threshold=0.001, converged=5, …"""
    family: tuple[str, ...] = ("uniform",)
    """Input families: uniform, zeros, ones, repeated, p=0.05, mixed+carry, …; `looped tasks --json` lists them."""


def run(args: EvaluateArgs) -> int:
    """Measures everything asked for, then prints it once."""
    asked = ready(args, "evaluate")
    stops, families = stopping.distinct(args.stop), tuple(dict.fromkeys(args.family))
    if not families:
        raise InputError("--family must name at least one input family, such as uniform")
    for each in asked.loaded:  # all complaints before any work
        for family in families:
            check(each.subject, asked.lengths, args.samples, stops=stops, family=family)

    def one(loaded: LoadedRun, family: str, length: int) -> list[Row]:
        return measure(loaded.subject, [length], args.samples, seed=args.seed, stops=stops, family=family)

    return asked.deliver(asked.gather(one, families), Row.as_dict, lambda found: _print(found, args.runs))


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
