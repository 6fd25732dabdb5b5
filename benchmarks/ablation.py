"""What each part of recipe `long` gives: the recipe with short training lengths, and with one part left out at a time.

    python -m benchmarks ablation parity copy --out results/ablation.json               a minute or more for each cell
    python -m benchmarks ablation --out results/ablation.json                           its tables
    python -m benchmarks length docs/length.md                                          the same into the text

A cell is a task and a part that is left out; it is trained with five seeds, stacked, and measured at lengths past its
training lengths, on uniform questions and in five other input distributions, under `oracle` and `halt`. A cell that the
file holds is not trained again, so the same command goes on where it was stopped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from looped import checkpoints, devices, serial
from looped.errors import InputError
from looped.evaluation.loading import load
from looped.evaluation.measure import measure as accuracies
from looped.result_files import LARGEST
from looped.tasks.distributions import UNIFORM
from looped.training import recipes
from looped.training.config import TrainConfig
from looped.training.trainer import train
from scripts.docs_tables import markdown, spaced

Json = dict[str, Any]
ALL = "all parts"
PARTS: Mapping[str, tuple[str, ...]] = {
    ALL: (),
    "no noise": ("noise=0",),
    "global heads, sharpened": ("model.bands=", "model.sharpen=true"),
    "no start vector": ("model.positions=none",),
    "no halting head": ("model.halting=none",),
    "uniform questions": ("family=uniform",),
    "no clip": ("clip=1000",),
    "gradient-growth clip and average": ("growth_clip=2", "ema=0.999"),
    "half of the gradient steps": ("steps=1000", "interval=50"),
    "learning rate 8e-4": ("lr=8e-4",),
}
SHORT = ("max_length=10", "steps=2000", "interval=100")
LENGTHS = (10, 20, 50, 100)
CONSTANT = ("zeros", "ones")  # one question of each length
OTHERS = (*CONSTANT, "mixed", "p=0.05", "p=0.95")


@dataclass(frozen=True)
class Ablation:
    """What is trained and measured."""

    tasks: tuple[str, ...]
    parts: tuple[str, ...] = tuple(PARTS)
    short: tuple[str, ...] = SHORT  # fields of every cell, before those of its part
    seeds: int = 5
    lengths: tuple[int, ...] = LENGTHS
    samples: int = 64  # uniform questions of each length; a quarter of them in each other distribution
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.seeds < 1 or self.samples < 4:
            raise InputError("an ablation needs at least one seed and four questions")
        for part in self.parts:
            if part not in PARTS:
                raise InputError(f"there is no part {part!r}; there are {', '.join(PARTS)}")

    def config(self, task: str, part: str) -> TrainConfig:
        """The run of a cell."""
        made = recipes.make(task, "fop-loop-adaptive", "long", tuple(range(self.seeds)))
        return recipes.with_fields(made, [*self.short, *PARTS[part]])


def measure(asked: Ablation, runs: Path, out: Path, tell: Callable[[str], None] = print) -> Json:
    """Train and measure the cells that the file has not, and write it after each of them."""
    where = devices.pick(asked.device)
    data: Json = read(out) if out.exists() else {"provenance": dict(devices.facts(where)), "cells": []}
    for part in asked.parts:
        for task in asked.tasks:
            config = asked.config(task, part)
            cell = _cell(data, task, part, config)
            measured = {row["length"] for row in cell["rows"]}
            missing = [length for length in asked.lengths if length not in measured]
            if not missing:
                continue
            folder = runs / f"{task}-{part.replace(',', '').replace(' ', '-')}"
            began = time.process_time()
            train(config, folder, where)
            trained = time.process_time()
            for length in missing:
                cell["rows"] += _rows(folder, config, length, asked)
            spent = cell["cpu_seconds"]
            spent["train"] += round(trained - began)
            spent["measure"] += round(time.process_time() - trained)
            checkpoints.write(out, (json.dumps(data, separators=(",", ":")) + "\n").encode())
            tell(f"{task}, {part}: {' '.join(_words(cell, config.stops[0], cell_lengths(cell)))}; {spent} s")
    return data


def _cell(data: Json, task: str, part: str, config: TrainConfig) -> Json:
    """The cell of a file, or a new one in it; complains about one that was trained otherwise."""
    fields = serial.to_json(config)
    for known in data["cells"]:
        if (known["task"], known["part"]) == (task, part):
            if serial.former(TrainConfig, known["config"]) != serial.former(TrainConfig, fields):
                raise InputError(
                    f"the cell {task}, {part} of the file was trained with another configuration"
                )
            cell: Json = known
            return cell
    cell = {
        "task": task,
        "part": part,
        "config": fields,
        "cpu_seconds": {"train": 0, "measure": 0},
        "rows": [],
    }
    data["cells"].append(cell)
    return cell


def _rows(folder: Path, config: TrainConfig, length: int, asked: Ablation) -> list[Json]:
    """Result rows of a length, in all input distributions and under both rules."""
    subject = load(folder, devices.pick(asked.device)).subject
    stops = tuple(dict.fromkeys(("oracle", *config.stops)))
    rows = []
    for family in (UNIFORM, *OTHERS):
        samples = 1 if family in CONSTANT else asked.samples if family == UNIFORM else asked.samples // 4
        rows += accuracies(subject, [length], samples, seed=0, stops=stops, family=family)
    return [row.as_dict() for row in rows]


def read(path: Path) -> Json:
    """A file that `measure` has written."""
    data = serial.read(path, "a file of cells", LARGEST)
    if not isinstance(data, dict) or not isinstance(data.get("cells"), list):
        raise InputError(f"{path} holds no cells: `python -m benchmarks ablation` writes them")
    return data


# --- tables --------------------------------------------------------------------------------------------------


def tables(data: Json) -> dict[str, Callable[[], str]]:
    """The tables of a text (`scripts.docs_tables`): one for each stopping rule."""
    return {f"ablation-{stop}": partial(table, data, stop) for stop in ("oracle", "halt")}


def table(data: Json, stop: str) -> str:
    """A row for each cell; at each length, uniform questions and the worst input distribution."""
    lengths = sorted({length for cell in data["cells"] for length in cell_lengths(cell)})
    rows = [
        [cell["part"], spaced(cell["task"]), *_words(cell, stop, lengths), _exact_seeds(cell, stop)]
        for cell in sorted(data["cells"], key=_place)
        if any(row["stop"] == stop for row in cell["rows"])
    ]
    return markdown(["part", "task", *(f"at {length}" for length in lengths), "exact seeds"], rows)


def _place(cell: Json) -> tuple[str, int]:
    """By task, parts in the order of `PARTS`."""
    known = list(PARTS)
    return cell["task"], known.index(cell["part"]) if cell["part"] in known else len(known)


def cell_lengths(cell: Json) -> list[int]:
    """The lengths of a cell, ascending."""
    return sorted({row["length"] for row in cell["rows"]})


def by_distribution(cell: Json, stop: str, length: int) -> dict[str, list[float]]:
    """The accuracies of all seeds in each input distribution."""
    found: dict[str, list[float]] = {}
    for row in cell["rows"]:
        if (row["stop"], row["length"]) == (stop, length):
            found.setdefault(row.get("family", UNIFORM), []).append(row["accuracy"])
    return found


def _words(cell: Json, stop: str, lengths: Sequence[int]) -> list[str]:
    """At each length, uniform questions: mean over seeds (worst seed); then the mean on the worst distribution."""
    words = []
    for length in lengths:
        found = by_distribution(cell, stop, length)
        if not found:
            words.append("–")
            continue
        even = found[UNIFORM]
        worst = min(fmean(shares) for shares in found.values())
        words.append(f"{_share(fmean(even))} ({_share(min(even))}) / {_share(worst)}")
    return words


def _share(value: float) -> str:
    """`1`, `.984`; what is rounded to 1 without being it stays below."""
    if value in (0, 1):
        return f"{value:g}"
    return f"{min(max(value, 0.001), 0.999):.3f}".lstrip("0")


def _exact_seeds(cell: Json, stop: str) -> str:
    """How many seeds are right on every question, at every length and in every input distribution."""
    right: dict[int, bool] = {}
    for row in cell["rows"]:
        if row["stop"] == stop:
            right[row["seed"]] = right.get(row["seed"], True) and row["accuracy"] == 1
    return f"{sum(right.values())} of {len(right)}"
