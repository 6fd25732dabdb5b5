"""Attention of heads with a narrow band, by shifting: time and memory L · band instead of L².

A query at distance s from a key meets it when keys are moved on by s positions, so a band of b is b products of whole
rows with themselves, number by number. Positions stay where the joint product put them, and both directions are
written out: nothing is moved, and no gradient is padded to be added. The meaning is `attention.attend`.

Shapes: N rows, H heads, L positions, d numbers of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def attend(
    q: Float[Tensor, "N H L d"], k: Float[Tensor, "N H L d"], v: Float[Tensor, "N H L d"], band: int
) -> Float[Tensor, "N H L d"]:
    """Every query's mixture of the last `band` values up to its own; differentiable."""
    out: Tensor = _Banded.apply(*(x.transpose(1, 2) for x in (q, k, v)), band)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2)


class _Banded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, band: int) -> Tensor:
        """Softmax of the scores at each distance, times the values there."""
        fine = torch.promote_types(q.dtype, torch.float32)
        scores = q.new_full((band, *q.shape[:3]), float("-inf"), dtype=fine)
        for s, late, early in _shifts(q.shape[1], band):
            scores[s, :, late] = (q[:, late] * k[:, early]).sum(-1)
        share = scores.div_(math.sqrt(q.shape[-1])).softmax(0).to(v.dtype)
        out = torch.zeros_like(v, memory_format=torch.contiguous_format)
        for s, late, early in _shifts(q.shape[1], band):
            out[:, late].addcmul_(share[s, :, late, :, None], v[:, early])
        ctx.save_for_backward(q, k, v, share)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """The gradients of queries, keys and values."""
        (grad,) = grads
        q, k, v, share = ctx.saved_tensors
        by_share = torch.zeros_like(share)
        for s, late, early in _shifts(q.shape[1], len(share)):
            by_share[s, :, late] = (grad[:, late] * v[:, early]).sum(-1)
        by_score = torch.ops.aten._softmax_backward_data(by_share, share, 0, share.dtype)
        by_score /= math.sqrt(q.shape[-1])
        by_q, by_k, by_v = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for s, late, early in _shifts(q.shape[1], len(share)):
            score, part = by_score[s, :, late, :, None], share[s, :, late, :, None]
            by_q[:, late].addcmul_(score, k[:, early])
            by_k[:, early].addcmul_(score, q[:, late])
            by_v[:, early].addcmul_(part, grad[:, late])
        return by_q, by_k, by_v, None


def _shifts(size: int, band: int) -> Iterator[tuple[int, slice, slice]]:
    """Each distance, the queries that have a key there, and those keys."""
    for s in range(min(band, size)):
        yield s, slice(s, size), slice(0, size - s)
