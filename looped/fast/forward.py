"""A layer forward with no pass over memory that its products and its attention can take along.

Biases, norms, residual sums and GELU ride in the kernels of `kernels/`, or in their plain twins. Training keeps what
every layer computes on its way (`fast/fused.py`); answering (`step`) needs it for one layer at a time. The meaning
is `layer_ops.apply_layer`, and tests hold both equal to it.

Shapes: S seeds, B rows, L positions, D width; n positions of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.fast import attention, kernels
from looped.fast.layer_ops import Layer
from looped.fast.packing import Packing
from looped.model.config import ModelConfig


@dataclass(frozen=True)
class Activations:
    """What a layer computes on its way, the inputs of its four products among it."""

    start: Tensor  # [S, n, D] the norm before attention: input of qkv
    start_rstd: Tensor  # [S, n]
    qkv: Tensor  # [S, n, 3D] before its bias
    mixed: Tensor  # [S, n, D] attention's output: input of out
    middle: Tensor  # [S, n, D] the norm before the feed-forward part: input of up
    middle_rstd: Tensor
    pre: Tensor  # [S, n, 4D] before bias and GELU
    inner: Tensor  # [S, n, 4D] input of down


def apply_layer(
    ops: Any,
    config: ModelConfig,
    layer: Layer,
    packing: Packing,
    h: Float[Tensor, "S n D"],
    own: Activations,
    normal: Float[Tensor, "S n D"],
    rstd: Float[Tensor, "S n"],
    last: bool,
) -> None:
    """`h`, whose norm is in `own.start`, becomes the layer's output, unless it is the last; `normal` its norm."""
    torch.bmm(own.start, layer.qkv, out=own.qkv)
    if packing.longest <= kernels.LONGEST:
        ops.attention_forward(config, packing, own.qkv, layer.qkv_bias, own.mixed)
    else:
        own.mixed.copy_(attention.attend_packed(config, packing, own.qkv + layer.qkv_bias))
    y = torch.bmm(own.mixed, layer.out)
    ops.residual_norm(h, y, layer.out_bias, h, own.middle, own.middle_rstd)
    torch.bmm(own.middle, layer.up, out=own.pre)
    ops.gelu_forward(own.pre, layer.up_bias, own.inner)
    torch.bmm(own.inner, layer.down, out=y)
    ops.residual_norm(h, y, layer.down_bias, None if last else h, normal, rstd)


def suits(config: ModelConfig, layer: Layer, u: Tensor) -> bool:
    """Whether `step` can take this state: on CUDA, and no gradients are asked for."""
    plain = config.ordinary and config.positions not in ("rotary", "alibi")
    known = u.dtype == torch.float32 and layer.qkv.dtype in (torch.float32, torch.bfloat16)
    fits = known and config.head_size <= kernels.WIDEST
    return u.is_cuda and kernels.available() and plain and fits and not torch.is_grad_enabled()


def step(
    ops: Any,
    config: ModelConfig,
    layers: tuple[Layer, ...],
    scale: Float[Tensor, "S 1 1 D"],
    shift: Float[Tensor, "S 1 1 D"],
    u: Float[Tensor, "S B L D"],
) -> Float[Tensor, "S B L D"]:
    """The block and the final norm."""
    s, b, size, d = u.shape
    n, precision = b * size, layers[0].qkv.dtype
    given, h, normal = u.reshape(s, n, d), u.new_empty(s, n, d), u.new_empty(s, n, d)
    rstd = u.new_empty(s, n)
    narrow = torch.empty(s, n, d, dtype=precision, device=u.device)
    wide = narrow.new_empty(s, n, config.expansion * d)
    # One layer at a time, so that a place serves again as soon as what it held has been used.
    own = Activations(narrow, rstd, narrow.new_empty(s, n, 3 * d), narrow, narrow, rstd, wide, wide)
    packing = Packing.padded(b, size)
    ops.inject_norm(None, given, scale, shift, h, own.start, rstd)
    for i, layer in enumerate(layers):
        last = i + 1 == len(layers)
        apply_layer(ops, config, layer, packing, h, own, normal if last else own.start, rstd, last)
    return torch.addcmul(shift, normal.view(s, b, size, d), scale)
