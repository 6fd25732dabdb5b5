"""`looped reproduce`: a figure of the paper from real runs; does only what is missing, then draws it.

$ looped reproduce main --dry-run
run                            state   step       loss  measured
parity-fop-loop-adaptive-fast  done    8000/8000   –       1/1
copy-fop-loop-adaptive-fast    queued     0/8000   –       0/1
…

A result that is there counts, wherever its run was trained: with all results at hand it only draws.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from looped import checkpoints, tasks
from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json, print_table
from looped.cli.sweep import BackendArgs, chosen_rows, ending, run_batch, show, spread
from looped.errors import InputError
from looped.evaluation.loading import Precision, parse_lengths
from looped.experiments import paper, queue
from looped.experiments.paper import FigureChoice, PaperFigure
from looped.experiments.plan import SAMPLES
from looped.experiments.queue import Job

Names = Annotated[str, Option("A,B,…", default="(default: all)")]


@dataclass(frozen=True, kw_only=True)
class ReproduceArgs(BackendArgs):
    """Reproduce a figure of the paper. The same command again does what is missing."""

    figure: Annotated[str, Positional("FIGURE[,FIGURE…]")]
    """main, stopping, rules or ablation (fig4 to fig7 of the paper); beyond it: halting, rules-far, wrong-steps.
    Several figures, separated by commas, share their runs."""
    recipe: str = "fast"
    """paper (its hyperparameters), fast (far fewer steps) or quick (a minute a run on a CPU)."""
    seeds: Annotated[str, Option("A,B,…", default="(default: 0 to 4, of the paper's baselines 0 to 2)")] = ""
    """Seeds of every run, trained side by side."""
    tasks: Names = ""
    """Only these tasks."""
    methods: Names = ""
    """Only these methods of the figure."""
    samples: int = SAMPLES
    """Problems per length."""
    lengths: Annotated[str, Option(default="(default: some from 1 to twice the paper's)")] = ""
    """Lengths to measure, for all tasks: 1:60, 10:100:10 or 10,20,40."""
    precision: Precision = "trained"
    """Of products when measuring: trained is as in training (bf16 on CUDA, fp32 on a CPU), or fp32 or bf16."""
    out: Path = Path("runs")
    """The folder of the runs."""
    results: Path = Path("results")
    """The folder of the results; the drawing goes to its folder `figures`."""
    set: Annotated[tuple[str, ...], Option("KEY=VALUE", repeat=True)] = ()
    """A field of every run's configuration: --set steps=2000 --set model.width=128."""
    draw: bool = False
    """Run nothing: draw from the results that are there, and say how many are missing."""
    json: bool = False
    """Print how it ended and where the files are as one JSON object."""


def run(args: ReproduceArgs) -> int:
    """Run what is missing, and draw once everything is there."""
    figures = [paper.get(name) for name in _names(args.figure)]
    if not figures:
        raise InputError(f"name a figure: {', '.join((*paper.FIGURES, *paper.BEYOND))}")
    batch = paper.make_jobs(figures, choice(args), args.results, args.save_every)
    args.options  # noqa: B018  complains before anything is done
    if args.dry_run and args.draw:
        raise InputError(
            "--dry-run shows what is missing and --draw draws what is there: ask for one of them"
        )
    if args.dry_run:
        return show(batch, args.out, args.json)
    if args.draw:
        return _draw_present(figures, batch, args)
    outcome, status = run_batch(args, args.out, batch)
    drawn = _draw_each(figures, args) if outcome.ending == "complete" else []
    if args.json:
        ended = {"ending": outcome.ending, "runs": outcome.facts()}
        print_json({"figure": _joined(figures), **ended, **_files(batch, drawn)})
    elif outcome.ending == "complete":
        _print(batch)
    note(ending(outcome, args.out))
    for path in drawn:
        note(f"wrote {path}")
    return status


