"""Whose ladder it is: run folders and seed files into models with all their seeds side by side.

    runs/copy-…-long               a folder: all its seeds
    runs/x/seed-0.safetensors …    files: seeds of one folder and configuration belong together
    runs/copy-0-4 runs/copy-5-9    folders whose configurations differ in their seeds alone: one model of ten seeds

A contender is known by its name and a checksum over its weights, its configuration, the precision it is measured in
and the seed of the test problems, so that what was measured of it is never taken for something else's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from looped import runs, serial
from looped.errors import InputError
from looped.evaluation.measure import Subject
from looped.experiments.plan import Precision
from looped.experiments.results import stack
from looped.runs import Trained


@dataclass(frozen=True)
class Contender:
    """A model to measure, and where it comes from."""

    key: str  # `copy-long@1f0c9a3e`: what rows of results call it
    subject: Subject
    origin: dict[str, object]  # as `looped evaluate` tells it, with name, checksum and settings


@dataclass
class _Group:
    """Seeds of one model, as they are found."""

    name: str
    path: Path
    config: str  # as text, without its seeds
    seeds: list[Trained]


def load(paths: Sequence[Path], device: torch.device, precision: Precision, seed: int) -> list[Contender]:
    """The models behind some paths, in their order; `seed` is that of the test problems."""
    if not paths:
        raise InputError("a ladder needs a RUN: a run's folder or checkpoints of its seeds")
    groups: list[_Group] = []
    for group in _folders(paths):
        for other in groups:
            apart = {each.seed for each in other.seeds}.isdisjoint(each.seed for each in group.seeds)
            if other.config == group.config and apart:
                other.seeds += group.seeds
                break
        else:
            groups.append(group)
    return [_contender(group, device, precision, seed) for group in groups]


def _folders(paths: Sequence[Path]) -> list[_Group]:
    """The seeds of each folder, and of each configuration in it."""
    files: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"there is no run {path}")
        files |= dict.fromkeys(
            file.resolve() for file in (runs.seed_files(path) if path.is_dir() else [path])
        )
    found: dict[tuple[Path, str, int], _Group] = {}
    for file in files:
        trained = runs.load_seed(file)
        config = _config(trained)
        same = 0  # files of one folder may hold the same seed twice: those are different models
        while (file.parent, config, same) in found:
            if trained.seed not in {each.seed for each in found[file.parent, config, same].seeds}:
                break
            same += 1
        name = file.parent.name if re.fullmatch(r"seed-\d+", file.stem) else file.stem
        group = found.setdefault((file.parent, config, same), _Group(name, file.parent, config, []))
        group.seeds.append(trained)
    return list(found.values())


def _config(trained: Trained) -> str:
    data = serial.to_json(trained.config)
    return json.dumps({key: value for key, value in data.items() if key != "seeds"}, sort_keys=True)


def _contender(group: _Group, device: torch.device, precision: Precision, seed: int) -> Contender:
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
    return Contender(key, loaded.subject, origin)
