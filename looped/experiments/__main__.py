"""`python -m looped.experiments FIGURE …`: `looped reproduce` for a machine that has torch and little else.

    python -m looped.experiments main ablation --tasks parity,copy --seeds 0,1,2 --time-limit 540

The same command again does what is missing. Prints lines to stderr and how it ended as one JSON object to stdout.
Drawing is left to a machine that can.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from looped.errors import InputError
from looped.evaluation.loading import Precision, parse_lengths
from looped.experiments import board, drive, engines, jobs, paper
from looped.experiments.engines import Options
from looped.experiments.paper import Choice
from looped.experiments.plan import SAMPLES
from looped.training.interrupt import Interrupt


def main(words: Sequence[str] | None = None) -> int:
    """Does what is missing of some figures; the exit status is that of `looped reproduce`."""
    args = _parser().parse_args(words)
    try:
        figures = [paper.get(name) for name in args.figures]
        batch = paper.make_jobs(figures, _choice(args), args.results, args.save_every)
        for job in batch:
            jobs.check_folder(args.out, job)
        engine = engines.start("local", args.out, Options(args.workers, args.device))
        with Interrupt() as asked:
            outcome = drive.drive(
                engine, batch, watcher=board.LineBoard(), stop=asked, time_limit_s=args.time_limit
            )
    except InputError as error:
        print(f"looped: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(json.dumps({"figures": args.figures, "ending": outcome.ending, "runs": outcome.facts()}))
    return asked.status or int(outcome.ending == "failed")


def _choice(args: argparse.Namespace) -> Choice:
    return Choice(
        args.recipe, args.seeds, tuple(args.set), args.tasks, args.methods, args.samples,
        tuple(parse_lengths(args.lengths)) if args.lengths else (), args.precision,
    )  # fmt: skip


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m looped.experiments", description="Run the runs of figures."
    )
    parser.add_argument(
        "figures", nargs="+", metavar="FIGURE", help=", ".join((*paper.FIGURES, *paper.BEYOND))
    )
    parser.add_argument("--recipe", default="fast")
    parser.add_argument("--seeds", type=_numbers, default=(), metavar="A,B,…")
    parser.add_argument("--tasks", type=_names, default=(), metavar="A,B,…")
    parser.add_argument("--methods", type=_names, default=(), metavar="A,B,…")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument(
        "--lengths", default="", help="1:60, 10:100:10 or 10,20,40; the figure's unless given"
    )
    parser.add_argument("--precision", default="trained", choices=get_args(Precision))
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS")
    parser.add_argument("--save-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--set", nargs="*", default=[], action="extend", metavar="KEY=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
