"""Attention of short rows on a CPU, written out as plain products in both directions.

A CPU's own fused attention takes twice as long for rows of some forty positions and heads of some thirty numbers. Rows
of different sizes come in a few groups, each filled up to its longest row: a call for every size would cost more than
what is computed. What a row is filled up with stands after all it has, where causal attention does not look. The
meaning is `attention.attend`.

Shapes: S seeds, R positions of all rows, E = 3D queries, keys and values, D = heads · d; P places, one for every
position and head of the rows that were filled up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.fast.packing import Packing
from looped.model.config import ModelConfig

LONGEST = 64  # positions up to which this is the faster way
FILLED_UP = 1.5  # times its size, at most: larger groups are fewer calls, smaller ones less to compute


def suits(config: ModelConfig, packing: Packing, qkv: Tensor) -> bool:
    """Whether `attend` can take these rows: short, and every head sees all that came before."""
    everything = not any(config.head_bands) and not config.running and not config.sharpen
    plain = everything and config.positions not in ("rotary", "alibi")
    return plain and packing.longest <= LONGEST and qkv.device.type == "cpu" and qkv.dtype == torch.float32


def attend(config: ModelConfig, packing: Packing, qkv: Float[Tensor, "S R E"]) -> Float[Tensor, "S R D"]:
    """Causal attention of every head over packed rows; differentiable."""
    out: Tensor = _ShortAttention.apply(qkv, _heads(packing, config.heads, qkv.shape[0]))  # type: ignore[no-untyped-call]
    return out


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: _Heads) -> Tensor:
        """Softmax of the scores, times the values."""
        split = heads.apart(qkv, 3)
        scale = 1 / math.sqrt(split.shape[-1])
        mixed = torch.empty_like(split[:1])
        shares: list[Tensor] = []
        for (q, k, v), (out,) in zip(heads.groups(split), heads.groups(mixed), strict=True):
            hidden = torch.full((q.shape[1], q.shape[1]), float("-inf")).triu_(1)
            shares.append(torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=scale).softmax(-1))
            torch.bmm(shares[-1], v, out=out)
        ctx.save_for_backward(split, *shares)
        ctx.heads = heads
        return heads.together(mixed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """The gradient of queries, keys and values."""
        heads: _Heads = ctx.heads
        split, *shares = ctx.saved_tensors
        scale = 1 / math.sqrt(split.shape[-1])
        found = torch.empty_like(split)
        parts = (heads.groups(x) for x in (split, heads.apart(grads[0], 1), found))
        for share, (q, k, v), (g,), (by_q, by_k, by_v) in zip(shares, *parts, strict=True):
            by_share = torch.bmm(g, v.transpose(1, 2))
            by_score = torch.ops.aten._softmax_backward_data(by_share, share, -1, share.dtype)
            torch.baddbmm(by_q, by_score, k, beta=0, alpha=scale, out=by_q)
            torch.baddbmm(by_k, by_score.transpose(1, 2), q, beta=0, alpha=scale, out=by_k)
            torch.bmm(share.transpose(1, 2), g, out=by_v)
        return heads.together(found), None


@dataclass(frozen=True)
class _Heads:
    """Packed rows head by head: [S, R, n·D] as [n, P, d] and back."""

    packing: Packing
    heads: int
    seeds: int

    def apart(self, x: Float[Tensor, "S R _"], n: int) -> Float[Tensor, "n P d"]:
        """Each head's numbers of each position at their place, 0 at places without any."""
        d = x.shape[-1] // n // self.heads
        if self.packing.even:
            rows = x.view(-1, self.packing.longest, n, self.heads, d)
            return rows.permute(2, 0, 3, 1, 4).reshape(n, -1, d)
        count = sum(rows * size for rows, size in self.shapes)
        return x.new_zeros(n * count, d).index_copy_(0, self._places[n], x.reshape(-1, d)).view(n, count, d)

    def together(self, split: Float[Tensor, "n P d"]) -> Float[Tensor, "S R _"]:
        """The way back."""
        n, _, d = split.shape
        if self.packing.even:
            rows = split.view(n, -1, self.heads, self.packing.longest, d).permute(1, 3, 0, 2, 4)
            return rows.reshape(self.seeds, -1, n * self.heads * d)
        return split.view(-1, d).index_select(0, self._places[n]).view(self.seeds, -1, n * self.heads * d)

    def groups(self, split: Float[Tensor, "n P d"]) -> list[tuple[Tensor, ...]]:
        """Group by group: n times [rows, size, d]."""
        ends = accumulate((rows * size for rows, size in self.shapes), initial=0)
        parts = (split[:, start:end] for start, end in pairwise(ends))
        return [
            part.view(-1, *shape, part.shape[-1]).unbind(0)
            for part, shape in zip(parts, self.shapes, strict=True)
        ]

    @cached_property
    def shapes(self) -> list[tuple[int, int]]:
        """Of each group: rows, counted once for every head and seed, and the size to which they are filled up."""
        return [(self.seeds * rows * self.heads, size) for rows, size in self._filled]

    @cached_property
    def _filled(self) -> list[tuple[int, int]]:
        """Neighbours that are filled up to one size: how many, and that size."""
        groups: list[tuple[int, int, int]] = []  # rows, the smallest and the largest size among them
        for rows, size in self.packing.runs:
            before, least, most = groups[-1] if groups else (0, size, size)
            least, most = min(least, size), max(most, size)
            if before and most <= FILLED_UP * least:
                groups[-1] = (before + rows, least, most)
            else:
                groups.append((rows, size, size))
        return [(rows, most) for rows, _, most in groups]

    @cached_property
    def _places(self) -> dict[int, Int[Tensor, "_"]]:
        """By n: the place of every head of every position, in the order of [S, R, n, heads]."""
        rows: list[tuple[int, int, int]] = []  # first place, and steps from seed to seed and head to head
        end = 0
        for count, size in self._filled:
            step = self.heads * size
            rows += [(end + i * step, count * step, size) for i in range(count)]
            end += self.seeds * count * step
        sizes = torch.tensor(self.packing.sizes)
        first, seed, head = torch.tensor(rows).repeat_interleave(sizes, 0).unbind(1)
        at = torch.cat([torch.arange(size) for size in self.packing.sizes])
        of_seeds = first + at + seed * torch.arange(self.seeds)[:, None]
        of_heads = of_seeds[..., None] + head[:, None] * torch.arange(self.heads)
        return {n: (of_heads[:, :, None] + end * torch.arange(n)[:, None]).flatten() for n in (1, 3)}


_heads = lru_cache(maxsize=256)(_Heads)
