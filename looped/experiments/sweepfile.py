"""A file of runs into rows of data: JSON, or Python where somebody says that it may be executed.

A list of runs, each with the fields of `RunSpec`; only the task is needed:

    [{"task": "copy", "seeds": [0, 1], "set": {"model.width": 128}}, {"task": "parity", "recipe": "quick"}]

or a grid: every task with every method, recipe and combination of values in `grid`:

    {"tasks": ["copy", "parity"], "methods": ["fop-loop-adaptive", "ntp"], "recipes": ["fast"],
     "seeds": [0, 1, 2], "set": {"steps": 4000}, "grid": {"lr": [0.0003, 0.001]},
     "measure": {"lengths": "1:60", "samples": 640, "stops": ["oracle", "confidence"]}}

Both may be one: `{"runs": [...], "measure": {...}}`. Seeds of one run are trained side by side. A Python file
assigns the same to the name `sweep`. Whatever is wrong is said in a sentence before anything is started.
"""

from __future__ import annotations

import itertools
import math
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped import serial
from looped.errors import InputError
from looped.evaluation.loading import parse_lengths
from looped.experiments.plan import Plan, trainable
from looped.experiments.spec import SEEDS, RunSpec

LARGEST = 1 << 20  # bytes
MOST = 10_000  # runs of one sweep
LONGEST_SENTENCE = 400  # characters of a complaint
LISTED = ("runs", "measure")
GRID = ("tasks", "methods", "recipes", "seeds", "set", "grid", "measure")


@dataclass(frozen=True)
class Sweep:
    """What a file asks for."""

    runs: tuple[RunSpec, ...]
    plan: Plan | None = None  # what is measured of each


def read(path: Path, python: bool = False) -> Sweep:
    """The runs a file asks for, every one of them checked."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    if path.stat().st_size > LARGEST:
        raise InputError(f"{path} is too large for a file of runs")
    if path.suffix == ".py" and not python:
        raise InputError(
            f"{path} is a program, and reading it means to run it: say --python if you trust it, "
            "or write the runs down as JSON"
        )
    try:
        data = _executed(path) if python else serial.parse(path.read_text(encoding="utf-8"), str(path))
        return parse(data, str(path))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text") from None
    except InputError as error:  # it may quote the file, which may hold anything
        sentence = " ".join(str(error).split())
        cut = sentence[:LONGEST_SENTENCE] + "…" if len(sentence) > LONGEST_SENTENCE else sentence
        raise InputError(cut) from None


def _executed(path: Path) -> object:
    """What a Python file assigns to `sweep`. This runs the file."""
    try:
        names = runpy.run_path(str(path))
    except Exception as error:  # a foreign program may fail in any way
        raise InputError(f"{path} could not be run: {type(error).__name__}: {error}") from None
    if "sweep" not in names:
        raise InputError(f"{path} does not assign its runs to the name 'sweep'")
    return names["sweep"]


def parse(data: object, what: str) -> Sweep:
    """The runs that plain values ask for; `what` names their source in a complaint."""
    if isinstance(data, list):
        data = {"runs": data}
    if not isinstance(data, dict):
        raise InputError(f"{what} must hold a list of runs or a grid, not {_shown(data)}")
    known = LISTED if "runs" in data else GRID
    unknown = [str(key) for key in data if key not in known]
    if unknown:
        raise InputError(f"{what} has an unknown field {unknown[0][:40]!r}; known are {', '.join(known)}")
    runs = _listed(data["runs"], what) if "runs" in data else _grid(data, what)
    plan = _plan(data["measure"], what) if "measure" in data else None
    _check(runs, plan, what)
    return Sweep(tuple(runs), plan)


def _listed(data: object, what: str) -> list[RunSpec]:
    rows = _list(data, f"{what}: runs")
    if len(rows) > MOST:
        raise InputError(f"{what} asks for {len(rows)} runs; the most is {MOST}")
    return [
        row if isinstance(row, RunSpec) else _run(row, f"{what}: run {i}") for i, row in enumerate(rows, 1)
    ]


def _run(row: object, what: str) -> RunSpec:
    """One row of a list."""
    if not isinstance(row, dict):
        raise InputError(f"{what} must be an object of fields, not {_shown(row)}")
    return serial.from_json(RunSpec, {**row, "set": _assignments(row.get("set", {}), what)}, what)


def _grid(data: Mapping[str, Any], what: str) -> list[RunSpec]:
    """Every combination."""
    if "tasks" not in data:
        raise InputError(f"{what} names no tasks: a grid has 'tasks', a list of runs has 'runs'")
    names = [
        _texts(data.get(key, default), f"{what}: {key}")
        for key, default in (("tasks", []), ("methods", ["fop-loop-adaptive"]), ("recipes", ["fast"]))
    ]
    axes = data.get("grid", {})
    if not isinstance(axes, dict):
        raise InputError(f"{what}: grid must be an object of lists, not {_shown(axes)}")
    values = [_list(axis, f"{what}: grid of {key}") for key, axis in axes.items()]
    count = math.prod(map(len, [*names, *values]))
    if count > MOST:
        raise InputError(f"{what} asks for {count} runs; the most is {MOST}")
    shared = _assignments(data.get("set", {}), what)
    return [
        serial.from_json(
            RunSpec,
            {
                "task": task, "method": method, "recipe": recipe, "seeds": data.get("seeds", list(SEEDS)),
                "set": [*shared, *(_assignment(key, value, what) for key, value in zip(axes, point, strict=True))],
            },
            what,
        )
        for task, method, recipe in itertools.product(*names)
        for point in itertools.product(*values)
    ]  # fmt: skip


def _plan(data: object, what: str) -> Plan:
    """What is measured of every run; lengths may be written as text."""
    if isinstance(data, dict) and isinstance(data.get("lengths"), str):
        data = {**data, "lengths": parse_lengths(data["lengths"])}
    return serial.from_json(Plan, data, f"{what}: measure")


def _check(runs: list[RunSpec], plan: Plan | None, what: str) -> None:
    """Makes every configuration once, so that nothing is started before everything is known to be right."""
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


def _assignments(data: object, what: str) -> list[str]:
    """`{"steps": 10}` as `["steps=10"]`, as the command line writes it."""
    if not isinstance(data, dict):
        raise InputError(f"{what}: set must be an object of fields, not {_shown(data)}")
    return [_assignment(key, value, what) for key, value in data.items()]


def _assignment(key: object, value: object, what: str) -> str:
    if not isinstance(key, str) or "=" in key:
        raise InputError(f"{what}: {_shown(key)} is no field's name")
    return f"{key}={_text(value, key, what)}"


def _text(value: object, key: str, what: str) -> str:
    if value is None or isinstance(value, bool):
        return "none" if value is None else str(value).lower()
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and not any(isinstance(item, list) for item in value):
        return ",".join(_text(item, key, what) for item in value)
    raise InputError(f"{what}: {key} cannot be {_shown(value)}")


def _texts(data: object, what: str) -> list[str]:
    for item in _list(data, what):
        if not isinstance(item, str):
            raise InputError(f"{what} must be a list of names, not {_shown(data)}")
    return list(data)  # type: ignore[call-overload,no-any-return]


def _list(data: object, what: str) -> list[Any]:
    if not isinstance(data, list) or not data:
        raise InputError(f"{what} must be a list that is not empty, not {_shown(data)}")
    return data


def _shown(data: object) -> str:
    text = repr(data)
    return text if len(text) <= 40 else text[:37] + "..."
