"""One pass through the block: a GPT-2 pre-norm decoder, its layers' weights stacked over seeds.

    h ← h + out(attend(qkv(norm h)));   h ← h + down(gelu(up(norm h)))        per layer

Norms are folded into the matrices behind them (`folding.py`). Layers are folded, cast and differentiated as one stack,
[layers, S, …] a tensor, and used one by one (`unstack`): what happens to weights once a gradient step costs the same
few kernels for three layers and for eighty.

Shapes: S seeds, B rows, L positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from looped.fast import onednn

Linear = Callable[[Tensor, Tensor, Tensor], Tensor]  # a matrix product, from input, matrix and bias
Attend = Callable[[Tensor], Tensor]
Pointwise = Callable[[Tensor], Tensor]
Behind = Sequence[tuple[str, str | None]]  # matrices by name, in order, and the norm that each stands behind
Fold = Callable[[Mapping[str, Tensor], Behind], list[Tensor]]  # see `fold`
EPSILON = 1e-5
M = TypeVar("M", bound=tuple[Any, ...])  # a named tuple of tensors


class Layer(NamedTuple):
    """Matrices, each followed by its bias: [S, in, out] and [S, 1, out]; or those of a stack, [layers, S, …]."""

    qkv: Tensor
    qkv_bias: Tensor
    out: Tensor
    out_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


LAYER: Behind = (("qkv", "norm1"), ("out", None), ("up", "norm2"), ("down", None))  # in the order of `Layer`


def fold(weights: Mapping[str, Tensor], behind: Behind) -> list[Tensor]:
    """Matrices of a layer or a stack, each followed by its bias, with the scale and shift of their norms folded in."""
    tensors: list[Tensor] = []
    for matrix, before in behind:
        weight, bias = plain_pair(weights, matrix)
        norm = norm_of(weights, before)
        if norm is not None:
            scale, shift = norm
            weight, bias = scale[..., None] * weight, bias + shift[..., None, :] @ weight
        tensors += [weight, bias]
    return tensors


def norm_of(weights: Mapping[str, Tensor], norm: str | None) -> tuple[Tensor, Tensor] | None:
    """A norm's scale and shift; None for no norm."""
    return None if norm is None else (weights[f"{norm}.scale"], weights[f"{norm}.shift"])


def plain_pair(weights: Mapping[str, Tensor], matrix: str) -> tuple[Tensor, Tensor]:
    """A matrix and its bias as they are."""
    return weights[f"{matrix}.weight"], weights[f"{matrix}.bias"][..., None, :]


def unstack(stack: M) -> tuple[M, ...]:
    """The layers of a stack one by one, as views."""
    parts = (part.unbind(0) for part in stack)
    return tuple(type(stack)(*layer) for layer in zip(*parts, strict=True))


def linear(x: Float[Tensor, "S N I"], weight: Float[Tensor, "S I O"], bias: Float[Tensor, "S 1 O"]) -> Tensor:
    """x·W + b, each seed with its own W and b."""
    return torch.baddbmm(bias, x, weight) if torch.is_grad_enabled() else onednn.multiply(x, weight, bias)


def normalise(h: Tensor) -> Tensor:
    """Zero mean and unit variance over the width; scale and shift are elsewhere."""
    return F.layer_norm(h, h.shape[-1:], eps=EPSILON)


gelu: Pointwise = partial(F.gelu, approximate="tanh")  # GPT-2's


def apply_layer(
    layer: Layer,
    h: Float[Tensor, "S B L D"],
    attend: Attend,
    linear: Linear = linear,
    normalise: Pointwise = normalise,
    activate: Pointwise = gelu,
) -> Float[Tensor, "S B L D"]:
    """The layer's output; `attend` mixes the positions of [S·B, L, 3D] queries, keys and values."""
    return feed(layer, mix(layer, h, attend, linear, normalise), linear, normalise, activate)


def mix(
    layer: Layer, h: Float[Tensor, "S B L D"], attend: Attend, linear: Linear, normalise: Pointwise
) -> Float[Tensor, "S B L D"]:
    """The layer's first half: every position looks at others."""
    qkv = product(linear, normalise(h), layer.qkv, layer.qkv_bias)
    mixed = attend(qkv.flatten(0, 1)).reshape(h.shape)
    return h + product(linear, mixed, layer.out, layer.out_bias)


def feed(
    layer: Layer, h: Float[Tensor, "S B L D"], linear: Linear, normalise: Pointwise, activate: Pointwise
) -> Float[Tensor, "S B L D"]:
    """The layer's second half: every position by itself."""
    inner = activate(product(linear, normalise(h), layer.up, layer.up_bias))
    return h + product(linear, inner, layer.down, layer.down_bias)


def product(
    linear: Linear, x: Float[Tensor, "S *P I"], weight: Float[Tensor, "S I O"], bias: Float[Tensor, "S 1 O"]
) -> Float[Tensor, "S *P O"]:
    """A matrix product at every position, in the precision of the matrix."""
    flat = x.to(weight.dtype).view(len(x), -1, x.shape[-1])
    return linear(flat, weight, bias).view(*x.shape[:-1], -1)
