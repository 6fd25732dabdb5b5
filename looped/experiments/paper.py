"""The paper's figures as data: which runs, what is measured of them. Computes nothing.

`FIGURES` are those of the paper: `main` (4, generalization), `stopping` (5), `rules` (6, stopping criteria), `ablation`
(7). `BEYOND` measures on the same tasks who knows when to stop (`halting`), how far stopping rules hold (`rules-far`)
and what a wrong T in training costs (`wrong-steps`), with what was discovered beside the accuracy.

Lengths run from 1 to twice the length at which the paper shows a task near perfect (`far`), those of `rules` to that
length, and `stopping` is drawn at it. The method has five seeds, the others three. A further figure is a further row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from looped import tasks
from looped.errors import InputError
from looped.evaluation.loading import Kind, Precision
from looped.experiments.plan import SAMPLES, SEEDS, MeasurementPlan, RunSpec
from looped.experiments.queue import Job
from looped.tasks.base import Task

OURS = "fop-loop-adaptive"
RULES = ("oracle", "confidence-batch", "confidence", "threshold", "converged")
LATE = ("confidence-batch=0.25", "confidence=0.25")  # without the first steps, as the paper's plots show them
REACH = 2  # times the paper's test length
FEW = (0, 1, 2)  # seeds of what the method is compared with
Lengths = Literal["far", "near", "the paper's"]


@dataclass(frozen=True)
class FigureLine:
    """One method of a figure and how it is measured."""

    method: str
    stops: tuple[str, ...] = ("oracle",)
    kind: Kind = "accuracy"
    lengths: Lengths = "far"
    set: tuple[str, ...] = ()  # what the line changes of its method's configuration
    label: str = ""  # its name in the figure; the method's unless given
    seeds: tuple[int, ...] = SEEDS

    @property
    def name(self) -> str:
        """How `--methods` calls it."""
        return self.label or self.method

    def lengths_of(self, task: Task) -> tuple[int, ...]:
        """What it is measured at."""
        near = task.paper.test_length
        kinds = {"far": far(task), "near": tuple(n for n in far(task) if n <= near), "the paper's": (near,)}
        return kinds[self.lengths]


def far(task: Task) -> tuple[int, ...]:
    """Lengths from 1 to twice the paper's, thinner past it; the longest trained and the paper's are among them.

    copy: 1, 5, 10, 15, 19, 20, 25, 30, 35, 40, 50, 60, 70
    """
    near, trained = task.paper.test_length, task.paper.max_length
    apart = 5 if near > 20 else 2
    thin = range(2 * apart * (near // (2 * apart) + 1), REACH * near, 2 * apart)
    return tuple(sorted({1, trained, near, REACH * near, *range(apart, near, apart), *thin}))


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper, or of those beyond it."""

    name: str
    lines: tuple[FigureLine, ...]


@dataclass(frozen=True)
class PlannedRun:
    """A run of a figure and what is measured of it."""

    run: RunSpec
    plan: MeasurementPlan


def _compared(*methods: str) -> tuple[FigureLine, ...]:
    return FigureLine(OURS), *(FigureLine(method, seeds=FEW) for method in methods)


def _variant(label: str, stops: tuple[str, ...], *changes: str) -> FigureLine:
    return FigureLine(OURS, stops, "halting", set=changes, label=label)


FIGURES: dict[str, tuple[FigureLine, ...]] = {
    "main": _compared("ntp", "ntp-pause", "ntp-loop"),
    "ablation": _compared("fop-loop-adaptive-wo", "fop", "fop-pause", "fop-loop-fixed"),
    "stopping": (FigureLine(OURS, kind="steps", lengths="the paper's"),),
    "rules": (
        FigureLine(OURS, stops=RULES, lengths="near"),
        FigureLine("fop-loop-fixed", lengths="near", seeds=FEW),
    ),
}  # fmt: skip

