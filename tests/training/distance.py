"""How far two trainings of one configuration are from each other."""

from __future__ import annotations

from torch import Tensor

from looped.model.weights import Layout
from looped.training.config import TrainConfig


def apart(config: TrainConfig, ours: Tensor, theirs: Tensor) -> float:
    """The largest difference of weights. No output depends on the keys' biases: what moves them is rounding."""
    layout = Layout(config.model)
    largest = 0.0
    for (name, one), other in zip(layout.views(ours).items(), layout.views(theirs).values(), strict=True):
        difference = (one - other).abs()
        if name.endswith("qkv.bias"):
            difference[:, config.model.width : 2 * config.model.width] = 0
        largest = max(largest, float(difference.max()))
    return largest
