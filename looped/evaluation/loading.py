"""Trained runs, ready to measure: all seeds of a folder stacked, or one seed's file.

Also what every measurement is asked for: lengths as people type them, and the precision of matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from looped import methods, registry, runs, serial, tasks
from looped.errors import InputError
from looped.evaluation import decode
from looped.evaluation.measure import Subject, draw_batches, length_grid, oracle_steps
from looped.model.looped import LoopedTransformer
from looped.model.seeds import ModuleStack, ModuleWeights, SeedModel, SeedWeights
from looped.runs import Trained
from looped.tasks.base import LONGEST
from looped.training.config import TrainConfig, product_dtype

Precision = Literal["fp32", "bf16", "trained"]
LARGEST_SEED = 2**31 - 1  # of test problems


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
    steps = oracle_steps(subject, length)
    if subject.method.prediction == "ntp":
        batch = next(draw_batches(subject, length, 1, seed=0))
        eos = subject.task.vocab.eos
        surprise = decode.generate(subject.model, subject.weights, batch, steps, eos).surprise
    else:
        surprise = length_grid(subject, length, 1, seed=0, max_steps=steps).surprise[:, -1]
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
