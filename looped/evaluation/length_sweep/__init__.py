"""The length sweep: how far past its training length a model is exact. `looped bench ladder` runs it.

A sweep measures accuracy at a row of lengths. **L99** is the longest of them such that at it *and at every shorter one*
each seed answers at least 99 % of the problems exactly; L999 asks for 99.9 %. Both are given for the oracle's step
count and for each rule by which the model stops itself, and twice: on uniform inputs, and for the worst input
distribution.

    length         20      30      60      100
    seed 0      1.000   1.000    .995    1.000
    seed 1      1.000    .998    .970     .999       L99 = 30 (seed 1 fails at 60), L999 = 20

`record.py` holds the result file, of which nothing is measured twice, and L99 and L999 from its rows. This module says
which models are measured, in which order, and when to give up:

    runs/copy-fop-loop-adaptive-long     a folder: all its seeds
    runs/x/seed-0.safetensors …          files: seeds of one folder and configuration belong together
    runs/copy-0-4 runs/copy-5-9          folders whose configurations differ in seeds alone: one model of ten seeds

A model is known by its name and a checksum over its weights, its configuration, the precision it is measured in and
the seed of the test problems, so that results of different models are never mixed up.

Shorter lengths of all models come first, and of each length the uniform inputs. Where no seed has `floor` of the
uniform answers right under any rule, longer lengths are not measured; an input distribution below it is left out from
there on. Neither can change L99, which was lost before.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from looped import checkpoints, devices, files, runs, serial
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.length_sweep.record import LEVELS, SweepRecord
from looped.evaluation.loading import LARGEST_SEED, Precision, stack
from looped.evaluation.measure import (
    ORACLE,
    Subject,
    check,
    check_samples,
    measure_length,
    oracle_steps,
    usual_stops,
)
from looped.evaluation.steps import has_steps, measure_steps
from looped.result_files import Json
from looped.runs import Trained
from looped.tasks.families import UNIFORM

LENGTHS = (20, 30, 40, 60, 100, 200, 500, 1000)  # the training and the paper's length are added
SAMPLES = 2000  # problems per length and input distribution
STEP_SAMPLES = 500  # problems per length that run on to 3·T, for overrun and drift
FLOOR = 0.6  # no seed above it: far below exact, and above what guessing one bit gives
ALL = "all"  # every input distribution of the task
# Fields that configurations did not have at first, at their defaults: a model's key stays what it was.
NEWER = {"block": "", "late_family": "", "replicas": 1, "hold_out": 0, "refine": 0.25, "stack": 0}
SAVE_EVERY = 30.0  # seconds between two writings of partial counts


# --- models ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweptModel:
    """A model to measure, and where it comes from."""

    key: str  # `copy-long@1f0c9a3e`: what rows of results call it
    subject: Subject
    origin: dict[str, object]  # as `looped evaluate` gives it, with name, checksum and settings


@dataclass
class _Seeds:
    """Seeds of one model, as they are found."""

    name: str
    path: Path
    config: str  # as text, without its seeds
    seeds: list[Trained]


def load_models(
    paths: Sequence[Path], device: torch.device, precision: Precision, seed: int
) -> list[SweptModel]:
    """Load the models behind some paths, in their order; `seed` is that of the test problems."""
    if not paths:
        raise InputError("a length sweep needs a RUN: a run's folder or checkpoints of its seeds")
    groups: list[_Seeds] = []
    for group in _folders(paths):
        for other in groups:
            apart = {each.seed for each in other.seeds}.isdisjoint(each.seed for each in group.seeds)
            if other.config == group.config and apart:
                other.seeds += group.seeds
                break
        else:
            groups.append(group)
    return [_model(group, device, precision, seed) for group in groups]


def _folders(paths: Sequence[Path]) -> list[_Seeds]:
    """The seeds of each folder, and of each configuration in it."""
    files: dict[Path, None] = {}
    for path in paths:
        # a file of the hub's cache is a link: its own name says what it is
        files |= dict.fromkeys(file.parent.resolve() / file.name for file in runs.weight_files(path))
    found: dict[tuple[Path, str, int], _Seeds] = {}
    for file in files:
        trained = runs.load_seed(file)
        fields = serial.to_json(trained.config).items()
        told = {key: value for key, value in fields if key != "seeds" and NEWER.get(key) != value}
        config = json.dumps(told, sort_keys=True)
        same = 0  # files of one folder may hold the same seed twice: those are different models
        while (file.parent, config, same) in found:
            if trained.seed not in {each.seed for each in found[file.parent, config, same].seeds}:
                break
            same += 1
        name = file.parent.name if re.fullmatch(r"seed-\d+|model", file.stem) else file.stem
        group = found.setdefault((file.parent, config, same), _Seeds(name, file.parent, config, []))
        group.seeds.append(trained)
    return list(found.values())


def _model(group: _Seeds, device: torch.device, precision: Precision, seed: int) -> SweptModel:
    group.seeds.sort(key=lambda each: each.seed)
    sha = hashlib.sha256(json.dumps([group.config, precision, seed]).encode())
    for each in group.seeds:
        sha.update(f"{each.seed} {each.step}".encode())
        sha.update(each.row.contiguous().view(torch.uint8).numpy().data)
    loaded = stack(group.path, group.seeds, device, precision)
    key = f"{group.name}@{sha.hexdigest()[:8]}"
    origin = {
        "key": key, **loaded.origin(), "run": group.name, "checksum": sha.hexdigest(),
        "precision": precision, "problem_seed": seed,
    }  # fmt: skip
    return SweptModel(key, loaded.subject, origin)


# --- settings ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepSettings:
    """What is measured of every model."""

    lengths: tuple[int, ...] = ()  # none given: the usual ones, the training length and the paper's
    samples: int = SAMPLES  # per length and input distribution
    families: tuple[str, ...] = (ALL,)  # input distributions besides uniform, which always comes first
    stops: tuple[str, ...] = ()  # none given: every rule in `stops_of`
    floor: float = FLOOR
    step_samples: int = STEP_SAMPLES  # per length, for overrun and drift
    seed: int = 0  # of the test problems

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {self.seed}")
        check_samples(self.step_samples, least=0)
        if not 0 <= self.floor <= LEVELS["L99"] / 1000:
            raise InputError(f"the floor is a share between 0 and 0.99, not {self.floor}")


@dataclass(frozen=True)
class LengthDone:
    """What a listener is told after each length and input distribution."""

    key: str
    length: int
    family: str
    rows: list[Json]
    seconds: float | None  # None: it was in the file already


def lengths_of(subject: Subject, settings: SweepSettings) -> tuple[int, ...]:
    """The lengths of a sweep, ascending."""
    usual = {*LENGTHS, subject.trained_max_length, subject.task.paper.test_length}
    return tuple(sorted(set(settings.lengths) or usual))


def families_of(subject: Subject, settings: SweepSettings) -> tuple[str, ...]:
    """The input distributions, uniform first; `all` stands for every one of the task."""
    named = [subject.task.families if name == ALL else (name,) for name in settings.families]
    return tuple(dict.fromkeys([UNIFORM, *itertools.chain(*named)]))


def stops_of(subject: Subject, settings: SweepSettings) -> tuple[str, ...]:
    """The rules as rows name them; unless given: oracle, converged, and halt where the model has a halting head."""
    if settings.stops:
        return tuple(dict.fromkeys(stopping.get(name).name for name in settings.stops))
    if not subject.method.adaptive or subject.method.universal:
        return usual_stops(subject.method)
    return (ORACLE, "converged", *(["halt"] if subject.model.config.says_done else []))


# --- the sweep ---------------------------------------------------------------------------------------------


def sweep_runs(
    paths: Sequence[Path],
    settings: SweepSettings,
    out: Path,
    *,
    device: str = "auto",
    precision: Precision = "fp32",
    limit: float = float("inf"),
    on_length: Callable[[LengthDone], None] = lambda done: None,
    on_start: Callable[[SweepRecord, Sequence[str]], None] = lambda record, keys: None,
) -> tuple[SweepRecord, bool]:
    """Measure what is missing in the file `out`; what it holds of these runs, and whether all is done.

    No new problems are started `limit` seconds after the start; the same call goes on from there.
    """
    start, where = time.monotonic(), devices.pick(device)
    models = load_models(paths, where, precision, settings.seed)
    keys = [each.key for each in models]

    def enough() -> bool:
        return time.monotonic() - start > limit

    enter(models, settings, SweepRecord(out))  # complains before anything is written, a lock included
    with _exclusive(out):
        record = SweepRecord(out)
        enter(models, settings, record)
        record.facts = record.facts or dict(devices.facts(where))
        record.write()
        on_start(record, keys)
        ended = sweep(models, settings, record, on_length=on_length, enough=enough)
    return record.only(keys), ended


@contextlib.contextmanager
def _exclusive(out: Path) -> Iterator[None]:
    """Lock the file: it is written whole, so that of two writers one would lose its rows."""
    with checkpoints.disk(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = files.lock(out.with_name(f".{out.name}.lock"), patience_s=0)
    if lock is None:
        raise InputError(
            f"another length sweep is being written to {out}: wait for it, or name another file with --out"
        )
    with lock:
        yield


def enter(models: Sequence[SweptModel], settings: SweepSettings, record: SweepRecord) -> None:
    """Check all that is asked for, before any work, and make the models known to the record."""
    planned = []
    for each in models:
        subject = each.subject
        lengths, stops = lengths_of(subject, settings), stops_of(subject, settings)
        families = families_of(subject, settings)
        for family in families:
            check(subject, lengths, settings.samples, stops=stops, family=family)
        about = {
            **each.origin, "task": subject.task.name, "method": subject.method.name, "recipe": subject.recipe,
            "trained": subject.trained_max_length, "paper": subject.task.paper.test_length,
            "floor": settings.floor, "lengths": lengths, "stops": stops, "families": families,
        }  # fmt: skip
        planned.append((each.key, about))
    for key, about in planned:
        record.enter(key, about)


def sweep(
    models: Sequence[SweptModel],
    settings: SweepSettings,
    record: SweepRecord,
    *,
    on_length: Callable[[LengthDone], None] = lambda done: None,
    enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Measure what is missing, a length of all models before the next; False if `enough` said to stop."""
    sweeps = [_ModelSweep(each, settings, record, enough) for each in models]
    for length in sorted({n for each in sweeps for n in each.lengths}):
        for each in sweeps:
            if length not in each.lengths or UNIFORM in each.lost:
                continue
            if not each.measure(length, on_length):
                return False
            if length == each.lengths[-1] or UNIFORM in each.lost:
                record.finish(each.key, lengths=each.lengths, families=each.families, stops=each.stops)
    return True