AT_T = FigureLine(OURS, ("oracle", "settled", "converged"), "halting")
HEAD = ("halt", "halt-mode", "halt=0.1", "halt=0.3", "halt=0.7", "halt=0.9")
START = "model.positions=start"  # without T(n), equal tokens can be counted from a start alone (model/positions.py)
SETTLED = ("settled", "oracle", "confidence", "converged", "converged=6")  # `oracle`: as many as `loops` says
EXPECTED = ("model.halting=eoq", "loops=2q", "supervision=expected", "halt_cost=0.03", START)
BEYOND: dict[str, tuple[FigureLine, ...]] = {  # questions the paper's reviewers asked
    "halting": (
        AT_T,
        FigureLine("ut", ("halt",), "halting"),
        FigureLine("pondernet", ("halt",), "halting"),
        _variant("start", AT_T.stops, START),
        _variant("act", HEAD[:1], "model.halting=act", "loops=q", START),
        _variant("ponder", HEAD, "model.halting=ponder", "loops=q", START),
        _variant("free", SETTLED, "loops=q..2q", START),
        _variant("best", SETTLED, "loops=2q", "supervision=best", START),
        _variant("expected", HEAD[:1], *EXPECTED),
    ),
    "rules-far": (FigureLine(OURS, stops=(*RULES, *LATE)),),
    "wrong-steps": (AT_T, *(_variant(loops, AT_T.stops, f"loops={loops}") for loops in ("T+1", "2T", "T/2", "20"))),
}  # fmt: skip


@dataclass(frozen=True)
class FigureChoice:
    """What a person may change of a figure without making it another."""

    recipe: str = "fast"
    seeds: tuple[int, ...] = ()  # each line's own unless given
    set: tuple[str, ...] = ()  # fields of every run's configuration
    tasks: tuple[str, ...] = ()  # all unless given
    methods: tuple[str, ...] = ()  # all of the figure's unless given
    samples: int = SAMPLES
    lengths: tuple[int, ...] = ()  # the figure's unless given
    precision: Precision = "trained"


NUMBERS = {"fig4": "main", "fig5": "stopping", "fig6": "rules", "fig7": "ablation"}  # in the paper


def get(name: str) -> PaperFigure:
    """The figure of that name."""
    known = {**FIGURES, **BEYOND}
    name = NUMBERS.get(name, name)
    if name not in known:
        raise InputError(f"unknown figure {name[:40]!r}; the figures are {', '.join(known)}")
    return PaperFigure(name, known[name])


def rows(figures: Sequence[PaperFigure], choice: FigureChoice | None = None) -> list[PlannedRun]:
    """Every run of some figures with its plan, in the order in which they teach most: the method on all tasks first."""
    choice = choice or FigureChoice()
    names = choice.tasks or tuple(tasks.TASKS)
    lines = [line for figure in figures for line in figure.lines]
    known = list(dict.fromkeys(line.name for line in lines))
    if strange := [method for method in choice.methods if method not in known]:
        named = " and ".join(figure.name for figure in figures)
        raise InputError(f"figure {named} has no method {strange[0]!r}; it has {', '.join(known)}")
    planned = []
    for line in lines:
        for task in map(tasks.get, names if line.name in (choice.methods or known) else ()):
            seeds, settings = choice.seeds or line.seeds, (*line.set, *choice.set)
            lengths = choice.lengths or line.lengths_of(task)
            plan = MeasurementPlan(lengths, line.kind, choice.samples, line.stops, precision=choice.precision)
            run = RunSpec(task.name, line.method, choice.recipe, seeds, settings)
            planned.append(PlannedRun(run, plan))
    return planned


def by_run(measured: Sequence[PlannedRun]) -> dict[RunSpec, list[MeasurementPlan]]:
    """The plans of each run, for runs that several figures or lines share."""
    found: dict[RunSpec, dict[MeasurementPlan, None]] = {}
    for row in measured:
        found.setdefault(row.run, {})[row.plan] = None
    return {run: list(plans) for run, plans in found.items()}


def make_jobs(
    figures: Sequence[PaperFigure], choice: FigureChoice, results: Path, save_seconds: float = 60.0
) -> list[Job]:
    """The jobs of some figures, each run once with all its plans."""
    where, found = str(results.resolve()), by_run(rows(figures, choice))
    folders = [run.folder for run in found]
    if same := [folder for folder in folders if folders.count(folder) > 1]:
        alike = f"with {' '.join(choice.set)} set, {len(same)} lines would be one run, {same[0]}"
        raise InputError(f"{alike}: choose others with --methods")
    return [
        Job(run.folder, run.config, tuple(plan.fit(run) for plan in plans), where, save_seconds)
        for run, plans in found.items()
    ]
