"""Everything that changes in training as tensors, and back into an engine. Knows nothing of files.

Restoring copies in place, so that it also holds for an engine whose steps were captured already.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from looped.checkpoints import Metadata, Shapes
from looped.errors import InputError
from looped.runs import Elsewhere
from looped.training.engine import TrainingEngine
from looped.training.progress import Window

GENERATORS = "generators"


def take(engine: TrainingEngine, window: Window) -> dict[str, Tensor]:
    """Weights, moments, generators and unreported readings of an engine at this moment."""
    states = torch.stack([generator.get_state() for generator in engine.generators])
    return {**_places(engine, window), GENERATORS: states}


def restore(engine: TrainingEngine, window: Window, tensors: dict[str, Tensor], step: int) -> None:
    """Puts an engine where it was after `step` gradient steps."""
    with torch.no_grad():
        for name, place in _places(engine, window).items():
            place.copy_(tensors[name])
    for generator, state in zip(engine.generators, tensors[GENERATORS], strict=True):
        generator.set_state(state.clone())  # rows of a file need not be aligned
    engine.done = step


def check(
    engine: TrainingEngine, window: Window, rows: Mapping[str, Tensor], metadata: Metadata, shapes: Shapes
) -> None:
    """Raises unless a checkpoint with these texts and shapes fits the engine and holds rows like `rows` beside."""
    here, there = engine.device.type, metadata.get("device", "")
    if there not in ("cpu", "cuda"):
        raise InputError("it does not say on which device it was made")
    if there != here:
        raise Elsewhere(f"it was made on {there!r}; go on there, not on {here!r}")
    wanted = {**take(engine, window), **rows}
    expected = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    odd = sorted(name for name in expected.keys() | shapes.keys() if shapes.get(name) != expected.get(name))
    if odd:
        raise InputError(f"its {odd[0][:40]!r} is of shape {shapes.get(odd[0])}, not {expected.get(odd[0])}")


def verify(engine: TrainingEngine, window: Window, tensors: Mapping[str, Tensor]) -> None:
    """Raises unless tensors of the right shapes are of the right types, and generators can go on from theirs."""
    wanted = take(engine, window)
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
