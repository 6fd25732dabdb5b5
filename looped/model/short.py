"""Attention of short rows on a CPU, written out: plain products in both directions, every row's numbers moved once.

A CPU's own fused attention takes twice as long for rows of some forty positions and heads of 16 numbers. Rows of one
size go together, and each size's part of the output is written where it belongs. The meaning is `attention.attend`.

Shapes: S seeds, R positions of all rows, E = 3D queries, keys and values, D = heads · d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.model.config import ModelConfig
from looped.model.packing import Packing

LONGEST = 64  # positions up to which this is the faster way


def suits(config: ModelConfig, packing: Packing, qkv: Tensor) -> bool:
    """Whether `attend` can take these rows: short, and every head sees all that came before."""
    everything = not any(config.head_bands) and not config.running and not config.sharpen
    plain = everything and config.positions not in ("rotary", "alibi")
    return plain and packing.longest <= LONGEST and qkv.device.type == "cpu" and qkv.dtype == torch.float32


def attend(config: ModelConfig, packing: Packing, qkv: Float[Tensor, "S R E"]) -> Float[Tensor, "S R D"]:
    """Causal attention of every head over packed rows; differentiable."""
    out: Tensor = _Attention.apply(qkv, packing, config.heads)  # type: ignore[no-untyped-call]
    return out


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, packing: Packing, heads: int) -> Tensor:
        """Softmax of the scores, times the values."""
        s, _, width = qkv.shape
        d = width // 3 // heads
        out = qkv.new_empty(*qkv.shape[:2], width // 3)
        kept: list[Tensor] = []
        for part, rows, size in _parts(packing):
            split = qkv[:, part].reshape(s * rows, size, 3, heads, d).permute(2, 0, 3, 1, 4)
            q, k, v = split.reshape(3, -1, size, d).unbind(0)
            hidden = torch.full((size, size), float("-inf")).triu_(1)
            share = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=1 / math.sqrt(d)).softmax(-1)
            mixed = torch.bmm(share, v).view(s, rows, heads, size, d)
            out[:, part].view(s, rows, size, heads, d).copy_(mixed.transpose(2, 3))
            kept += [q, k, v, share]
        ctx.save_for_backward(*kept)
        ctx.packing, ctx.heads = packing, heads
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of queries, keys and values."""
        (grad,) = grads
        s, _, width = grad.shape
        heads, d = ctx.heads, width // ctx.heads
        out = grad.new_empty(*grad.shape[:2], 3 * width)
        kept = iter(ctx.saved_tensors)
        for part, rows, size in _parts(ctx.packing):
            q, k, v, share = (next(kept) for _ in range(4))
            g = grad[:, part].reshape(s * rows, size, heads, d).transpose(1, 2).reshape(-1, size, d)
            by_share = torch.bmm(g, v.transpose(1, 2))
            by_score = torch.ops.aten._softmax_backward_data(by_share, share, -1, share.dtype)
            by_score /= math.sqrt(d)
            into = out[:, part].view(s, rows, size, 3, heads, d)
            found = (
                torch.bmm(by_score, k),
                torch.bmm(by_score.transpose(1, 2), q),
                torch.bmm(share.transpose(1, 2), g),
            )
            for i, of_one in enumerate(found):
                into[:, :, :, i].copy_(of_one.view(s, rows, heads, size, d).transpose(2, 3))
        return out, None, None


def _parts(packing: Packing) -> Iterator[tuple[slice, int, int]]:
    """Where neighbours of one size lie, how many there are, and how long they are."""
    start = 0
    for rows, size in packing.runs:
        yield slice(start, start + rows * size), rows, size
        start += rows * size
