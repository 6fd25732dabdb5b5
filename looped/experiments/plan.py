"""Runs as data: a run, what is measured of it, and a file of many runs.

    RunSpec("copy")                          → copy-fop-loop-adaptive-fast, the folder `looped train copy` uses
    RunSpec("copy", set=("steps=2000",))     → copy-fop-loop-adaptive-fast-c11785d1

A name says what a run is, and eight digits of a checksum tell apart what differs from the recipe. The checksum covers
the differing fields alone, so that a field added to the configuration later renames nothing. The same holds for the
names of measurement plans: two equal plans give equal numbers, so a result is known by its run and its plan.

A sweep file (docs/scale.md) is JSON: a list of runs with the fields of `RunSpec`, of which only the task is needed, or
a grid of tasks × methods × recipes × settings:

    [{"task": "copy", "seeds": [0, 1], "set": {"model.width": 128}}, {"task": "parity", "recipe": "quick"}]
    {"tasks": ["copy", "parity"], "methods": ["fop-loop-adaptive", "ntp"], "set": {"steps": 4000},
     "grid": {"lr": [0.0003, 0.001]}, "measure": {"lengths": "1:60", "samples": 640, "stops": ["oracle"]}}

Parts may be `FILE.py:Name`, a file seen from the current folder: naming it asks for it to be run. A Python file, where
its execution is allowed, assigns the same to the name `sweep`. Everything is checked before anything is started.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import re
import runpy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from looped import files, methods, registry, serial, tasks
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.loading import LARGEST_SEED, Kind, Precision, parse_lengths
from looped.evaluation.measure import ORACLE, check_samples, check_words, usual_stops
from looped.serial import to_json
from looped.tasks.base import LONGEST
from looped.tasks.distributions import UNIFORM
from looped.training import recipes
from looped.training.config import TrainConfig
from looped.training.curriculum import max_length

SEEDS = (0, 1, 2, 3, 4)  # of a run that does not say otherwise
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
OWN = ("task", "method", "recipe", "seeds")  # fields a run has itself, not in `set`


@dataclass(frozen=True)
class RunSpec:
    """One run; its seeds are trained side by side."""

    task: str
    method: str = "fop-loop-adaptive"
    recipe: str = "fast"
    seeds: tuple[int, ...] = SEEDS
    set: tuple[str, ...] = ()  # fields of the configuration: `steps=2000`, `model.width=128`
    name: str = ""  # of its folder, where another than the usual one is wanted

    @property
    def config(self) -> TrainConfig:
        """What is trained."""
        made = recipes.make(self.task, self.method, self.recipe, self.seeds)
        return recipes.with_fields(made, self.set, OWN)

    @property
    def folder(self) -> str:
        """The name of its folder, the same for the same run at any time and on any machine."""
        return check_name(self.name) if self.name else folder_name(self.config)


def folder_name(config: TrainConfig) -> str:
    """A readable name, with a checksum where the configuration is not the recipe's with five seeds."""
    usual = recipes.make(config.task, config.method, config.recipe, SEEDS)
    plain, own = (dict(serial.leaves(serial.former(TrainConfig, to_json(each)))) for each in (usual, config))
    changed = {path: value for path, value in own.items() if plain.get(path) != value}
    parts = (config.task, config.method, config.recipe)
    changed |= {f"part {i}": part for i, part in enumerate(parts) if ":" in part}  # of which file it is
    name = "-".join(map(registry.label, parts))
    return f"{name}-{short_hash(changed)}" if changed else name


def check_name(name: str) -> str:
    """The name itself, if a folder inside another may have it."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"{name[:60]!r} cannot name a run: use up to 120 letters, digits, '-', '_' and '.', "
            "a letter or digit first"
        )
    return name


def short_hash(value: object) -> str:
    """Eight digits that tell JSON values apart."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:8]


SAMPLES = 6400  # the paper's


