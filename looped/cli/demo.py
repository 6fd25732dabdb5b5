"""`looped demo`: the newcomer's minute. Trains two small models on short inputs and asks them long ones.

$ looped demo
…
length  looped, n passes  ordinary, one pass
    10            1.0000              1.0000  trained to here
    11            1.0000              0.0000
   100            1.0000              0.0000  10×
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from looped.cli.output import note, print_json, print_table, progress
from looped.errors import InputError

if TYPE_CHECKING:  # torch is loaded when the demo starts, not when its help is asked for
    from looped.demo import Contestant
    from looped.evaluation.measure import Row
    from looped.training.trainer import Summary


@dataclass(frozen=True)
class DemoArgs:
    """Train on short inputs, hold on long ones, draw it: a minute or two on a CPU."""

    out: Path = Path("demo")
    """The folder for the pictures and the two runs; the same command again goes on from there."""
    seconds: float = 90.0
    """The most that training may take, for both models together."""
    samples: int = 200
    """Problems a length in the exam at the end; a quarter of them at the longest."""
    steps: int = 0
    """Gradient steps of the looped model; the other takes three times as many. 0: 500."""
    json: bool = False
    """Print what came out as one JSON object."""


def run(args: DemoArgs) -> int:
    """Programs, training, exam, picture."""
    if not args.seconds > 0 or args.samples < 1 or args.steps < 0:
        raise InputError("--seconds and --samples must be above 0, and --steps must not be below it")
    import torch

    from looped import demo, figures
    from looped.cli import display
    from looped.training.interrupt import Interrupt

    torch.set_num_threads(1)  # models this small lose by a second thread, and tenfold on a busy machine
    args.out.mkdir(parents=True, exist_ok=True)
    solved = demo.check_programs(200)
    figures.save(figures.programs(demo.illustrations()), args.out / "programs.svg")
    note(f"The n-RASP-L programs of {', '.join(solved)}: all legal, all right at lengths up to 200.")

    pair = demo.contestants(args.steps)
    note(
        f"Two models of equal size learn to copy up to {pair[0].config.max_length} bits, one after the other:"
    )
    with Interrupt() as asked:
        summaries = demo.race(args.out, pair, display.listener, args.seconds, asked)
    if asked.status:
        note("stopped; the same command goes on from there")
        return asked.status
    for summary in summaries:
        if summary.ending == "time limit":
            note(
                f"time was up after {summary.step} of {summary.steps} steps; the same command goes on from there"
            )
    rows = _examined(args, pair)
    _keep(args.out, pair, rows)
    if args.json:
        print_json(_facts(args.out, pair, rows, summaries))
    else:
        _print(pair, rows)
    _conclude(args.out, pair, rows)
    return 0


def _examined(args: DemoArgs, pair: Sequence[Contestant]) -> list[Row]:
    """The rows of the exam, with a bar on a terminal."""
    from looped import demo

    note(f"Exam, {args.samples} fresh problems a length:")
    with progress(len(pair) * (len(demo.LENGTHS) + 1), "copying") as bar:
        return demo.exam(args.out, pair, args.samples, lambda rows: bar.done("copying"))


def _keep(out: Path, pair: Sequence[Contestant], rows: Sequence[Row]) -> None:
    """The picture, and the rows it was drawn from."""
    from looped import checkpoints, demo, figures, provenance
    from looped.serial import to_json

    names = {each.config.method: each.what for each in pair}
    drawn = [row.as_dict() | {"method": names[row.method]} for row in rows]
    trained = {demo.TASK: pair[0].config.max_length}
    figure = figures.accuracy_by_length(drawn, trained, doubling=True)
    for suffix in (".png", ".svg"):
        figures.save(figure, out / f"demo{suffix}")
    origin = [{"run": each.name, "config": to_json(each.config)} for each in pair]
    result = {
        "provenance": {**provenance.facts("cpu"), "runs": origin},
        "rows": [row.as_dict() for row in rows],
    }
    checkpoints.write(out / "results.json", (json.dumps(result, indent=1) + "\n").encode())


def _facts(
    out: Path, pair: Sequence[Contestant], rows: Sequence[Row], summaries: Sequence[Summary]
) -> dict[str, object]:
    seconds = {each.name: round(s.seconds, 1) for each, s in zip(pair, summaries, strict=True)}
    return {"rows": [row.as_dict() for row in rows], "seconds": seconds, "out": str(out)}


def _print(pair: Sequence[Contestant], rows: Sequence[Row]) -> None:
    """Length against model."""
    found = {(row.method, row.length): row.accuracy for row in rows}
    trained = pair[0].config.max_length
    table = []
    for n in sorted({length for _, length in found}):
        times = "trained to here" if n == trained else f"{n // trained}×" if n % trained == 0 else ""
        table.append([n, *(f"{found[each.config.method, n]:.4f}" for each in pair), times])
    print_table(["length", *(each.what for each in pair), ""], table, title="exact match")


def _conclude(out: Path, pair: Sequence[Contestant], rows: Sequence[Row]) -> None:
    """What was seen, and what to do next."""
    ten = 10 * pair[0].config.max_length
    ours, other = (
        next(row.accuracy for row in rows if (row.method, row.length) == (each.config.method, ten))
        for each in pair
    )
    note(f"wrote {out / 'demo.png'}, {out / 'demo.svg'}, {out / 'programs.svg'} and {out / 'results.json'}")
    note(
        f"At ten times the training length the looped model is exactly right in {ours:.1%} of the cases, the ordinary "
        f"one of the same size in {other:.1%}."
    )
    note(
        "Next: `looped trace addition 1011+0110` shows a program at work; `looped train parity --recipe quick` "
        "trains a model of another task that holds as far."
    )
