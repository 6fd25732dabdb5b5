"""`python -m benchmarks`: every measurement of docs/performance.md in one go, and its tables and figure.

    python -m benchmarks suite --out results.jsonl --limit 150          everything, a JSON line each
    python -m benchmarks report results.jsonl docs/performance.md       such lines into the tables of a text
    python -m benchmarks predictors RUN… --out results/predictors.json  which signs of replicas tell how far they hold
    python -m benchmarks ablation TASK… --out results/ablation.json     what each part of recipe `long` gives, in small
    python -m benchmarks length docs/length.md                          the tables of these two into a text
    python -m benchmarks plot results.jsonl performance.svg             and into a figure
    python -m benchmarks campaign --workers 3 --out campaign.json       what training a whole figure takes

A single measurement is `looped bench NAME`, or `python -m looped bench NAME` on a machine that has torch alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import ablation, campaign, plot, predictors, report, suite
from looped import checkpoints, tasks
from looped.errors import InputError
from looped.evaluation.length_sweep import LEVELS, SweepSettings
from looped.evaluation.loading import parse_lengths
from looped.output import print_table
from scripts import docs_tables


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
        elif args.action == "ablation":
            _ablation(args)
        elif args.action == "length":
            _length(args)
        elif args.action == "campaign":
            _campaign(args)
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


def _ablation(args: argparse.Namespace) -> None:
    """Train and measure the missing cells, unless there are none to be had, and print or fill in the tables."""
    if args.tasks:
        known = {"seeds": args.seeds, "samples": args.samples, "device": args.device}
        lengths, parts = tuple(parse_lengths(args.lengths)), tuple(args.part or ablation.PARTS)
        asked = ablation.Ablation(
            tuple(args.tasks), parts, tuple(args.set or ablation.SHORT), lengths=lengths, **known
        )
        ablation.measure(asked, args.runs, args.out)
    for name, table in ablation.tables(ablation.read(args.out)).items():
        print(f"{name}\n{table()}\n")


def length_tables(folder: Path) -> dict[str, Callable[[], str]]:
    """The tables of docs/length.md that come from a folder's ablation.json and predictors.json."""
    signs = predictors.read(folder / "predictors.json")
    return ablation.tables(ablation.read(folder / "ablation.json")) | predictors.of_text(signs, "L99")


def _length(args: argparse.Namespace) -> None:
    """Make the tables of a text anew."""
    text = docs_tables.fill(args.text.read_text(encoding="utf-8"), length_tables(args.results))
    checkpoints.write(args.text, text.encode())


def _campaign(args: argparse.Namespace) -> None:
    """Measure what a figure's trainings take, print it, and keep it."""
    known = {"recipe": args.recipe, "seeds": args.seeds, "share": args.share, "workers": args.workers}
    asked = campaign.Campaign(**known, device=args.device, set=tuple(args.set), tasks=tuple(args.tasks))
    measured = campaign.measure(asked)
    if args.out is not None:
        checkpoints.write_json(args.out, measured)
    print_table(*campaign.table(measured))


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
        "--stop",
        default="",
        help="stopping rule; unless given, halt, or oracle for models without such a head",
    )
    signs.add_argument("--level", choices=tuple(LEVELS), default="L99")
    signs.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    signs.add_argument(
        "--limit", type=float, default=float("inf"), help="stop after about these seconds, to go on later"
    )
    signs.add_argument("--out", type=Path, default=Path("results/predictors.json"))
    parts = actions.add_parser("ablation", help="what each part of recipe `long` gives, in small")
    parts.add_argument("tasks", nargs="*", help="none: the tables of what is in --out")
    parts.add_argument("--part", action="append", help="leave out this part; all of them unless given")
    parts.add_argument(
        "--set", action="append", help="a field of every cell in the place of the short lengths"
    )
    parts.add_argument("--seeds", type=int, default=5, help="how many are stacked")
    parts.add_argument("--lengths", default=",".join(map(str, ablation.LENGTHS)), help="such as 10,20,50")
    parts.add_argument("--samples", type=int, default=64, help="uniform problems per length")
    parts.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parts.add_argument("--runs", type=Path, default=Path("runs/ablation"), help="folder of the trained cells")
    parts.add_argument("--out", type=Path, default=Path("results/ablation.json"))
    text = actions.add_parser("length", help="the tables of these two into docs/length.md")
    text.add_argument("text", type=Path, nargs="?", default=Path("docs/length.md"))
    text.add_argument("--results", type=Path, default=Path("results"), help="folder of both files")
    whole = actions.add_parser(
        "campaign", help="what training a whole figure takes, from a share of the steps"
    )
    whole.add_argument("tasks", nargs="*", default=tuple(tasks.TASKS), help="the six tasks unless given")
    whole.add_argument("--recipe", default="paper")
    whole.add_argument("--seeds", type=int, default=5, help="how many are stacked")
    whole.add_argument("--share", type=float, default=0.05, help="of the gradient steps of every stage")
    whole.add_argument("--workers", type=int, default=1, help="runs side by side on the device")
    whole.add_argument(
        "--set", action="append", default=[], help="a field of every configuration: FIELD=VALUE"
    )
    whole.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    whole.add_argument("--out", type=Path, help="keep what was measured in this JSON file")
    figure = actions.add_parser("plot", help="such lines into a figure")
    figure.add_argument("lines", type=Path)
    figure.add_argument("figure", type=Path)
    return parser


if __name__ == "__main__":
    sys.exit(main())
