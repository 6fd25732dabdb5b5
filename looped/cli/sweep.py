"""Many runs on a backend: `looped sweep`, and `looped reproduce` for figures; `looped status` and `looped cancel`.

$ looped status runs/widths
run                                     state    step       loss    measured
copy-fop-loop-adaptive-quick-0b6a1f22   done     1000/1000  0.0021       1/1
copy-fop-loop-adaptive-quick-9c41d07e   running   412/1000  0.0830       0/1

The same command again does only what is missing; a result that is there counts, wherever its run was trained. While
jobs run, the table is redrawn on a terminal; in a pipe, a line says what changed. Workers hear a cancel on any machine,
and so does `looped train`; `python -m looped.training` on a bare machine takes signals alone.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from looped import checkpoints, tasks
from looped.cli.arguments import Option, Positional
from looped.errors import InputError
from looped.evaluation.loading import Precision, parse_lengths
from looped.experiments import backends, paper, queue
from looped.experiments.backends import BackendOptions, StatusListener, SweepOutcome
from looped.experiments.paper import FigureChoice, PaperFigure
from looped.experiments.plan import SAMPLES, read_sweep
from looped.experiments.queue import Job, Status
from looped.output import note, print_json, print_table, rich_table
from looped.result_files import over_seeds
from looped.training.interrupt import Interrupt

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("run", "state", "step", "loss", "measured", "")
ORDER = ("done", "running", "queued", "failed", "interrupted", "cancelled")
POLL_S = 0.2
EVERY_S = 10.0  # between two lines about all jobs


@dataclass(frozen=True, kw_only=True)
class BackendArgs:
    """Options of the commands that run jobs."""

    engine: Annotated[str, Option("local|ray|slurm")] = "local"
    """Where runs are run: local (processes here), ray (extra `ray`) or slurm (arrays of batch jobs)."""
    address: Annotated[str, Option("HOST:PORT", default="(default: a new one here)")] = ""
    """The Ray cluster to use; auto is the one this machine belongs to."""
    sbatch: Annotated[tuple[str, ...], Option("OPTION=VALUE", repeat=True)] = ()
    """An option of Slurm's sbatch: --sbatch partition=gpu --sbatch time=4:00:00."""
    workers: int = 0
    """Runs at once; 0: one for each GPU, or for each core where there is none."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    time_limit: Annotated[float, Option("SECONDS", default="(default: none)")] = math.inf
    """Stop cleanly after this many seconds, to go on later."""
    save_every: Annotated[float, Option("SECONDS")] = 60.0
    """Seconds between two checkpoints of a run."""
    dry_run: bool = False
    """Only show what is done and what is missing."""

    def __post_init__(self) -> None:
        backends.check(self.engine, self.options)
        backends.check_limit(self.time_limit)

    @property
    def options(self) -> BackendOptions:
        """What the backend is told."""
        return BackendOptions(self.workers, self.device, self.address, self.sbatch)


def run_batch(args: BackendArgs, root: Path, batch: list[Job]) -> tuple[SweepOutcome, int]:
    """Run jobs with a live status display; how it ended, and the exit status."""
    if root.exists() and not root.is_dir():
        raise InputError(f"{root} is a file, not a folder for runs")
    for job in batch:
        queue.check_folder(root, job)
    statuses = [queue.status_of(root, job) for job in batch]
    done = all(status.state == "done" for status in statuses)
    backend = None if done else backends.start(args.engine, root, args.options)
    note(f"{len(batch)} runs in {root}: {totals(statuses)}")
    if backend is None:
        return SweepOutcome("complete", tuple(batch), tuple(statuses)), 0
    listener = StatusTable() if sys.stderr.isatty() else StatusLines()
    with Interrupt() as asked:
        outcome = backends.run_jobs(
            backend, batch, listener=listener, stop=asked, time_limit_s=args.time_limit
        )
    return outcome, asked.status or int(outcome.ending == "failed")


def show(batch: list[Job], root: Path, as_json: bool) -> int:
    """Print what is done and what is missing."""
    statuses = [queue.status_of(root, job) for job in batch]
    if as_json:
        print_json({"folder": str(root), "runs": list(map(queue.facts, batch, statuses))})
    else:
        print_table(COLUMNS, list(map(cells, batch, statuses)))
    note(f"{len(batch)} runs in {root}: {totals(statuses)}")
    return 0


def ending(outcome: SweepOutcome, root: Path) -> str:
    """How it ended, and how to go on."""
    said = f"{outcome.ending}: {totals(outcome.statuses)}; wrote {root}"
    return said if outcome.ending == "complete" else f"{said}; the same command does what is missing"


# --- the status table --------------------------------------------------------------------------------------
def cells(job: Job, status: Status) -> list[str]:
    """A job's row in a table."""
    return [
        job.name,
        status.state,
        f"{status.step}/{job.config.steps}",
        "–" if status.loss is None else f"{status.loss:.4f}",
        f"{status.measured}/{len(job.plans)}" if job.plans else "–",
        status.reason,
    ]