@dataclass(frozen=True)
class MeasurementPlan:
    """One measurement."""

    lengths: tuple[int, ...]
    kind: Kind = "accuracy"
    samples: int = SAMPLES  # a length
    stops: tuple[str, ...] = (ORACLE,)  # stopping rules; `steps` takes none
    families: tuple[str, ...] = (UNIFORM,)
    seed: int = 0  # of the test problems
    precision: Precision = "fp32"  # of products; `trained`: as training has them on that device

    def __post_init__(self) -> None:
        if not self.lengths or len(set(self.lengths)) != len(self.lengths):
            raise InputError(f"a measurement needs lengths, each once, not {list(self.lengths)[:8]}")
        if not 1 <= min(self.lengths) <= max(self.lengths) <= LONGEST:
            raise InputError(
                f"a length must be between 1 and {LONGEST}, not {min(self.lengths)} or {max(self.lengths)}"
            )
        check_samples(self.samples)
        if not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"the seed of a measurement must be from 0 to {LARGEST_SEED}, not {self.seed}")
        if not self.stops or not self.families:
            raise InputError("name at least one stopping rule and one input distribution to measure")
        for stop in self.stops:
            with contextlib.suppress(registry.NotKnown):  # another person's: looked for where it is used
                stopping.get(stop)

    @property
    def name(self) -> str:
        """For file names: `accuracy-4608dde8`; a field added later renames no plan that leaves it alone."""
        plain = to_json(MeasurementPlan((1,)))
        changed = {field: value for field, value in to_json(self).items() if value != plain[field]}
        return f"{self.kind}-{short_hash(changed)}"

    def fit(self, run: RunSpec) -> MeasurementPlan:
        """The same for one run, fixed depths without rules; raises where it cannot be trained or not be measured."""
        task, method, model = tasks.get(run.task), methods.get(run.method), trainable(run).model
        if self.kind == "steps" and (not method.adaptive or method.prediction == "ntp"):
            why = "decodes token by token" if method.adaptive else "has a fixed depth"
            raise InputError(f"{method.name} {why}: there are no steps to measure it after")
        own = method.universal or not method.adaptive  # it decides itself, or has nothing to decide
        fitted = replace(self, stops=usual_stops(method)) if own else self
        for family in self.families:
            check_words(task, method, model, self.lengths, stops=fitted.stops, family=family)
        return fitted


def trainable(run: RunSpec) -> TrainConfig:
    """What a run trains; raises where training itself would, at its start, at a later length or in an evaluation."""
    config = run.config
    recipes.check_start(config)
    task, method, longest = tasks.get(run.task), methods.get(run.method), max_length(config, config.steps - 1)
    check_words(task, method, config.model, [longest], stops=config.stops, family=config.family)
    return config


LARGEST_FILE = 1 << 20  # bytes
MOST_RUNS = 10_000  # runs of one sweep
LONGEST_SENTENCE = 400  # characters of a complaint
GRID = ("tasks", "methods", "recipes", "seeds", "set", "grid", "measure")


@dataclass(frozen=True)
class SweepFile:
    """What a file asks for."""

    runs: tuple[RunSpec, ...]
    plan: MeasurementPlan | None = None  # what is measured of each


def read_sweep(path: Path, python: bool = False) -> SweepFile:
    """The runs a file asks for, every one of them checked."""
    if not path.exists() or path.is_dir():
        raise InputError(f"there is no file {path}")
    if path.suffix == ".py" and not python:
        raise InputError(
            f"{path} is a program, and reading it means to run it: say --python if you trust it, "
            "or write the runs down as JSON"
        )
    try:
        data = _executed(path) if python else serial.read(path, "a file of runs", LARGEST_FILE)
        return parse_sweep(data, str(path))
    except InputError as error:  # it may quote the file, which may hold anything
        sentence = "".join(filter(str.isprintable, " ".join(str(error).split())))
        cut = sentence[:LONGEST_SENTENCE] + "…" if len(sentence) > LONGEST_SENTENCE else sentence
        raise InputError(cut) from None


def _executed(path: Path) -> object:
    """What a Python file assigns to `sweep`. This runs the file."""
    files.read_bytes(path, "a file of runs", LARGEST_FILE)  # complains of what is no file
    try:
        names = runpy.run_path(str(path))
    except Exception as error:  # a foreign program may fail in any way
        raise InputError(f"{path} could not be run: {type(error).__name__}: {error}") from None
    if "sweep" not in names:
        raise InputError(f"{path} does not assign its runs to the name 'sweep'")
    return names["sweep"]


def parse_sweep(data: object, what: str) -> SweepFile:
    """The runs that plain values ask for; `what` names their source in a complaint."""
    if isinstance(data, list):
        data = {"runs": data}
    if not isinstance(data, dict):
        raise InputError(f"{what} must hold a list of runs or a grid, not {_shown(data)}")
    known = ("runs", "measure") if "runs" in data else GRID
    unknown = [str(key) for key in data if key not in known]
    if unknown:
        raise InputError(f"{what} has an unknown field {unknown[0][:40]!r}; known are {', '.join(known)}")
    rows = _list(data["runs"], f"{what}: runs") if "runs" in data else _grid(data, what)
    if len(rows) > MOST_RUNS:
        raise InputError(f"{what} asks for {len(rows)} runs; the most is {MOST_RUNS}")
    runs = [_run(row, f"{what}: run {i}") for i, row in enumerate(rows, 1)]
    plan = _plan(data["measure"], what) if "measure" in data else None
    _check(runs, plan, what)
    return SweepFile(tuple(runs), plan)


