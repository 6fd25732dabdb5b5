"""`looped evaluate`: how often trained models are exactly right; `looped discover`: which T(n) they have found.

$ looped discover runs/parity-free --lengths 5,10,20 --samples 640
run          length  T(n)  first right  held from  held    stop       exact   steps  random exit
parity-free       5     5          4.0        5.0  1.0000  converged  1.0000    8.0       0.6671

Several seeds: mean ± standard error. A single seed: Wilson's 95 % interval. A model that was never told T(n) is right
from some step on, if it is right at all: `held from` is that step, the mean over the examples (`held` is their share)
that stay right to the end. Ctrl-C and SIGTERM lose no length that is done.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

import looped.zoo as zoo
from looped import checkpoints, devices
from looped.cli.arguments import Option, OwnPart, Positional
from looped.errors import InputError
from looped.evaluation import loading, stopping
from looped.evaluation.loading import LARGEST_SEED, Kind, LoadedRun, Precision, load, parse_lengths
from looped.evaluation.measure import check, pace, usual_stops
from looped.evaluation.rollout import DIVERGED
from looped.evaluation.stopping import Rule
from looped.output import note, print_json, print_table, progress
from looped.registry import NamedParts, resolve
from looped.result_files import over_seeds, wilson
from looped.tasks.distributions import UNIFORM
from looped.training.interrupt import status_of
from looped.training.progress import clock

Json = dict[str, Any]  # a row of results
Stops = tuple[str | Rule, ...]
Seconds = Callable[[int, int], float]  # of a length and a number of problems
Show = Callable[[Iterable[tuple[str, list[Json]]]], None]  # prints the rows of all seeds, with the run's name
CHOSEN = "(default: on a CPU what ends within a minute, on a GPU 1:60 and 6400)"
LENGTHS, SAMPLES = "1:60", 6400  # on a GPU, as in the paper
TIMES = (1, 1.5, 2, 3)  # of the training length: the lengths on a CPU
BUDGET_S = 40.0  # of measuring on a CPU, so that loading and a busy machine leave it below a minute
ROUND = (5000, 2000, 1000, 500, 200, 100, 50, 20, 10)  # problems per length to choose from
QUICK = 5000  # problems × lengths × longest that are measured without asking how long it takes
TOLD_S = 10.0  # work that takes longer says so before it starts
PRIOR_S = 3.0  # how many seconds of work the first estimate counts for against what was seen


@dataclass(frozen=True)
class Shared:
    """The options that both commands have."""

    runs: Annotated[tuple[Path, ...], Positional("RUN…")]
    """Folders of runs (all their seeds), single files such as runs/x/seed-0.safetensors, shipped models by name, or
    published models (a folder, or hub:OWNER/NAME)."""
    lengths: Annotated[str, Option("LENGTHS", default=CHOSEN)] = ""
    """1:60 (with both ends), 10:100:10 (every tenth), or 10,20,40."""
    samples: Annotated[int | None, Option("N", default=CHOSEN)] = None
    """Problems per length."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """Of products: fp32, or the model's own where finer; bf16; or trained, as in training (bf16 on CUDA)."""
    seed: int = 0
    """Of the test problems."""
    out: Annotated[Path | None, Option("FILE.json", default="")] = None
    """Also write the rows and where they come from to this JSON file."""
    json: bool = False
    """Print the rows and where they come from as one JSON object."""
    task: OwnPart = ()
    """A task of your own that the runs were trained on."""
    method: OwnPart = ()
    """A method of your own that the runs were trained by."""
    block: OwnPart = ()
    """A block of your own that the runs were trained with."""


