"""Where a head looks at one step: the attention weights of a chosen step, layer and head.

They are taken from the same pass that `LoopedTransformer.step` makes, layer by layer, with an eye on the queries and
keys of one of them. Knows models, nothing of the web.

Shapes: L positions, D width.
"""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from looped.explorer.asking import Asked
from looped.model import attention, block


@torch.inference_mode()
def shares(asked: Asked, before: Float[Tensor, "L D"] | None, layer: int, head: int) -> Float[Tensor, "L L"]:
    """How much position i (row) takes from position j, in the step that follows the state `before`.

    `before` is None for the first step, which sees the embedded question alone.
    """
    solver = asked.model.solver
    model, config = solver.model, solver.model.config
    x = model.embed(solver.weights, asked.batch().tokens[None])
    h = model.inject(None if before is None else before[None, None], x)
    seen: list[Tensor] = []

    def watched(qkv: Tensor) -> Tensor:
        seen.append(qkv)
        return attention.attend(config, qkv)

    for i, weights in enumerate(solver.weights.layers[: layer + 1]):
        attend = watched if i == layer else partial(attention.attend, config)
        h = block.apply_layer(weights, h, attend, model.linear, model.normalise, model.activate)
    return attention.weights(config, seen[0])[0, head].float()
