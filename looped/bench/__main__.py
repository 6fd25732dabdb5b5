"""`python -m looped.bench NAME …`: `looped bench` for a machine that has torch and little else.

    python -m looped.bench train --task copy --seeds 5 --json
    python -m looped.bench suite --out results.jsonl --limit 150          everything, a line each
    python -m looped.bench report results.jsonl docs/performance.md       such lines into the tables of a text
    python -m looped.bench plot results.jsonl performance.svg             and into a figure
    python -m looped.bench ladder runs/copy-fop-loop-adaptive-long --limit 500

Without `--json` it prints columns separated by tabs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from looped import bench, checkpoints
from looped.bench import BENCHES, Options, plot, report, suite
from looped.bench.ladder.words import main as ladder
from looped.errors import InputError


def main(words: Sequence[str] | None = None) -> int:
    """Measures as the words say; 2 is bad input, as in `looped bench`."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["ladder"]:  # it has words of its own
        return ladder(words[1:])
    args = _parser().parse_args(words)
    try:
        if args.name == "suite":
            suite.run(args.out, device=args.device, limit=args.limit, small=args.small)
        elif args.name == "report":
            filled = report.fill(args.text.read_text(encoding="utf-8"), report.load(args.lines))
            checkpoints.write(args.text, filled.encode())
        elif args.name == "plot":
            plot.save(report.load(args.lines), args.figure)
        else:
            _measure(args)
    except InputError as error:
        print(f"looped: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _measure(args: argparse.Namespace) -> None:
    options = Options(**{field.name: getattr(args, field.name) for field in fields(Options)})
    measured = bench.measure(args.name, options)
    if args.json:
        print(json.dumps(measured, allow_nan=False))
        return
    columns, rows = bench.table(measured)
    for row in [columns, *rows]:
        print(*row, sep="\t")
    if "speedup" in measured:
        print("speedup", round(measured["speedup"], 2), sep="\t")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m looped.bench", description="Measure this program.")
    names = parser.add_subparsers(dest="name", required=True)
    for name, (_, summary) in BENCHES.items():
        one = names.add_parser(name, help=summary)
        for field in fields(Options):
            kind = int if "int" in str(field.type) else str
            one.add_argument("--" + field.name.replace("_", "-"), type=kind)
        one.add_argument("--json", action="store_true", help="one JSON object")
    every = names.add_parser("suite", help="all of them, a JSON line each")
    every.add_argument("--out", type=Path, default=Path("performance.jsonl"), help="lines are appended to it")
    every.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    every.add_argument("--limit", type=float, default=600.0, help="start nothing after these seconds")
    every.add_argument("--small", action="store_true", help="tiny sizes, to try it out")
    tables = names.add_parser("report", help="such lines into the tables of a text")
    tables.add_argument("lines", type=Path)
    tables.add_argument("text", type=Path)
    figure = names.add_parser("plot", help="such lines into a figure")
    figure.add_argument("lines", type=Path)
    figure.add_argument("figure", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