@dataclass(frozen=True)
class MeasurePlan:
    """What is to be measured: every run under its rules, on every input distribution and length."""

    args: Shared
    device: torch.device
    loaded: list[LoadedRun]
    stops: list[Stops]  # of each run
    families: tuple[str, ...]
    lengths: list[int]
    samples: int
    began: float
    seconds: tuple[Seconds, ...] = ()  # of each run; empty where that was not measured

    def parts(self) -> Iterator[tuple[int, str, int]]:
        """Run, input distribution and length of everything, in the order in which it is measured."""
        return itertools.product(range(len(self.loaded)), self.families, self.lengths)

    def expected(self) -> list[float]:
        """The seconds that each part takes; 0 where that is not known."""
        known = self.seconds
        return [known[i](length, self.samples) if known else 0.0 for i, _, length in self.parts()]

    def report(self, kind: Kind, show: Show) -> int:
        """Measure part by part, write and print the rows; the exit status. Ctrl-C and SIGTERM keep what is done."""
        rows: list[list[Json]] = [[] for _ in self.loaded]
        expected = self.expected()
        left, status = TimeLeft(expected), 0
        try:
            with progress(len(expected), left=str(left)) as bar:
                for i, family, length in self.parts():
                    about: dict[str, Any] = {"seed": self.args.seed, "stops": self.stops[i], "family": family}
                    rows[i] += self.loaded[i].rows(kind, length, self.samples, **about)
                    named = self.args.runs[i].name + ("" if family == UNIFORM else f" {family}")
                    bar.done(f"{named}: length {length}", left.done())
        except KeyboardInterrupt as error:
            if not any(rows):
                raise
            status = status_of(error)
        self._deliver(rows, show, interrupted=bool(status))
        return status

    def _deliver(self, rows: list[list[Json]], show: Show, interrupted: bool) -> None:
        """Write and print the rows with where they come from, for people by `show`."""
        provenance = {
            **devices.facts(self.device),
            "precision": self.args.precision,
            "wall_seconds": round(time.monotonic() - self.began, 3),
            "runs": [each.origin() for each in self.loaded],
            **({"interrupted": True} if interrupted else {}),
        }
        result = {"provenance": provenance, "rows": [row for own in rows for row in own]}
        try:
            if (out := self.args.out) is not None:
                if interrupted and out.exists():  # what was measured whole stays
                    out = out.with_name(f"{out.name}.partial")
                checkpoints.write_json(out, result)
        finally:  # a full disk loses no row, nor does a closed stdout
            if self.args.json:
                print_json(result)
            else:
                show(_grouped(rows, self.args.runs))
        if out is not None:
            note(f"wrote {out}")
        if interrupted:
            note("looped: interrupted; this is what was measured until then")


class TimeLeft:
    """The time left of work in parts whose seconds were estimated; corrected by what the parts took."""

    def __init__(self, expected: Sequence[float]) -> None:
        self._expected, self._done, self._began = expected, 0, time.monotonic()

    def done(self) -> str:
        """Count one part; what is left then."""
        self._done += 1
        return str(self)

    def seconds(self) -> float:
        """The estimate; 0 where nothing is known."""
        passed = sum(self._expected[: self._done])
        pace = (time.monotonic() - self._began + PRIOR_S) / (passed + PRIOR_S) if self._done else 1.0
        return pace * sum(self._expected[self._done :])

    def __str__(self) -> str:
        return f"about {clock(left)} left" if (left := self.seconds()) else ""


def plan(
    args: Shared, command: str, families: Sequence[str], stops_of: Callable[[LoadedRun], Stops]
) -> MeasurePlan:
    """Complain about bad options and load the runs; on a CPU, choose what it answers in time."""
    device = devices.pick(args.device)
    lengths = parse_lengths(args.lengths) if args.lengths else []
    if not 0 <= args.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {args.seed}")
    if args.out is not None:
        checkpoints.check_folder("--out", args.out)
        checkpoints.check_writable(args.out)
    if not args.runs:
        raise InputError(f"looped {command} needs a RUN: a run's folder or a checkpoint of one seed")
    given = NamedParts(task=args.task, method=args.method, block=args.block)
    began = time.monotonic()
    loaded = [load(zoo.located(str(path)) or path, device, args.precision) for path in args.runs]
    given.check()
    for each in loaded:
        if how := loading.selected(each.seeds[0].config):
            note(f"looped: {each.path}: {how}")
        _check_alive(each, min(lengths, default=1))
    on_cpu = device.type == "cpu"
    if not lengths and on_cpu:
        longest = max(each.subject.trained_max_length for each in loaded)
        lengths = sorted({max(1, round(times * longest)) for times in TIMES})
    samples = args.samples if args.samples is not None else 1 if on_cpu else SAMPLES
    asked = MeasurePlan(
        args, device, loaded, [stops_of(each) for each in loaded], tuple(dict.fromkeys(families)),
        lengths or parse_lengths(LENGTHS), samples, began,
    )  # fmt: skip
    if not asked.families:
        raise InputError("--family must name at least one input distribution, such as uniform")
    for each, stops in zip(loaded, asked.stops, strict=True):  # all complaints before any work
        for family in asked.families:
            check(each.subject, asked.lengths, samples, stops=stops, family=family)
    return fitted(asked) if on_cpu else asked


