"""`python -m benchmarks`: every measurement of docs/performance.md in one go, and its tables and figure.

    python -m benchmarks suite --out results.jsonl --limit 150          everything, a JSON line each
    python -m benchmarks report results.jsonl docs/performance.md       such lines into the tables of a text
    python -m benchmarks predictors RUN… --out results/predictors.json  which signs of replicas tell how far they hold
    python -m benchmarks plot results.jsonl performance.svg             and into a figure

A single measurement is `looped bench NAME`, or `python -m looped bench NAME` on a machine that has torch alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import plot, predictors, report, suite
from looped import checkpoints
from looped.errors import InputError
from looped.evaluation.length_sweep import SweepSettings
from looped.evaluation.length_sweep.record import LEVELS
from looped.evaluation.loading import parse_lengths


def main(words: Sequence[str] | None = None) -> int:
    """Do as the words say; 2 is bad input, as in `looped bench`."""
    args = _parser().parse_args(words)
    try:
        if args.action == "suite":
            suite.run(args.out, device=args.device, limit=args.limit, small=args.small)
        elif args.action == "report":
            filled = report.fill(args.text.read_text(encoding="utf-8"), report.load(args.lines))
            checkpoints.write(args.text, filled.encode())
        elif args.action == "predictors":
            _predictors(args)
        else:
            plot.save(report.load(args.lines), args.figure)
    except InputError as error:
        print(f"looped: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _predictors(args: argparse.Namespace) -> None:
    """Measure the replicas of some runs, unless there are none, and print the tables."""
    if args.runs:
        lengths = tuple(parse_lengths(args.lengths)) if args.lengths else ()
        stops = (args.stop,) if args.stop else ()
        settings = SweepSettings(lengths, args.samples, tuple(args.families), stops, step_samples=0)
        if not predictors.measure(args.runs, settings, args.out, device=args.device, limit=args.limit):
            print("stopped at the limit; the same command again goes on", file=sys.stderr)
    print(predictors.tables(predictors.read(args.out), args.level))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure this program.")
    actions = parser.add_subparsers(dest="action", required=True)
    every = actions.add_parser("suite", help="all measurements, a JSON line each")
    every.add_argument("--out", type=Path, default=Path("performance.jsonl"), help="lines are appended to it")
    every.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    every.add_argument("--limit", type=float, default=600.0, help="start nothing after these seconds")
    every.add_argument("--small", action="store_true", help="tiny sizes, to try it out")
    tables = actions.add_parser("report", help="such lines into the tables of a text")
    tables.add_argument("lines", type=Path)
    tables.add_argument("text", type=Path)
    signs = actions.add_parser("predictors", help="which signs of replicas tell how far they hold")
    signs.add_argument(
        "runs", type=Path, nargs="*", help="trained with --keep-replicas; none: print what is in --out"
    )
    signs.add_argument("--lengths", default="", help="such as 20,30,40; those of a length sweep unless given")
    signs.add_argument("--samples", type=int, default=500, help="problems per length and input distribution")
    signs.add_argument("--families", nargs="+", default=["all"], help="input distributions besides uniform")
    signs.add_argument(
        "--stop", default="halt", help="stopping rule; oracle for models without a halting head"
    )
    signs.add_argument("--level", choices=tuple(LEVELS), default="L99")
    signs.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    signs.add_argument(
        "--limit", type=float, default=float("inf"), help="stop after about these seconds, to go on later"
    )
    signs.add_argument("--out", type=Path, default=Path("results/predictors.json"))
    figure = actions.add_parser("plot", help="such lines into a figure")
    figure.add_argument("lines", type=Path)
    figure.add_argument("figure", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
