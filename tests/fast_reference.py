"""What the kernels of `looped/fast/kernels/` mean, in plain PyTorch: the same functions, for any device.

The fused loop and the folding of weights run on these too, and tests hold them equal to autograd (`ByDevice`).
Tensors are [S, rows, width], those of `fold` [layers, S, …]; every function writes into the tensors it is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from looped.fast import attention, kernels
from looped.fast.backprop import held
from looped.fast.fused import through_norm
from looped.fast.layer_ops import EPSILON
from looped.fast.packing import Packing
from looped.model.config import ModelConfig
from looped.training.optimizer import adamw as adamw  # the meaning of the kernel of that name


def attention_forward(
    config: ModelConfig, packing: Packing, qkv: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """Attention of packed rows; `bias` [S, 1, 3D] is added to the queries, keys and values."""
    out.copy_(attention.attend_packed(config, packing, qkv if bias is None else qkv + bias))


def attention_backward(
    config: ModelConfig, packing: Packing, qkv: Tensor, bias: Tensor | None, grad: Tensor, out: Tensor
) -> None:
    """The gradient of `qkv` given that of the output."""
    with torch.enable_grad():
        leaf = qkv.detach().requires_grad_()
        mixed = attention.attend_packed(config, packing, leaf if bias is None else leaf + bias)
    out.copy_(torch.autograd.grad(mixed, leaf, grad)[0])


def inject_norm(
    state: Tensor | None,
    x: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    start: Tensor,
    normal: Tensor,
    rstd: Tensor,
) -> None:
    """start ← state·scale + shift + x (just x without a state); normal, rstd ← its norm."""
    if state is not None:
        start.copy_(state * scale.view(len(scale), 1, -1) + shift.view(len(shift), 1, -1))
        if x is not None:
            start.add_(x)
    elif x is not None:
        start.copy_(x)
    _norm(start, normal, rstd)


def residual_norm(
    h: Tensor, y: Tensor, bias: Tensor, out: Tensor | None, normal: Tensor, rstd: Tensor
) -> None:
    """out ← h + y + bias (not stored if None); normal, rstd ← its norm."""
    new = h + y + bias
    if out is not None:
        out.copy_(new)
    _norm(new, normal, rstd)


def _norm(h: Tensor, normal: Tensor, rstd: Tensor) -> None:
    wide = h.float()
    centred = wide - wide.mean(-1, keepdim=True)
    back = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON)
    normal.copy_(centred * back)
    rstd.copy_(back.squeeze(-1))


def norm_backward(residual: Tensor, grad: Tensor, normal: Tensor, rstd: Tensor, out: Tensor) -> None:
    """out ← residual + the gradient through the norm."""
    out.copy_(residual + through_norm(grad, normal, rstd))


def input_backward(
    residual: Tensor, grad: Tensor, normal: Tensor, rstd: Tensor, out: Tensor, total: Tensor | None
) -> None:
    """out ← residual + the gradient through the norm; total += out."""
    norm_backward(residual, grad, normal, rstd, out)
    if total is not None:
        total.add_(out)


def boundary_backward(
    du: Tensor | None,
    final: Tensor,
    steps: Tensor,
    step: int,
    scale: Tensor,
    normal: Tensor,
    rstd: Tensor,
    scale_sum: Tensor,
    out: Tensor,
) -> None:
    """Between two loop steps: out ← gradient before the final norm of `step`, from the next step and the loss.

    `du` is the gradient of the next step's start, for the rows that go on; `final` that of the states the loss reads;
    `steps` is every position's T.
    """
    rows = out.shape[1]
    ends = (steps[:, :rows] == step)[..., None]
    grad = torch.where(ends, final[:, :rows], 0.0).float()
    if du is not None:
        on = du.shape[1]
        scale_sum[:, :on] += du * normal[:, :on]
        grad[:, :on] += du * scale.view(len(scale), 1, -1)
    out.copy_(through_norm(grad, normal, rstd))


def hold(packing: Packing, flow: Tensor, highest: Tensor, total: Tensor) -> None:
    """Rows of `flow`, which is part of `total`, are scaled down to norms of at most `highest` [S, B]; both know it."""
    change = held(packing, flow, highest) - flow
    flow.add_(change)
    total.add_(change)


def gelu_forward(pre: Tensor, bias: Tensor, out: Tensor) -> None:
    """out ← gelu(pre + bias)."""
    out.copy_(F.gelu(pre + bias, approximate="tanh"))


def gelu_backward(grad: Tensor, pre: Tensor, bias: Tensor, out: Tensor) -> None:
    """out ← grad · gelu'(pre + bias)."""
    out.copy_(torch.ops.aten.gelu_backward(grad, pre + bias, approximate="tanh"))


def fold(
    weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor] | None, matrix: Tensor, matrix_bias: Tensor
) -> None:
    """matrix, matrix_bias ← weight and bias with scale and shift of the norm before them folded in."""
    if norm is not None:
        scale, shift = norm
        weight, bias = scale[..., None] * weight, bias + shift[..., None, :] @ weight
    matrix.copy_(weight)
    matrix_bias.copy_(bias)


def fold_backward(
    weight: Tensor,
    norm: tuple[Tensor, Tensor] | None,
    grad: Tensor,
    grad_bias: Tensor,
    d_weight: Tensor,
    d_bias: Tensor,
    d_norm: tuple[Tensor, Tensor] | None,
) -> None:
    """d_… ← the gradients of all that `fold` was given, from those of the matrix and bias it made."""
    d_bias.copy_(grad_bias)
    if norm is None or d_norm is None:
        d_weight.copy_(grad)
        return
    for of_norm, through in zip(d_norm, (grad, grad_bias), strict=True):
        of_norm.copy_((through * weight).sum(-1))
    scale, shift = norm
    d_weight.copy_(scale[..., None] * grad + shift[..., None] * grad_bias)


class ByDevice:
    """The kernel of each name for tensors on CUDA, what it means for others."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*args: Any) -> None:
            on_cuda = any(isinstance(arg, Tensor) and arg.is_cuda for arg in args)
            getattr(kernels if on_cuda else sys.modules[__name__], name)(*args)

        return call
