"""A run as a row of data: task, method, recipe, seeds and what is set beside them. Knows no folder's contents.

    RunSpec("copy")                          → copy-fop-loop-adaptive-fast, the folder `looped train copy` uses
    RunSpec("copy", set=("steps=2000",))     → copy-fop-loop-adaptive-fast-c11785d1

A name says what a run is, and eight digits of a checksum tell apart what differs from the recipe. The checksum
covers the differing fields alone, so that a field added to the configuration later renames nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from looped.errors import InputError
from looped.serial import Json, to_json
from looped.training import recipes
from looped.training.config import TrainConfig

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
    plain = dict(leaves(to_json(recipes.make(config.task, config.method, config.recipe, SEEDS))))
    changed = {path: value for path, value in leaves(to_json(config)) if plain.get(path) != value}
    name = f"{config.task}-{config.method}-{config.recipe}"
    return f"{name}-{short_hash(changed)}" if changed else name


def variant(config: TrainConfig) -> str:
    """What a run changes about its method's number of steps: `ponder`, `q..2q`, `2q best`; mostly nothing."""
    head = config.model.halting if config.model.kind == "decoder" else "none"
    words = [
        "" if config.model.positions == "none" else config.model.positions,
        "" if config.loops == "T" else config.loops,
        "" if config.supervision == "last" else config.supervision,
        "" if head == "none" else head,
    ]
    return " ".join(filter(None, words))


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


def leaves(data: Json, path: str = "") -> Iterator[tuple[str, object]]:
    """Every field that has no parts, by its path: `("model.width", 256)`."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")
        else:
            yield path + key, value