def _run(row: object, what: str) -> RunSpec:
    """One row of a list. Files that it names are run, which is what naming them in a sweep asks for."""
    fields = _object(row, what)
    changes = _object(fields.get("set", {}), f"{what}: set")
    settings = [_assignment(key, value, what) for key, value in changes.items()]
    run = serial.from_json(RunSpec, {**fields, "set": settings}, what)
    task, method, recipe = (_known(word, getattr(run, word), what) for word in ("task", "method", "recipe"))
    return replace(run, task=task, method=method, recipe=recipe)


def _known(kind: str, text: str, what: str) -> str:
    try:
        return registry.resolve(kind, text)
    except InputError as error:
        raise InputError(f"{what}: {error}") from None


def _grid(data: Mapping[str, Any], what: str) -> list[dict[str, Any]]:
    """Every combination, as the rows of a list."""
    if "tasks" not in data:
        raise InputError(f"{what} names no tasks: a grid has 'tasks', a list of runs has 'runs'")
    usual = {"methods": ["fop-loop-adaptive"], "recipes": ["fast"], **data}
    names = [_list(usual[key], f"{what}: {key}", str) for key in ("tasks", "methods", "recipes")]
    axes = _object(data.get("grid", {}), f"{what}: grid", "lists")
    values = [_list(axis, f"{what}: grid of {key}") for key, axis in axes.items()]
    count = math.prod(map(len, [*names, *values]))
    if count > MOST_RUNS:
        raise InputError(f"{what} asks for {count} runs; the most is {MOST_RUNS}")
    seeds, shared = data.get("seeds", list(SEEDS)), _object(data.get("set", {}), f"{what}: set")
    return [
        {"task": task, "method": method, "recipe": recipe, "seeds": seeds, "set": {**shared, **point}}
        for task, method, recipe in itertools.product(*names)
        for point in (dict(zip(axes, each, strict=True)) for each in itertools.product(*values))
    ]


def _plan(data: object, what: str) -> MeasurementPlan:
    """What is measured of every run; lengths may be written as text."""
    if isinstance(data, dict) and isinstance(data.get("lengths"), str):
        data = {**data, "lengths": parse_lengths(data["lengths"])}
    plan = serial.from_json(MeasurementPlan, data, f"{what}: measure")
    stops = tuple(_known("stopping rule", stop, f"{what}: measure") for stop in plan.stops)
    return replace(plan, stops=stops)


def _check(runs: list[RunSpec], plan: MeasurementPlan | None, what: str) -> None:
    """Make every configuration once, so that nothing is started before everything is known to be right."""
    if not runs:
        raise InputError(f"{what} asks for no runs")
    seen: dict[str, int] = {}
    for i, run in enumerate(runs, 1):
        try:
            name = run.folder
            trainable(run)
            if plan is not None:
                plan.fit(run)
        except InputError as error:
            raise InputError(f"{what}: run {i}: {error}") from None
        if name in seen:
            raise InputError(f"{what}: runs {seen[name]} and {i} are the same, {name}")
        seen[name] = i


def _assignment(key: object, value: object, what: str) -> str:
    """`"steps": 10` as `steps=10`, as the command line writes it."""
    if not isinstance(key, str) or "=" in key:
        raise InputError(f"{what}: {_shown(key)} is no field's name")
    if key == "block" and isinstance(value, str) and value:
        value = _known("block", value, what)
    try:
        return f"{key}={serial.to_text(value)}"
    except TypeError:
        raise InputError(f"{what}: {key} cannot be {_shown(value)}") from None


def _object(data: object, what: str, of: str = "fields") -> dict[Any, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{what} must be an object of {of}, not {_shown(data)}")
    return data


def _list(data: object, what: str, kind: type = object) -> list[Any]:
    if not isinstance(data, list) or not data:
        raise InputError(f"{what} must be a list that is not empty, not {_shown(data)}")
    if not all(isinstance(item, kind) for item in data):
        raise InputError(f"{what} must be a list of names, not {_shown(data)}")
    return data


def _shown(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."
