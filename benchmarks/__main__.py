"""`python -m benchmarks`: every measurement of docs/performance.md in one go, and its tables and figure.

    python -m benchmarks suite --out results.jsonl --limit 150          everything, a JSON line each
    python -m benchmarks report results.jsonl docs/performance.md       such lines into the tables of a text
    python -m benchmarks plot results.jsonl performance.svg             and into a figure

A single measurement is `looped bench NAME`, or `python -m looped bench NAME` on a machine that has torch alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import plot, report, suite
from looped import checkpoints
from looped.errors import InputError


def main(words: Sequence[str] | None = None) -> int:
    """Do as the words say; 2 is bad input, as in `looped bench`."""
    args = _parser().parse_args(words)
    try:
        if args.action == "suite":
            suite.run(args.out, device=args.device, limit=args.limit, small=args.small)
        elif args.action == "report":
            filled = report.fill(args.text.read_text(encoding="utf-8"), report.load(args.lines))
            checkpoints.write(args.text, filled.encode())
        else:
            plot.save(report.load(args.lines), args.figure)
    except InputError as error:
        print(f"looped: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


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
    figure = actions.add_parser("plot", help="such lines into a figure")
    figure.add_argument("lines", type=Path)
    figure.add_argument("figure", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