def _joined(figures: list[PaperFigure]) -> str:
    return ",".join(figure.name for figure in figures)


def _draw_each(figures: list[PaperFigure], args: ReproduceArgs) -> list[Path]:
    """Draw every figure from those of its runs that have results."""
    paths: list[Path] = []
    for figure in figures:
        methods = {line.name for line in figure.lines}
        wanted = choice(args)
        own = replace(wanted, methods=tuple(name for name in wanted.methods if name in methods))
        if wanted.methods and not own.methods:  # none of the methods asked for is in this figure
            continue
        jobs = paper.make_jobs([figure], own, args.results, args.save_every)
        there = [job for job in jobs if not queue.missing_plans(job)]
        paths += draw(figure, there, args.results / "figures") if there else []
    return paths


def _draw_present(figures: list[PaperFigure], batch: list[Job], args: ReproduceArgs) -> int:
    """Draw what can be drawn without running anything."""
    there = [job for job in batch if not queue.missing_plans(job)]
    drawn = _draw_each(figures, args)
    if not drawn and not there:
        raise InputError(f"{args.results} holds no result of figure {_joined(figures)} yet")
    if args.json:
        missing = {"missing": [job.name for job in batch if job not in there]}
        print_json({"figure": _joined(figures), **missing, **_files(there, drawn)})
    else:
        _print(there)
    note(f"{len(there)} of {len(batch)} runs have results")
    for path in drawn:
        note(f"wrote {path}")
    return 0


def _files(batch: list[Job], drawn: list[Path]) -> dict[str, list[str]]:
    results = [str(file) for job in batch for file in queue.result_files(job)]
    return {"results": results, "drawn": [str(path) for path in drawn]}


def choice(args: ReproduceArgs) -> FigureChoice:
    """What the words change of a figure."""
    try:
        seeds = tuple(int(seed) for seed in args.seeds.split(",")) if args.seeds else ()
    except ValueError:
        raise InputError(
            f"--seeds takes whole numbers separated by commas, not {args.seeds[:40]!r}"
        ) from None
    return FigureChoice(
        args.recipe, seeds, args.set, _names(args.tasks), _names(args.methods), args.samples,
        tuple(parse_lengths(args.lengths)) if args.lengths else (), args.precision,
    )  # fmt: skip


def draw(figure: PaperFigure, batch: list[Job], folder: Path) -> list[Path]:
    """Draw a figure from its files of results alone, as SVG and PNG; nothing where matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        note("matplotlib is not installed here: `looped reproduce --draw` draws the figure elsewhere")
        return []
    from looped import figures

    rows, trained = figures.read_rows([file for job in batch for file in queue.result_files(job)])
    kinds = {line.kind for line in figure.lines}
    if kinds == {"halting"}:
        drawn = figures.halting(rows, trained)
    else:
        drawn = figures.by_step(rows) if kinds == {"steps"} else figures.accuracy_by_length(rows, trained)
    with checkpoints.disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{figure.name}{suffix}" for suffix in (".svg", ".png")]
        for path in paths:
            figures.save(drawn, path)
    return paths


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _print(batch: list[Job]) -> None:
    """Means over seeds at the length the paper reports; for curves over steps, where confidence stops."""
    groups: dict[tuple[object, ...], list[float]] = {}
    for job in batch:
        near = tasks.get(job.config.task).paper.test_length
        for plan in job.plans:
            length = near if near in plan.lengths else max(plan.lengths)
            for _, row in chosen_rows([replace(job, plans=(plan,))]):
                if row["length"] == length:
                    method = ", ".join(filter(None, (row["method"], row.get("variant"))))
                    stop = row.get("stop", "confidence-batch")
                    groups.setdefault((row["task"], method, length, stop), []).append(row["accuracy"])
    lines = [[*key, spread(values, 4)] for key, values in groups.items()]
    print_table(["task", "method", "length", "stop", "exact"], lines)
