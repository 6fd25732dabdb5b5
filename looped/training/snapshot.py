"""Everything that changes in training as tensors, and back into an engine. Knows nothing of files.

Restoring copies in place, so that it also holds for an engine whose steps were captured already.
"""

from __future__ import annotations

import torch
from torch import Tensor

from looped.checkpoints import Metadata, Shapes
from looped.errors import InputError
from looped.runs import Elsewhere
from looped.training.engine import Engine
from looped.training.progress import Window

GENERATORS = "generators"


def take(engine: Engine, window: Window) -> dict[str, Tensor]:
    """Weights, moments, generators and unreported readings of an engine at this moment."""
    states = torch.stack([generator.get_state() for generator in engine.generators])
    return {**_places(engine, window), GENERATORS: states}


def restore(engine: Engine, window: Window, tensors: dict[str, Tensor], step: int) -> None:
    """Puts an engine where it was after `step` gradient steps."""
    with torch.no_grad():
        for name, place in _places(engine, window).items():
            place.copy_(tensors[name])
    for generator, state in zip(engine.generators, tensors[GENERATORS], strict=True):
        generator.set_state(state.clone())  # rows of a file need not be aligned
    engine.done = step


def check(engine: Engine, window: Window, metadata: Metadata, shapes: Shapes) -> None:
    """Raises unless a checkpoint with these texts and shapes fits the engine."""
    kind = engine.device.type
    if metadata.get("device") != kind:
        raise Elsewhere(f"it was made on {metadata.get('device')!r}; go on there, not on {kind!r}")
    expected = {name: tuple(tensor.shape) for name, tensor in take(engine, window).items()}
    odd = sorted(name for name, shape in expected.items() if shapes.get(name) != shape)
    if odd:
        raise InputError(f"its {odd[0]} does not have the shape {expected[odd[0]]}")


def _places(engine: Engine, window: Window) -> dict[str, Tensor]:
    """The tensors that training changes in place, by name."""
    moments = engine.moments
    places = {
        "weights": engine.weights,
        "mean": moments.mean,
        "square": moments.square,
        "alive": moments.alive,
        "window": window.sums,
    }
    if moments.average is not None:
        places["average"] = moments.average
    return places
