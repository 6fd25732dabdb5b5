"""`looped demo`: the newcomer's minute. Trains two small models on short inputs and asks them long ones.

$ looped demo
length  as often as the input is long  always 10 times
    10                         1.0000           0.4150  trained to here
   100                         1.0000           0.0000  10×
…
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from looped.commands import note, print_json, print_table
from looped.errors import InputError

if TYPE_CHECKING:  # torch is loaded when the demo starts, not when its help is asked for
    from looped.demo import Contestant
    from looped.evaluation.measure import Row


@dataclass(frozen=True)
class Args:
    """Train on short inputs, hold on long ones, draw it: a minute on two CPU cores."""

    out: Path = Path("demo")
    """The folder for the pictures and the two runs; the same command again goes on from there."""
    seconds: float = 90.0
    """The most that training may take, for both models together."""
    samples: int = 100
    """Problems a length in the exam at the end."""
    steps: int = 0
    """Gradient steps of each model; 0: the recipe's."""
    json: bool = False
    """Print what came out as one JSON object."""


def run(args: Args) -> int:
    """Programs, training, exam, picture."""
    if args.seconds <= 0 or args.samples < 1 or args.steps < 0:
        raise InputError("--seconds and --samples must be above 0, and --steps must not be below it")
    from looped import demo, display, figures
    from looped.training.interrupt import Interrupt

    args.out.mkdir(parents=True, exist_ok=True)
    note("The six n-RASP-L programs, checked and run at lengths up to 200:")
    solved = demo.check_programs(200)
    note("  all legal, all right: " + ", ".join(solved))
    figures.save(figures.programs(demo.illustrations()), args.out / "programs.svg")

    pair = demo.contestants(args.steps)
    note(f"Two models of equal size learn to copy up to {pair[0].config.max_length} bits:")
    with Interrupt() as asked:
        summaries = demo.race(args.out, pair, display.listener, args.seconds, asked)
    if asked.status:
        note("stopped; the same command goes on from there")
        return asked.status
    note("Exam:")
    rows = demo.exam(args.out, pair, args.samples)
    drawn = [row.as_dict() | {"method": _name(pair, row.method)} for row in rows]
    trained = {demo.TASK: pair[0].config.max_length}
    for suffix in (".png", ".svg"):
        figures.save(figures.accuracy_by_length(drawn, trained), args.out / f"demo{suffix}")
    if args.json:
        seconds = {each.name: round(s.seconds, 1) for each, s in zip(pair, summaries, strict=True)}
        print_json({"rows": [row.as_dict() for row in rows], "seconds": seconds, "out": str(args.out)})
    else:
        _print(pair, rows)
    note(f"wrote {args.out / 'demo.png'}, {args.out / 'demo.svg'} and {args.out / 'programs.svg'}")
    note("Try `looped trace addition 1011+0110`, or `looped train parity --recipe quick`.")
    return 0


def _name(pair: Sequence[Contestant], method: str) -> str:
    return next(each.what for each in pair if each.config.method == method)


def _print(pair: Sequence[Contestant], rows: Sequence[Row]) -> None:
    """Length against model, and one sentence on what was seen."""
    found = {(row.method, row.length): row.accuracy for row in rows}
    names = [(each.config.method, each.what) for each in pair]
    trained = pair[0].config.max_length
    lengths = sorted({length for _, length in found})
    table = [
        [
            n,
            *(f"{found[method, n]:.4f}" for method, _ in names),
            "trained to here" if n == trained else f"{n // trained}×",
        ]
        for n in lengths
    ]
    print_table(["length", *(what for _, what in names), ""], table, title="exact match")
    ours, other = (found[method, 10 * trained] for method, _ in names)
    note(
        f"At ten times the training length the looped model is exactly right in {ours:.1%} of the cases, the model of "
        f"fixed depth in {other:.1%}."
    )
