"""Trained runs, ready to measure: all seeds of a folder stacked, or one seed's file.

A length sweep measures several models (`load_models`), each of all seeds that belong together:

    runs/copy-fop-loop-adaptive-long     a folder: all its seeds
    runs/x/seed-0.safetensors …          files: seeds of one folder and configuration belong together
    runs/copy-0-4 runs/copy-5-9          folders whose configurations differ in seeds alone: one model of ten seeds
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from looped import methods, registry, runs, serial, tasks
from looped.errors import InputError
from looped.evaluation import decode, measure
from looped.evaluation.measure import Subject
from looped.evaluation.stopping import Rule
from looped.model.looped import LoopedTransformer
from looped.model.seeds import ModuleStack, ModuleWeights, SeedModel, SeedWeights
from looped.result_files import Json
from looped.runs import Trained
from looped.tasks.base import LONGEST
from looped.tasks.distributions import UNIFORM
from looped.training.config import TrainConfig, product_dtype

Precision = Literal["fp32", "bf16", "trained"]
Kind = Literal[
    "accuracy", "steps", "halting"
]  # by length and rule; after every loop step; what was discovered
LARGEST_SEED = 2**31 - 1  # of test problems
# Fields that configurations did not have at first, at their defaults: a swept model's key stays what it was.
NEWER = {"block": "", "late_family": "", "replicas": 1, "hold_out": 0, "refine": 0.25, "stack": 0}


@dataclass(frozen=True)
class LoadedRun:
    """Trained weights, ready to measure."""

    path: Path
    seeds: list[Trained]
    subject: Subject
    products: torch.dtype  # what its matrices are multiplied in

    def origin(self) -> dict[str, object]:
        """What a result says about the weights behind it."""
        first = self.seeds[0]
        return {
            "run": self.path.resolve().name,
            "seeds": [seed.seed for seed in self.seeds],
            "steps": first.step,
            "commit": first.commit,
            "config": serial.to_json(first.config),
        }

    def rows(
        self, kind: Kind, length: int, samples: int, *, seed: int, stops: Sequence[str | Rule], family: str = UNIFORM
    ) -> list[Json]:  # fmt: skip
        """What is measured at one length: rows by rule and seed, or by seed and loop step."""
        if kind == "steps":
            return measure.curve(self.subject, length, samples, seed=seed, family=family)
        if kind == "accuracy":
            found = measure.measure(self.subject, [length], samples, seed=seed, stops=stops, family=family)
            return [row.as_dict() for row in found]
        rows = measure.discover(self.subject, length, samples, seed=seed, stops=stops, family=family)
        named = variant(self.seeds[0].config)
        return [{**row, "variant": named} for row in rows] if named else rows


def variant(config: TrainConfig) -> str:
    """What a run changes about its method's number of steps: `ponder`, `q..2q`, `2q best`; mostly nothing."""
    head = config.model.halting if config.model.kind == "decoder" else "none"
    usual = {"none", "T", "last"}
    words = (config.model.positions, config.loops, config.supervision, head)
    return " ".join(word for word in words if word not in usual)


def load(path: Path, device: torch.device, precision: Precision = "fp32") -> LoadedRun:
    """Load a run's folder, all seeds stacked, one seed's file, or a published model."""
    files = runs.weight_files(path)
    seeds = [runs.load_seed(file) for file in files]
    for file, other in zip(files, seeds, strict=True):
        if other.config != seeds[0].config:
            raise InputError(f"{file} was trained with another configuration than {files[0]}")
        if other.step != seeds[0].step:
            raise InputError(
                f"{files[0]} was saved at step {seeds[0].step} and {file} at {other.step}: "
                "go on training, which saves them together"
            )
    return stack(path, seeds, device, precision)


def diverged(subject: Subject, length: int) -> list[int]:
    """The seeds whose weights compute no finite numbers on a problem of that length."""
    steps = measure.oracle_steps(subject, length)
    if subject.method.prediction == "ntp":
        batch = next(measure.draw_batches(subject, length, 1, seed=0))
        eos = subject.task.vocab.eos
        surprise = decode.generate(subject.model, subject.weights, batch, steps, eos).surprise
    else:
        surprise = measure.length_grid(subject, length, 1, seed=0, max_steps=steps).surprise[:, -1]
    good = surprise.isfinite().all(-1).tolist()
    return [seed for seed, fine in zip(subject.seeds, good, strict=True) if not fine]


def stack(path: Path, seeds: list[Trained], device: torch.device, precision: Precision = "fp32") -> LoadedRun:
    """Stack the seeds of one model, found at `path`."""
    config = seeds[0].config
    _check_chosen(path, config)
    dtype = precision_of(config, device, precision)
    model, weights = prepared(seeds, device, dtype)
    subject = Subject(
        tasks.get(config.task), methods.get(config.method), model, weights,
        tuple(seed.seed for seed in seeds), config.max_length, config.recipe, methods.parse_loops(config.loops),
    )  # fmt: skip
    return LoadedRun(path, seeds, subject, dtype)