def totals(statuses: Sequence[Status]) -> str:
    """`4 done, 1 running, 7 queued`."""
    counts = Counter[str](status.state for status in statuses)
    return ", ".join(f"{counts[state]} {state}" for state in ORDER if counts[state]) or "no runs"


class StatusLines(StatusListener):
    """A line for every job that changes its state, and now and then one about all."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self._last = time.monotonic()

    def show(self, batch: Sequence[Job], statuses: Sequence[Status]) -> None:
        """Say what is new."""
        for job, status in zip(batch, statuses, strict=True):
            before = self._before.get(job.name, "done" if status.state == "done" else "queued")
            self._before[job.name] = status.state
            if status.state != before:
                where = f" at step {status.step} of {job.config.steps}" if status.state != "done" else ""
                why = f": {status.reason}" if status.reason else ""
                note(f"{job.name} {status.state}{where}{why}")
        if time.monotonic() - self._last > EVERY_S:
            self._last = time.monotonic()
            pairs = zip(batch, statuses, strict=True)
            busy = [(job, now.step) for job, now in pairs if now.state == "running"]
            running = [f"{job.name} {step}/{job.config.steps}" for job, step in busy]
            note(totals(statuses) + (f"  ({'; '.join(running)})" if running else ""))


class StatusTable(StatusListener):
    """A table redrawn in place; finished rows give way where the screen is too short."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4)

    def show(self, batch: Sequence[Job], statuses: Sequence[Status]) -> None:
        """Draw the table anew."""
        self._live.start()
        self._live.update(table(batch, statuses, self._console.height - 4))

    def end(self) -> None:
        """Leave the last table on the screen."""
        self._live.stop()


def table(batch: Sequence[Job], statuses: Sequence[Status], room: int) -> Table:
    """What matters most of a sweep in so many rows: failed and running first, then the next ones."""
    first = ("failed", "running", "queued", "interrupted", "cancelled", "done")
    urgent = sorted(range(len(batch)), key=lambda i: (first.index(statuses[i].state), i))[: max(room, 3)]
    lines = [cells(batch[i], statuses[i]) for i in sorted(urgent)]
    look: dict[str, Any] = {"box": None, "padding": (0, 2), "caption_justify": "left"}
    return rich_table(COLUMNS, lines, right={2, 3, 4}, caption=totals(statuses), **look)


@dataclass(frozen=True, kw_only=True)
class SweepArgs(BackendArgs):
    """Run many runs. The same command again does what is missing, however the last one ended."""

    file: Annotated[Path, Positional("FILE")]
    """JSON: a list of runs, or a grid of tasks × methods × recipes × settings; docs/scale.md shows both."""
    out: Annotated[Path | None, Option("DIR", default="(default: runs/ and the file's name)")] = None
    """The folder of the runs, one folder each; results go to DIR/results."""
    python: bool = False
    """FILE is a Python program: execute it, and take what it assigns to the name `sweep`. Trust it first."""
    json: bool = False
    """Print how every run ended as one JSON object."""


def run_sweep(args: SweepArgs) -> int:
    """Run what is missing and say how it ended."""
    root = args.out or Path("runs") / args.file.stem
    sweep = read_sweep(args.file, args.python)
    plan, folder = sweep.plan, str((root / "results").resolve()) if sweep.plan else ""
    batch = [
        Job(run.folder, run.config, (plan.fit(run),) if plan else (), folder, args.save_every)
        for run in sweep.runs
    ]
    if args.dry_run:
        return show(batch, root, args.json)
    outcome, status = run_batch(args, root, batch)
    if args.json:
        print_json({"folder": str(root), "ending": outcome.ending, "runs": outcome.facts()})
    else:
        print_table(COLUMNS, list(map(cells, outcome.batch, outcome.statuses)))
        print_accuracy([job for job in outcome.batch if not queue.missing_plans(job)])
    note(ending(outcome, root))
    return status


def print_accuracy(batch: Sequence[Job]) -> None:
    """A table of exact match, mean ± standard error over seeds: a line for each run, a column for each length."""
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for job, row in chosen_rows(batch):
        line = found.setdefault((job.name, row.get("stop", "confidence-batch")), {})
        line.setdefault(row["length"], []).append(row["accuracy"])
    lengths = sorted({length for line in found.values() for length in line})
    if lengths:
        print()
        lines = [[*key, *(spread(line.get(n, []), 3) for n in lengths)] for key, line in found.items()]
        print_table(["exact match by length", "stop", *map(str, lengths)], lines)


def chosen_rows(batch: Iterable[Job]) -> Iterator[tuple[Job, dict[str, Any]]]:
    """The measured rows of jobs; of curves over steps, those where the rule stops."""
    for job in batch:
        for plan, file in zip(job.plans, job.result_files, strict=True):
            for row in queue.read_result(file, job.config, plan) or []:
                if row.get("step") == row.get("chosen"):
                    yield job, row


def spread(values: Sequence[float], digits: int) -> str:
    """`0.9891 ± 0.0047`: the mean over seeds, and its error where there are several."""
    if not values:
        return "–"
    found = over_seeds(values)
    return f"{found.mean:.{digits}f}" + ("" if found.error is None else f" ± {found.error:.{digits}f}")


