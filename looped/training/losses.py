"""The loss: cross entropy over the answer's positions, each problem at its own last step.

Shapes: S seeds, B rows, L positions, V vocabulary.
"""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


def answer_loss(
    logits: Float[Tensor, "S B L V"],
    targets: Int[Tensor, "S B L"],
    loss_mask: Bool[Tensor, "S B L"],
    counted: Int[Tensor, "S"] | None = None,
) -> Float[Tensor, "S"]:
    """Mean cross entropy of each seed over every position that counts, the `#` after the answer included.

    `counted` is how many count in the whole batch, where these rows are a part of it.
    """
    each = F.cross_entropy(logits.float().flatten(0, 2), targets.flatten(), reduction="none").view(
        targets.shape
    )
    return (each * loss_mask).sum((1, 2)) / (loss_mask.sum((1, 2)) if counted is None else counted)


def example_loss(
    logits: Float[Tensor, "S B L V"], targets: Int[Tensor, "S B L"], loss_mask: Bool[Tensor, "S B L"]
) -> Float[Tensor, "S B"]:
    """Mean cross entropy of each row over its own positions that count."""
    each = F.cross_entropy(logits.float().flatten(0, 2), targets.flatten(), reduction="none").view(
        targets.shape
    )
    return (each * loss_mask).sum(-1) / loss_mask.sum(-1)


def exact(
    logits: Float[Tensor, "S B L V"], targets: Int[Tensor, "S B L"], loss_mask: Bool[Tensor, "S B L"]
) -> Bool[Tensor, "S B"]:
    """Which rows are right at every position that counts."""
    return ((logits.argmax(-1) == targets) | ~loss_mask).all(-1)
