"""`looped sweep`: many runs from one file, on one backend; `looped status`, `looped cancel`: the runs of a folder.

$ looped sweep runs.json --out runs/widths
12 runs in runs/widths: 4 done, 8 queued
…
complete: 12 done; wrote runs/widths
$ looped status runs/widths
run                                     state    step       loss    measured
copy-fop-loop-adaptive-quick-0b6a1f22   done     1000/1000  0.0021       1/1
copy-fop-loop-adaptive-quick-9c41d07e   running   412/1000  0.0830       0/1
$ looped cancel runs/widths
stopped: 1 done, 1 cancelled; the command that started them goes on from there

The same sweep again does only what is missing. While jobs run, the table is redrawn on a terminal; in a pipe, a line
says what changed. Workers hear a cancel on any machine, and so does `looped train`; `python -m looped.training` on a
bare machine takes signals alone. Options of backends and running jobs are shared with `looped reproduce`.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from looped.cli.arguments import Option, Positional
from looped.cli.output import note, print_json, print_table
from looped.errors import InputError
from looped.experiments import backends, queue, results
from looped.experiments.backends import BackendOptions, StatusListener, SweepOutcome
from looped.experiments.plan import SweepFile, read_sweep
from looped.experiments.queue import Job, Status
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

    @property
    def options(self) -> BackendOptions:
        """What the backend is told; raises if it does not take an option."""
        options = BackendOptions(self.workers, self.device, self.address, self.sbatch)
        backends.check(self.engine, options)
        backends.check_limit(self.time_limit)
        return options


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
    with Interrupt() as asked:
        outcome = backends.run_jobs(
            backend, batch, listener=status_listener(), stop=asked, time_limit_s=args.time_limit
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


def status_listener() -> StatusListener:
    """The live table where stderr is a terminal, lines where it is not."""
    return StatusTable() if sys.stderr.isatty() else StatusLines()


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
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, padding=(0, 2), caption=totals(statuses), caption_justify="left")
    for column in COLUMNS:
        drawn.add_column(column, justify="right" if column in ("step", "loss", "measured") else "left")
    pairs = list(zip(batch, statuses, strict=True))
    first = ("failed", "running", "queued", "interrupted", "cancelled", "done")
    urgent = sorted(range(len(pairs)), key=lambda i: (first.index(pairs[i][1].state), i))[: max(room, 3)]
    for i in sorted(urgent):
        drawn.add_row(*(Text(cell) for cell in cells(*pairs[i])))
    return drawn


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
    batch = make_jobs(read_sweep(args.file, args.python), root, args.save_every)
    args.options  # noqa: B018  complains before anything is done
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
        for plan, file in zip(job.plans, queue.result_files(job), strict=True):
            for row in results.read(file, job.config, plan) or []:
                if row.get("step") == row.get("chosen"):
                    yield job, row


def spread(values: Sequence[float], digits: int) -> str:
    """`0.9891 ± 0.0047`: the mean over seeds, and its error where there are several."""
    if not values:
        return "–"
    found = over_seeds(values)
    return f"{found.mean:.{digits}f}" + ("" if found.error is None else f" ± {found.error:.{digits}f}")


def make_jobs(sweep: SweepFile, root: Path, save_seconds: float) -> list[Job]:
    """The jobs a sweep asks for, in its order."""
    results = str((root / "results").resolve()) if sweep.plan else ""
    return [
        Job(run.folder, run.config, (sweep.plan.fit(run),) if sweep.plan else (), results, save_seconds)
        for run in sweep.runs
    ]


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
    statuses = [status for _, status in known]
    if args.json:
        for job, status in known:
            print_json(queue.facts(job, status))
    else:
        print_table(COLUMNS, [cells(*pair) for pair in known])
    for problem in problems:
        note(f"looped: {problem}")
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