def _check_chosen(path: Path, config: TrainConfig) -> None:
    """Refuse replicas as long as the choice among them is not recorded: what is longer must not decide it."""
    folder = (path if path.is_dir() else path.parent).absolute()
    if config.replicas > 1 or not config.hold_out or folder.parent.name != runs.POPULATION:
        return
    if not (folder.parents[1] / runs.SELECTION).exists():
        raise InputError(
            f"{path} holds replicas among which none has been chosen yet: train the run in {folder.parents[1].name} "
            f"to the end, which records the choice in {runs.SELECTION}, before they are measured"
        )


def selected(config: TrainConfig) -> str:
    """How the seeds of a run were selected, in a sentence; empty for an ordinary run."""
    if config.replicas == 1:
        return ""
    first = config.max_length - config.hold_out + 1
    after = f", then trained on for {config.steps - config.selected_at} steps" if config.refine else ""
    return f"each seed is the best of {config.replicas} replicas by lengths {first} to {config.max_length}{after}"


def prepared(
    seeds: Sequence[Trained], device: torch.device | str, dtype: torch.dtype | None = None
) -> tuple[SeedModel, SeedWeights]:
    """The model of some seeds and its weights: the stacked one, or the modules of a run with the user's own block."""
    config = seeds[0].config
    if not config.block:
        from looped.fast import build  # here: a plain run loads nothing of the fast engine

        stacked = build(config.model)
        with torch.no_grad():
            return stacked, stacked.prepare(torch.stack([seed.row for seed in seeds]).to(device), dtype)
    block, nets = registry.find("block", config.block), []
    for seed in seeds:
        net = LoopedTransformer(config.model, block)
        try:
            net.load_state_dict(dict(seed.weights))
        except RuntimeError as error:
            raise InputError(f"the weights do not fit the block {config.block}: {error}") from None
        nets.append(net.to(device))
    return ModuleStack(config.model), ModuleWeights(nets)


def precision_of(config: TrainConfig, device: torch.device, wanted: Precision) -> torch.dtype:
    """The type that matrices are multiplied in; states are in fp32 or finer."""
    if wanted == "trained":
        return product_dtype(config, device.type == "cuda")
    if wanted == "bf16":
        return torch.bfloat16
    # a compiled model holds large whole numbers and asks for more itself
    return torch.promote_types(torch.float32, getattr(torch, config.model.precision))


def parse_lengths(text: str) -> list[int]:
    """Read `1:60`, `1:60:5` or `10,20,40` as lengths, in order and without repeats."""
    complaint = InputError(
        f"lengths are written 1:60, 1:60:5 or 10,20,40 with numbers from 1 to {LONGEST}, not {text[:40]!r}"
    )
    found: list[int] = []
    for part in text.split(","):
        numbers = part.strip().split(":")
        if len(numbers) > 3 or not all(number.isdecimal() and len(number) <= 9 for number in numbers):
            raise complaint
        values = [int(number) for number in numbers]
        first, last = values[0], values[min(1, len(values) - 1)]
        step = values[2] if len(values) == 3 else 1
        if not (1 <= first <= last <= LONGEST and step >= 1):
            raise complaint
        found += range(first, last + 1, step)
    return list(dict.fromkeys(found))


# --- models of a length sweep ------------------------------------------------------------------------------
@dataclass(frozen=True)
class SweptModel:
    """A model to measure, known by its name and a checksum, so that results of different models are never mixed up."""

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

    def join(self, groups: list[_Seeds], across: bool) -> None:
        """Add them to the first group like them that has none of these seeds, `across` folders or in theirs alone."""
        own = {each.seed for each in self.seeds}
        for group in groups:
            alike = group.config == self.config and (across or group.path == self.path)
            if alike and own.isdisjoint(each.seed for each in group.seeds):
                group.seeds += self.seeds
                return
        groups.append(self)


def load_models(
    paths: Sequence[Path], device: torch.device, precision: Precision, seed: int
) -> list[SweptModel]:
    """Load the models behind some paths, in their order; `seed` is that of the test problems."""
    if not paths:
        raise InputError("a length sweep needs a RUN: a run's folder or checkpoints of its seeds")
    # a file of the hub's cache is a link: its own name says what it is
    found = [file.parent.resolve() / file.name for path in paths for file in runs.weight_files(path)]
    folders: list[_Seeds] = []  # the seeds of each folder, and of each configuration in it
    for file in dict.fromkeys(found):
        trained = runs.load_seed(file)
        fields = serial.former(TrainConfig, serial.to_json(trained.config)).items()
        told = {key: value for key, value in fields if key != "seeds" and NEWER.get(key) != value}
        name = file.parent.name if re.fullmatch(r"seed-\d+|model", file.stem) else file.stem
        _Seeds(name, file.parent, json.dumps(told, sort_keys=True), [trained]).join(folders, across=False)
    groups: list[_Seeds] = []
    for folder in folders:
        folder.join(groups, across=True)
    return [_swept(group, device, precision, seed) for group in groups]


def _swept(group: _Seeds, device: torch.device, precision: Precision, seed: int) -> SweptModel:
    """The model of some seeds; its checksum is over weights, configuration, precision and the test problems' seed."""
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