class _ModelSweep:
    """What is measured of one model, and the input distributions that are given up."""

    def __init__(
        self, model: SweptModel, settings: SweepSettings, record: SweepRecord, enough: Callable[[], bool]
    ) -> None:
        self.key, self.subject, self.settings, self.record = model.key, model.subject, settings, record
        self.lengths, self.stops = lengths_of(model.subject, settings), stops_of(model.subject, settings)
        self.families = families_of(model.subject, settings)
        self.lost: set[str] = set()
        self.enough = enough

    def measure(self, length: int, on_length: Callable[[LengthDone], None]) -> bool:
        """One length, without the input distributions that are lost; adds to those. False if it was stopped."""
        for family in self.families:
            if self.lost & {family, UNIFORM}:
                continue
            begun = time.monotonic()
            lacks_rows = not self.record.holds(self.key, length, family, self.stops, self.settings.samples)
            lacks_steps = self._lacks_steps(length, family)
            there = not (lacks_rows or lacks_steps)
            if not there and self.enough():
                return False
            if lacks_rows and not self._measure_rows(length, family):
                return False
            if lacks_steps and not self._measure_steps(length):
                return False
            rows = self.record.found(self.key, length, family, self.stops)
            on_length(LengthDone(self.key, length, family, rows, None if there else time.monotonic() - begun))
            if max(row["accuracy"] for row in rows) < self.settings.floor:
                self.lost.add(family)
        return True

    def _lacks_steps(self, length: int, family: str) -> bool:
        samples = self.settings.step_samples
        wanted = family == UNIFORM and has_steps(self.subject) and samples > 0
        return wanted and not self.record.holds_steps(self.key, length, samples)

    def _measure_rows(self, length: int, family: str) -> bool:
        subject, samples = self.subject, self.settings.samples
        part = _Unfinished(self.record, [self.key, length, family, samples, *self.stops], self.enough)
        with part.kept():
            rows = measure_length(
                subject, length, samples, seed=self.settings.seed,
                rules=check(subject, [length], samples, stops=self.stops, family=family), family=family,
                max_steps=2 * oracle_steps(subject, length), state=part.state, pause=part.pause,
            )  # fmt: skip
        if rows is not None:
            self.record.put(
                self.key, [row.as_dict() for row in rows], seconds=part.seconds, facts=self._facts()
            )
        return rows is not None

    def _measure_steps(self, length: int) -> bool:
        samples, seed = self.settings.step_samples, self.settings.seed
        part = _Unfinished(self.record, [self.key, length, "steps", samples], self.enough)
        with part.kept():
            steps = measure_steps(
                self.subject, length, samples, seed=seed, state=part.state, pause=part.pause
            )
        if steps is not None:
            self.record.put(self.key, steps=steps, seconds=part.seconds, facts=self._facts())
        return steps is not None

    def _facts(self) -> Json:
        return dict(devices.facts(self.subject.weights.embed.device))


class _Unfinished:
    """The partial counts of a measurement that was stopped, the time spent on it, and when to save it again."""

    def __init__(self, record: SweepRecord, what: Sequence[object], enough: Callable[[], bool]) -> None:
        self.state, self._before = record.left(what)
        self._record, self._what, self._enough = record, what, enough
        self._begun = self._written = time.monotonic()
        self._last: Json | None = None  # counts that are not written yet

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """While entered, Ctrl-C or SIGTERM writes the last whole counts first."""
        try:
            yield
        except KeyboardInterrupt:
            if self._last is not None:
                self._record.leave(self._what, self._last, self.seconds)
            raise

    @property
    def seconds(self) -> float:
        """Spent on the measurement, over all its beginnings."""
        return self._before + time.monotonic() - self._begun

    def pause(self, state: Json) -> bool:
        """Whether to stop; the partial counts are saved then, and every now and then."""
        stop = self._enough()
        self._last = copy.deepcopy(state)  # the next part is counted into it
        if stop or time.monotonic() - self._written > SAVE_EVERY:
            self._record.leave(self._what, self._last, self.seconds)
            self._written, self._last = time.monotonic(), None
        return stop
