"""`python -m looped.bench NAME …`: `looped bench` for a machine that has torch and little else.

    python -m looped.bench train --task copy --seeds 5 --json
    python -m looped.bench suite --out results.jsonl --limit 150
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

from looped import bench
from looped.bench import BENCHES, Options, suite
from looped.bench.ladder.words import main as ladder
from looped.errors import InputError


def main(words: Sequence[str] | None = None) -> int:
    """Measures as the words say; 2 is bad input, as in `looped bench`."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["ladder"]:  # it has words of its own
        return ladder(words[1:])
    args = _parser().parse_args(words)
    options = Options(**{field.name: getattr(args, field.name) for field in fields(Options)})
    try:
        if args.name == "suite":
            suite.run(args.out, device=args.device or "auto", limit=args.limit, small=args.small)
            return 0
        measured = bench.measure(args.name, options)
    except InputError as error:
        print(f"looped: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(measured, allow_nan=False))
        return 0
    columns, rows = bench.table(measured)
    for row in [columns, *rows]:
        print(*row, sep="\t")
    if "speedup" in measured:
        print("speedup", round(measured["speedup"], 2), sep="\t")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m looped.bench", description="Measure this program.")
    parser.add_argument("name", choices=[*BENCHES, "suite"])
    for field in fields(Options):
        kind = int if "int" in str(field.type) else str
        parser.add_argument("--" + field.name.replace("_", "-"), type=kind)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--out", type=Path, default=Path("performance.jsonl"), help="suite: where rows go")
    parser.add_argument("--limit", type=float, default=600.0, help="suite: start nothing after these seconds")
    parser.add_argument("--small", action="store_true", help="suite: tiny sizes, to try it out")
    return parser


if __name__ == "__main__":
    sys.exit(main())
