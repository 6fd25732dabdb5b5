"""What the trainer asks of an engine. There are two: `training.plain` and `fast.engine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from looped.checkpoints import Metadata, Shapes
from looped.errors import InputError
from looped.loops import Loops
from looped.methods import Method
from looped.model.seeds import SeedModel, SeedWeights
from looped.runs import Elsewhere
from looped.tasks.base import Task
from looped.training.config import TrainConfig
from looped.training.optimizer import Moments
from looped.training.progress import Readings, Window


class TrainingEngine(Protocol):
    """Trains S seeds, a gradient step at a time; P numbers of a seed's trained weights lie in one row."""

    config: TrainConfig
    device: torch.device
    task: Task
    method: Method
    law: Loops
    weights: Tensor  # [S, P], changed in place
    moments: Moments
    generators: list[torch.Generator]
    done: int  # gradient steps taken

    def step(self) -> Readings:
        """Take one gradient step."""

    @property
    def evaluated_weights(self) -> Tensor:
        """[S, P] the weights that count: their average where the run keeps one and it has begun."""

    def evaluated(self) -> tuple[SeedModel, SeedWeights]:
        """The model with the weights that count, to be measured."""

    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """The weights that count of the i-th seed, as its checkpoint holds them."""

    def buffers(self) -> dict[str, Tensor]:
        """What else a checkpoint has to hold to go on: changed in place."""


# --- the state of an engine, as tensors; restoring copies in place, as captured graphs need it -----------------

GENERATORS = "generators"


def take_state(engine: TrainingEngine, window: Window) -> dict[str, Tensor]:
    """Weights, moments, generators and unreported readings of an engine at this moment."""
    states = torch.stack([generator.get_state() for generator in engine.generators])
    return {**_places(engine, window), GENERATORS: states}


def restore_state(engine: TrainingEngine, window: Window, tensors: dict[str, Tensor], step: int) -> None:
    """Puts an engine where it was after `step` gradient steps."""
    with torch.no_grad():
        for name, place in _places(engine, window).items():
            place.copy_(tensors[name])
    for generator, state in zip(engine.generators, tensors[GENERATORS], strict=True):
        generator.set_state(state.clone())  # rows of a file need not be aligned
    engine.done = step


def check_state(
    engine: TrainingEngine, window: Window, rows: Mapping[str, Tensor], metadata: Metadata, shapes: Shapes
) -> None:
    """Raises unless a checkpoint with these texts and shapes fits the engine and holds rows like `rows` beside."""
    here, there = engine.device.type, metadata.get("device", "")
    if there not in ("cpu", "cuda"):
        raise InputError("it does not say on which device it was made")
    if there != here:
        raise Elsewhere(f"it was made on {there!r}; go on there, not on {here!r}")
    wanted = {**take_state(engine, window), **rows}
    expected = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    odd = sorted(name for name in expected.keys() | shapes.keys() if shapes.get(name) != expected.get(name))
    if odd:
        raise InputError(f"its {odd[0][:40]!r} is of shape {shapes.get(odd[0])}, not {expected.get(odd[0])}")


def verify_state(engine: TrainingEngine, window: Window, tensors: Mapping[str, Tensor]) -> None:
    """Raises unless tensors of the right shapes are of the right types, and generators can go on from theirs."""
    wanted = take_state(engine, window)
    for name, tensor in tensors.items():
        dtype = wanted[name].dtype if name in wanted else torch.float32
        if tensor.dtype != dtype:
            raise InputError(f"its {name!r} is of type {tensor.dtype}, not {dtype}")
    for state in tensors[GENERATORS]:
        try:
            torch.Generator(engine.device).set_state(state.clone())
        except RuntimeError:
            raise InputError("the states of its random generators are damaged") from None


def _places(engine: TrainingEngine, window: Window) -> dict[str, Tensor]:
    """The tensors that training changes in place, by name."""
    own = {"weights": engine.weights, **engine.moments.tensors(), "window": window.sums}
    return {**own, **engine.buffers()}
