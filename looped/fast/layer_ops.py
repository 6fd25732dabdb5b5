"""One pass through the block: a GPT-2 pre-norm decoder, its layers' weights stacked over seeds.

    h ← h + out(attend(qkv(norm h)));   h ← h + down(gelu(up(norm h)))        per layer

A norm's scale and shift are folded into the matrix that follows it, once per use of the weights (`fold`), so that a
loop of T steps normalises without them: norm(h)·γ + β, times W, is norm(h) times (γW), plus βW.

Layers are folded, cast and differentiated as one stack, [layers, S, …] a tensor, and used one by one (`unstack`): what
happens to weights once a gradient step costs the same few kernels for three layers and for eighty.

Shapes: S seeds, B rows, L positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Linear = Callable[[Tensor, Tensor, Tensor], Tensor]  # a matrix product, from input, matrix and bias
Attend = Callable[[Tensor], Tensor]
Pointwise = Callable[[Tensor], Tensor]
Behind = Sequence[tuple[str, str | None]]  # matrices by name, in order, and the norm that each stands behind
Fold = Callable[[Mapping[str, Tensor], Behind], list[Tensor]]  # see `fold`
EPSILON = 1e-5
M = TypeVar("M")  # a dataclass of tensors


@dataclass(frozen=True)
class Matrices:
    """Matrices ready for use, each followed by its bias: [S, in, out] and [S, 1, out]; or a stack's, [layers, S, …]."""

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Each matrix with its bias."""
        each = [getattr(self, f.name) for f in fields(self)]
        return list(zip(each[::2], each[1::2], strict=True))


@dataclass(frozen=True)
class Layer(Matrices):
    """Those of one layer."""

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
    parts = (getattr(stack, f.name).unbind(0) for f in fields(stack))  # type: ignore[arg-type]
    return tuple(type(stack)(*layer) for layer in zip(*parts, strict=True))


def linear(x: Float[Tensor, "S N I"], weight: Float[Tensor, "S I O"], bias: Float[Tensor, "S 1 O"]) -> Tensor:
    """x·W + b, each seed with its own W and b."""
    return torch.baddbmm(bias, x, weight)


def normalise(h: Tensor) -> Tensor:
    """Zero mean and unit variance over the width; scale and shift are elsewhere."""
    return F.layer_norm(h, h.shape[-1:], eps=EPSILON)


def gelu(x: Tensor) -> Tensor:
    """GPT-2's smooth step."""
    return F.gelu(x, approximate="tanh")


def unchanged(h: Tensor) -> Tensor:
    """In place of a norm, where a model has none."""
    return h


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
    s, b, size, d = h.shape
    flat, precision = (s, b * size, d), layer.qkv.dtype
    qkv = linear(normalise(h).to(precision).view(flat), layer.qkv, layer.qkv_bias)
    mixed = attend(qkv.view(s * b, size, 3 * d))
    return h + linear(mixed.reshape(flat), layer.out, layer.out_bias).view_as(h)


def feed(
    layer: Layer, h: Float[Tensor, "S B L D"], linear: Linear, normalise: Pointwise, activate: Pointwise
) -> Float[Tensor, "S B L D"]:
    """The layer's second half: every position by itself."""
    s, b, size, d = h.shape
    flat, precision = (s, b * size, d), layer.qkv.dtype
    inner = activate(linear(normalise(h).to(precision).view(flat), layer.up, layer.up_bias))
    return h + linear(inner, layer.down, layer.down_bias).view_as(h)