# --- figures of the paper ---------------------------------------------------------------------------------

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


def run_reproduce(args: ReproduceArgs) -> int:
    """Run what is missing, and draw once everything is there."""
    figures = [paper.get(name) for name in _names(args.figure)]
    if not figures:
        raise InputError(f"name a figure: {', '.join((*paper.FIGURES, *paper.BEYOND))}")
    batch = paper.make_jobs(figures, choice(args), args.results, args.save_every)
    if args.dry_run and args.draw:
        raise InputError(
            "--dry-run shows what is missing and --draw draws what is there: ask for one of them"
        )
    if args.dry_run:
        return show(batch, args.out, args.json)
    joined, status, shown = ",".join(figure.name for figure in figures), 0, batch
    if args.draw:
        shown = [job for job in batch if not queue.missing_plans(job)]
        drawn = _draw_each(figures, args)
        if not drawn and not shown:
            raise InputError(f"{args.results} holds no result of figure {joined} yet")
        facts: dict[str, object] = {"missing": [job.name for job in batch if job not in shown]}
        said, whole = f"{len(shown)} of {len(batch)} runs have results", True
    else:
        outcome, status = run_batch(args, args.out, batch)
        whole = outcome.ending == "complete"
        drawn = _draw_each(figures, args) if whole else []
        facts, said = {"ending": outcome.ending, "runs": outcome.facts()}, ending(outcome, args.out)
    if args.json:
        files = [str(file) for job in shown for file in job.result_files]
        print_json({"figure": joined, **facts, "results": files, "drawn": list(map(str, drawn))})
    elif whole:
        _print_means(shown)
    for sentence in (said, *(f"wrote {path}" for path in drawn)):
        note(sentence)
    return status


def _draw_each(figures: list[PaperFigure], args: ReproduceArgs) -> list[Path]:
    """Draw every figure from those of its runs that have results."""
    paths: list[Path] = []
    wanted = choice(args)
    for figure in figures:
        methods = {line.name for line in figure.lines}
        own = replace(wanted, methods=tuple(name for name in wanted.methods if name in methods))
        if wanted.methods and not own.methods:  # none of the methods asked for is in this figure
            continue
        jobs = paper.make_jobs([figure], own, args.results, args.save_every)
        there = [job for job in jobs if not queue.missing_plans(job)]
        paths += draw(figure, there, args.results / "figures") if there else []
    return paths


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

    rows, trained = figures.read_rows([file for job in batch for file in job.result_files])
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


def _print_means(batch: list[Job]) -> None:
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


# --- the runs of a folder ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class StatusArgs:
    """Show how runs stand: queued, running, done, interrupted, cancelled, or failed with the reason."""

    folder: Annotated[Path, Positional("DIR")]
    """The folder of the runs: that of a sweep, or `runs`."""
    json: bool = False
    """Print one JSON object for each run."""


def run_status(args: StatusArgs) -> int:
    """Read and print; exit status 1 if a run has failed or cannot be read."""
    found, problems = queue.jobs_in(args.folder)
    if not found and not problems:
        raise InputError(f"{args.folder} holds no runs")
    known: list[tuple[Job, Status]] = []
    for job in found:
        try:
            known.append((job, queue.status_of(args.folder, job)))
        except InputError as error:  # a damaged result hides no other run
            problems.append(str(error))
    if args.json:
        for pair in known:
            print_json(queue.facts(*pair))
    else:
        print_table(COLUMNS, [cells(*pair) for pair in known])
    for problem in problems:
        note(f"looped: {problem}")
    statuses = [status for _, status in known]
    note(totals(statuses))
    return int(bool(problems) or any(status.state == "failed" for status in statuses))


@dataclass(frozen=True)
class CancelArgs:
    """Stop the runs in a folder; each saves first, and the command that started them goes on from there."""

    folder: Annotated[Path, Positional("DIR")]
    """The folder of the runs."""
    wait: Annotated[float, Option("SECONDS")] = 60.0
    """Seconds to wait until all have stopped."""
    json: bool = False
    """Print how everything stands then, as one JSON object."""


def run_cancel(args: CancelArgs) -> int:
    """Ask, and wait; exit status 1 if something still runs."""
    if not args.wait >= 0:
        raise InputError(f"--wait must be 0 seconds or more, not {args.wait:g}")
    found, problems = queue.jobs_in(args.folder)
    for problem in problems:
        note(f"looped: {problem}")
    if not found:
        raise InputError(f"{args.folder} holds no runs")
    queue.cancel(args.folder)
    deadline = time.monotonic() + args.wait
    while True:
        statuses = [queue.status_of(args.folder, job) for job in found]
        running = sum(status.state == "running" for status in statuses)
        if not running or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    if args.json:
        rows = list(map(queue.facts, found, statuses))
        print_json({"folder": str(args.folder), "running": running, "runs": rows})
    verdict = f"{running} still running" if running else "stopped"
    note(f"{verdict}: {totals(statuses)}; the command that started them goes on from there")
    return int(running > 0)
