"""`looped evaluate`: how often trained models are exactly right; `looped discover`: which T(n) they have found.

$ looped evaluate runs/copy-fop-loop-adaptive-quick --lengths 10,20 --samples 640
run                           length  stop    inputs   exact            steps
copy-fop-loop-adaptive-quick      10  oracle  uniform  1.0000 ± 0.0000   10.0
copy-fop-loop-adaptive-quick      20  oracle  uniform  0.9891 ± 0.0047   20.0
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

import looped.zoo as zoo
from looped import checkpoints, devices
from looped.cli.arguments import Option, OwnPart, Positional
from looped.cli.output import note, print_json, print_table, progress
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.loading import (
    LARGEST_SEED,
    LoadedRun,
    Precision,
    diverged,
    load,
    parse_lengths,
    selected,
)
from looped.evaluation.measure import Pace, check, measure, pace, usual_stops
from looped.evaluation.rollout import DIVERGED
from looped.evaluation.steps import discover
from looped.evaluation.stopping import Rule
from looped.experiments.plan import variant
from looped.registry import NamedParts, resolve
from looped.result_files import over_seeds, wilson
from looped.tasks.families import UNIFORM
from looped.training.interrupt import status_of
from looped.training.progress import clock

Json = dict[str, Any]  # a row of results
Measure = Callable[[LoadedRun, str, int], list[Json]]  # a run's rows on an input distribution at a length
Show = Callable[[list[list[Json]]], None]  # prints the rows of each run
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
class Ready:
    """Everything is there, nothing is measured yet."""

    args: Shared
    lengths: list[int]
    samples: int
    device: torch.device
    loaded: list[LoadedRun]
    began: float
    speeds: tuple[tuple[Pace, list[Rule]], ...] = ()  # of each run, under its rules; empty where not measured

    def report(self, measure: Measure, show: Show, families: Sequence[str] = (UNIFORM,)) -> int:
        """Measure every run on every input distribution and length, write and print the rows; the exit status.

        Ctrl-C and SIGTERM keep what is done.
        """
        rows: list[list[Json]] = [[] for _ in self.loaded]
        parts = list(itertools.product(range(len(self.loaded)), families, self.lengths))
        left, status = TimeLeft([self.expected(i, length) for i, _, length in parts]), 0
        try:
            with progress(len(parts), left=str(left)) as bar:
                for i, family, length in parts:
                    rows[i] += measure(self.loaded[i], family, length)
                    named = self.args.runs[i].name + ("" if family == UNIFORM else f" {family}")
                    bar.done(f"{named}: length {length}", left.done())
        except KeyboardInterrupt as error:
            if not any(rows):
                raise
            status = status_of(error)
        self._deliver(rows, show, interrupted=bool(status))
        return status

    def expected(self, run: int, length: int) -> float:
        """The seconds that a length of a run will take; 0 where that is not known."""
        if not self.speeds:
            return 0.0
        speed, rules = self.speeds[run]
        return speed.seconds(self.loaded[run].subject, length, self.samples, rules)

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
                show(rows)
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
        left = self.seconds()
        return f"about {clock(left)} left" if left else ""


def ready(args: Shared, command: str) -> Ready:
    """Complain about bad options, then load the runs; on a CPU, `fitted` chooses how many problems."""
    device = devices.pick(args.device)
    lengths = parse_lengths(args.lengths) if args.lengths else []
    if not 0 <= args.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {args.seed}")
    if args.out is not None and (args.out.is_dir() or not args.out.parent.is_dir()):
        raise InputError(f"--out must name a file in a folder that exists, not {args.out}")
    if args.out is not None:
        checkpoints.check_writable(args.out)
    if not args.runs:
        raise InputError(f"looped {command} needs a RUN: a run's folder or a checkpoint of one seed")
    given = NamedParts(task=args.task, method=args.method, block=args.block)
    began = time.monotonic()
    loaded = [load(_found(path), device, args.precision) for path in args.runs]
    given.check()
    for each in loaded:
        if how := selected(each.seeds[0].config):
            note(f"looped: {each.path}: {how}")
        _check_alive(each, min(lengths, default=1))
    on_cpu = device.type == "cpu"
    samples = args.samples if args.samples is not None else 1 if on_cpu else SAMPLES
    usual = _usual_lengths(loaded) if on_cpu else parse_lengths(LENGTHS)
    return Ready(args, lengths or usual, samples, device, loaded, began)


def _usual_lengths(loaded: Sequence[LoadedRun]) -> list[int]:
    """From the longest training length to three times as much."""
    longest = max(each.subject.trained_max_length for each in loaded)
    return sorted({max(1, round(times * longest)) for times in TIMES})


def fitted(asked: Ready, stops: Callable[[LoadedRun], Sequence[str | Rule]], families: int = 1) -> Ready:
    """The same with the number of problems that a CPU answers in time, and how long everything will take."""
    given = asked.args.samples is not None
    small = asked.samples * len(asked.lengths) * max(asked.lengths) <= QUICK
    if asked.device.type != "cpu" or (given and small):
        return asked
    middle, speeds = sorted(asked.lengths)[len(asked.lengths) // 2], []
    for each in asked.loaded:
        rules = [stopping.get(stop) for stop in stops(each)]
        speeds.append((pace(each.subject, middle, rules), rules))
    asked = replace(asked, speeds=tuple(speeds))
    parts = families * list(itertools.product(range(len(asked.loaded)), asked.lengths))
    if given:
        if (seconds := sum(asked.expected(*part) for part in parts)) > TOLD_S:
            note(f"looped: this takes about {clock(seconds)}")
        return asked
    for samples in ROUND:
        tried = replace(asked, samples=samples)
        seconds = sum(tried.expected(*part) for part in parts)
        if seconds <= BUDGET_S:
            break
    chosen = f"{samples} problems per length at {','.join(map(str, asked.lengths))}"
    note(f"looped: {chosen}, about {clock(seconds)}; --lengths and --samples change it")
    return tried


def _check_alive(loaded: LoadedRun, length: int) -> None:
    """Refuse a run of which nothing is left to measure, and say which seeds of another have diverged."""
    subject = loaded.subject
    check(subject, [length], 1, stops=usual_stops(subject.method), family=UNIFORM)
    bad = diverged(subject, length)
    if bad and len(bad) == len(subject.seeds):
        raise InputError(f"{loaded.path} {DIVERGED}")
    if bad:
        note(f"looped: of {loaded.path}, seed {', '.join(map(str, bad))} {DIVERGED}")


def _found(path: Path) -> Path:
    """The file of a shipped model where its name is given; anything else as it is."""
    name = None if path.exists() or len(path.parts) > 1 else zoo.find(str(path))
    return path if name is None else zoo.path(name)


@dataclass(frozen=True)
class EvaluateArgs(Shared):
    """Measure trained models: the share of whole answers that are right, on fresh random problems."""

    stop: Annotated[tuple[str, ...], Option("RULE…")] = ("oracle",)
    """Stopping rules: oracle, confidence, confidence-batch, threshold, threshold=0.001, converged=5, FILE.py:Name, …"""
    family: Annotated[tuple[str, ...], Option("DISTRIBUTION…")] = ("uniform",)
    """Input distributions: uniform, zeros, ones, repeated, p=0.05, mixed+carry, …; `looped tasks --json` lists them."""


def run_evaluate(args: EvaluateArgs) -> int:
    """Measure everything asked for, then print it once."""
    asked = ready(args, "evaluate")
    stops, families = rules(args.stop), tuple(dict.fromkeys(args.family))
    if not families:
        raise InputError("--family must name at least one input distribution, such as uniform")
    for each in asked.loaded:  # all complaints before any work
        for family in families:
            check(each.subject, asked.lengths, asked.samples, stops=stops, family=family)
    asked = fitted(asked, lambda _: stops, len(families))

    def one(loaded: LoadedRun, family: str, length: int) -> list[Json]:
        rows = measure(loaded.subject, [length], asked.samples, seed=args.seed, stops=stops, family=family)
        return [row.as_dict() for row in rows]

    return asked.report(one, lambda found: _print_accuracy(found, args.runs), families)


def rules(named: Sequence[str]) -> tuple[str | Rule, ...]:
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


def _print_accuracy(found: Sequence[Sequence[Json]], paths: Sequence[Path]) -> None:
    """Seeds as mean and error."""
    lines = []
    for name, group in _grouped(found, paths):
        first, steps = group[0], over_seeds([row["mean_steps"] for row in group]).mean
        inputs = first.get("family", UNIFORM)
        lines.append([name, first["length"], first["stop"], inputs, _exact(group), round(steps, 2)])
    print_table(["run", "length", "stop", "inputs", "exact", "steps"], lines)


def _exact(group: Sequence[Json]) -> str:
    spread = over_seeds([row["accuracy"] for row in group])
    if spread.error is not None:
        return f"{spread.mean:.4f} ± {spread.error:.4f}"
    low, high = wilson(group[0]["accuracy"], group[0]["samples"])
    return f"{spread.mean:.4f} ({low:.4f} to {high:.4f})"


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
    asked = ready(args, "discover")
    for each in asked.loaded:  # all complaints before any work
        check(each.subject, asked.lengths, asked.samples, stops=stops_of(args, each), family=UNIFORM)
    asked = fitted(asked, lambda loaded: stops_of(args, loaded))

    def one(loaded: LoadedRun, family: str, length: int) -> list[Json]:
        """Rows of a length, with the variant's name where the run is one."""
        named, stops = variant(loaded.seeds[0].config), stops_of(args, loaded)
        rows = discover(loaded.subject, length, asked.samples, seed=args.seed, stops=stops, family=family)
        return [{**row, "variant": named} for row in rows] if named else rows

    return asked.report(one, lambda found: _print_discovered(found, args.runs))


def stops_of(args: DiscoverArgs, loaded: LoadedRun) -> tuple[str | Rule, ...]:
    """The rules asked for, or the one for models trained like this."""
    return rules(args.stop or loaded.seeds[0].config.stops)


def _print_discovered(found: Sequence[Sequence[Json]], paths: Sequence[Path]) -> None:
    """Means over seeds."""
    columns = (
        "run",
        "length",
        "T(n)",
        "first right",
        "held from",
        "held",
        "stop",
        "exact",
        "steps",
        "random exit",
    )
    lines: list[list[object]] = []
    for name, group in _grouped(found, paths):
        first_right, held_from = _mean(group, "first_right", 2), _mean(group, "held_from", 2)
        steps, control = _mean(group, "mean_steps", 2), _mean(group, "random_exit", 4)
        at = [name, group[0]["length"], group[0]["needed"], first_right, held_from, _mean(group, "held", 4)]
        lines.append([*at, group[0]["stop"], _mean(group, "accuracy", 4), steps, control])
    print_table(columns, lines)


def _mean(group: Sequence[Json], field: str, digits: int) -> str:
    values = [row[field] for row in group if row[field] is not None]
    return f"{over_seeds(values).mean:.{digits}f}" if values else "–"