def fitted(asked: MeasurePlan) -> MeasurePlan:
    """The same with the number of problems that a CPU answers in time; says how long that takes."""
    given = asked.args.samples is not None
    if given and asked.samples * len(asked.lengths) * max(asked.lengths) <= QUICK:
        return asked
    middle = sorted(asked.lengths)[len(asked.lengths) // 2]
    subjects = zip(asked.loaded, asked.stops, strict=True)
    paces = (pace(loaded.subject, middle, list(map(stopping.get, stops))) for loaded, stops in subjects)
    asked = replace(asked, seconds=tuple(paces))
    if given:
        if (seconds := sum(asked.expected())) > TOLD_S:
            note(f"looped: this takes about {clock(seconds)}")
        return asked
    for samples in ROUND:
        asked = replace(asked, samples=samples)
        if (seconds := sum(asked.expected())) <= BUDGET_S:
            break
    chosen = f"{samples} problems per length at {','.join(map(str, asked.lengths))}"
    note(f"looped: {chosen}, about {clock(seconds)}; --lengths and --samples change it")
    return asked


def _check_alive(loaded: LoadedRun, length: int) -> None:
    """Refuse a run of which nothing is left to measure, and say which seeds of another have diverged."""
    subject = loaded.subject
    check(subject, [length], 1, stops=usual_stops(subject.method), family=UNIFORM)
    bad = loading.diverged(subject, length)
    if bad and len(bad) == len(subject.seeds):
        raise InputError(f"{loaded.path} {DIVERGED}")
    if bad:
        note(f"looped: of {loaded.path}, seed {', '.join(map(str, bad))} {DIVERGED}")


@dataclass(frozen=True)
class EvaluateArgs(Shared):
    """Measure trained models: the share of whole answers that are right, on fresh random problems."""

    stop: Annotated[tuple[str, ...], Option("RULE…")] = ("oracle",)
    """Stopping rules: oracle, confidence, confidence-batch, threshold, threshold=0.001, converged=5, FILE.py:Name, …"""
    family: Annotated[tuple[str, ...], Option("DISTRIBUTION…")] = ("uniform",)
    """Input distributions: uniform, zeros, ones, repeated, p=0.05, mixed+carry, …; `looped tasks --json` lists them."""


def run_evaluate(args: EvaluateArgs) -> int:
    """Measure everything asked for, then print it once."""
    return plan(args, "evaluate", args.family, lambda _: rules(args.stop)).report("accuracy", _print_accuracy)


def rules(named: Sequence[str]) -> Stops:
    """The stopping rules that a person names, each once; those in files become known."""
    return stopping.distinct([resolve("stopping rule", name) for name in named])


def _grouped(found: Sequence[Sequence[Json]], paths: Sequence[Path]) -> Iterator[tuple[str, list[Json]]]:
    """The run's name and the rows of all its seeds, for each run, length, rule and input distribution."""
    for path, rows in zip(paths, found, strict=True):
        groups: dict[tuple[object, ...], list[Json]] = {}
        for row in rows:
            groups.setdefault((row["length"], row["stop"], row.get("family")), []).append(row)
        for group in groups.values():
            yield path.name, group


def _print_accuracy(groups: Iterable[tuple[str, list[Json]]]) -> None:
    """Seeds as mean and error; a single one with Wilson's interval."""
    lines = []
    for name, group in groups:
        first, spread = group[0], over_seeds([row["accuracy"] for row in group])
        low, high = wilson(spread.mean, first["samples"])
        sure = f"({low:.4f} to {high:.4f})" if spread.error is None else f"± {spread.error:.4f}"
        steps = round(over_seeds([row["mean_steps"] for row in group]).mean, 2)
        about = [name, first["length"], first["stop"], first.get("family", UNIFORM)]
        lines.append([*about, f"{spread.mean:.4f} {sure}", steps])
    print_table(["run", "length", "stop", "inputs", "exact", "steps"], lines)


@dataclass(frozen=True)
class DiscoverArgs(Shared):
    """Find out from which loop step on trained models are right, by length, and what their stopping is worth."""

    lengths: str = "1:20"
    """1:20 (with both ends), 10:100:10 (every tenth), or 10,20,40."""
    samples: int | None = 640
    """Problems per length."""
    stop: Annotated[tuple[str, ...], Option("RULE…")] = ()
    """Stopping rules; unless given, the one that suits how a model was trained."""


def run_discover(args: DiscoverArgs) -> int:
    """Measure everything asked for, then print it once."""

    def stops_of(loaded: LoadedRun) -> Stops:
        return rules(args.stop or loaded.seeds[0].config.stops)

    return plan(args, "discover", [UNIFORM], stops_of).report("halting", _print_discovered)


DISCOVERED = {
    "T(n)": ("needed", 0), "first right": ("first_right", 2), "held from": ("held_from", 2), "held": ("held", 4),
    "stop": ("stop", 0), "exact": ("accuracy", 4), "steps": ("mean_steps", 2), "random exit": ("random_exit", 4),
}  # column → field, and digits of its mean over seeds; 0: the same for all  # fmt: skip


def _print_discovered(groups: Iterable[tuple[str, list[Json]]]) -> None:
    lines = []
    for name, group in groups:
        own = [_mean(group, *each) if each[1] else group[0][each[0]] for each in DISCOVERED.values()]
        lines.append([name, group[0]["length"], *own])
    print_table(["run", "length", *DISCOVERED], lines)


def _mean(group: Sequence[Json], field: str, digits: int) -> str:
    values = [row[field] for row in group if row[field] is not None]
    return f"{over_seeds(values).mean:.{digits}f}" if values else "–"
