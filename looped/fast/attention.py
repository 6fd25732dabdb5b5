"""Causal attention, per head global or banded, in plain PyTorch. The kernel in `kernels/` gives the same.

A global head sees every position up to its own; a head with band w sees the last w of them, itself included. A
running head takes the value of the best key so far, whatever the query.
Shapes: N rows (seeds × batch), L positions, H heads, d head size, D = H·d.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from looped.fast import kernels
from looped.fast.packing import Packing
from looped.model import positions
from looped.model.attention import best_so_far
from looped.model.config import ModelConfig

Cache = tuple[Float[Tensor, "N H _ d"], Float[Tensor, "N H _ d"]]  # keys and values of the positions so far


def attend(config: ModelConfig, qkv: Float[Tensor, "N L E"]) -> Float[Tensor, "N L D"]:
    """Attention of every head over whole rows."""
    if kernels.suits(config, qkv):
        return kernels.attend(config, qkv)
    narrow = qkv.dtype.itemsize < 4 and not qkv.is_cuda
    wide = qkv.float() if narrow else qkv  # a CPU attends much faster in fp32 than in bf16
    return attend_after(config, wide, None)[0].to(qkv.dtype)


def attend_packed(
    config: ModelConfig, packing: Packing, qkv: Float[Tensor, "S R E"]
) -> Float[Tensor, "S R D"]:
    """Attention of every head over packed rows, those of one size together."""
    parts = torch.split(qkv, [rows * size for rows, size in packing.runs], dim=1)
    mixed = [
        attend(config, part.reshape(-1, size, part.shape[2])).view(len(qkv), -1, config.width)
        for part, (_, size) in zip(parts, packing.runs, strict=True)
    ]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)


def attend_after(
    config: ModelConfig, qkv: Float[Tensor, "N L E"], cache: Cache | None
) -> tuple[Float[Tensor, "N L D"], Cache]:
    """Attention of L positions that follow the cached ones, and the cache with theirs added."""
    n, size, _ = qkv.shape
    q, k, v = qkv.view(n, size, 3, config.heads, config.head_size).permute(2, 0, 3, 1, 4)
    past = 0 if cache is None else cache[0].shape[2]
    q, k = positions.turn(config, q, past), positions.turn(config, k, past)
    q = sharpened(config, q, past)
    if cache is not None:
        k, v = torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2)
    offsets = positions.bias(config, size, past + size, qkv.device)
    parts: list[Tensor] = []
    soft = config.heads - config.running
    for band, heads in _groups(config.head_bands[:soft]):
        extra = None if offsets is None else offsets[heads]
        parts.append(_attend(q[:, heads], k[:, heads], v[:, heads], band, extra))
    if config.running:
        parts.append(best_so_far(k[:, soft:], v[:, soft:])[:, :, past:])
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return out.transpose(1, 2).reshape(n, size, config.width), (k, v)


def weights(config: ModelConfig, qkv: Float[Tensor, "N L E"]) -> Float[Tensor, "N H L L"]:
    """The attention weights themselves, for people to look at."""
    n, size, _ = qkv.shape
    q, k, _ = qkv.view(n, size, 3, config.heads, config.head_size).permute(2, 0, 3, 1, 4)
    q, k = sharpened(config, positions.turn(config, q)), positions.turn(config, k)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(config.head_size)
    offsets = positions.bias(config, size, size, qkv.device)
    if offsets is not None:
        scores = scores + offsets
    seen = torch.stack([visible(size, size, band, qkv.device) for band in config.head_bands])
    shares = scores.masked_fill(~seen, float("-inf")).softmax(dim=-1)
    if config.running:
        best = k[:, -config.running :, :, 0].cummax(dim=-1).indices
        shares[:, -config.running :] = F.one_hot(best, size).to(shares.dtype)
    return shares


def sharpened(config: ModelConfig, q: Float[Tensor, "N H L d"], first: int = 0) -> Float[Tensor, "N H L d"]:
    """Queries of global heads times log2(i + 2) / 4 at position i, where the model asks for it.

    A softmax over more keys spreads thinner; scores that grow with the logarithm of their number hold it together.
    """
    if not config.sharpen:
        return q
    at = torch.arange(first, first + q.shape[2], device=q.device, dtype=torch.float32)
    scale = (torch.log2(at + 2)[:, None] / 4).to(q.dtype)
    groups = _groups(config.head_bands)  # by slices: nothing may come from the host while a graph is captured
    return torch.cat([q[:, heads] if band else q[:, heads] * scale for band, heads in groups], dim=1)


def visible(queries: int, keys: int, band: int, device: torch.device) -> Bool[Tensor, "Lq Lk"]:
    """Which keys each query sees, when the last query stands at the last key; band 0 is global."""
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    distance = query - torch.arange(keys, device=device)
    seen = distance >= 0
    return seen & (distance < band) if band else seen


def _groups(bands: tuple[int, ...]) -> list[tuple[int, slice]]:
    """Runs of neighbouring heads with one band."""
    groups: list[tuple[int, slice]] = []
    start = 0
    for i in range(1, len(bands) + 1):
        if i == len(bands) or bands[i] != bands[start]:
            groups.append((bands[start], slice(start, i)))
            start = i
    return groups


def _attend(q: Tensor, k: Tensor, v: Tensor, band: int, extra: Tensor | None) -> Tensor:
    queries, keys = q.shape[2], k.shape[2]
    if band == 1 and extra is None and queries == keys:  # only itself to look at
        return v
    if band and queries == 1:  # decoding: only the band's keys matter
        k, v = k[:, :, -band:], v[:, :, -band:]
        extra = None if extra is None else extra[:, :, -band:]
        keys = k.shape[2]
    if extra is None and queries == 1:
        return F.scaled_dot_product_attention(q, k, v)
    if extra is None and not band and queries == keys:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if extra is None and band and queries == keys and 4 * band <= keys:
        return attend_banded(q, k, v, band)
    seen = visible(queries, keys, band, q.device)
    if extra is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    mask = extra.masked_fill(~seen, float("-inf")).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attend_banded(
    q: Float[Tensor, "N H L d"], k: Float[Tensor, "N H L d"], v: Float[Tensor, "N H L d"], band: int
) -> Float[Tensor, "N H L d"]:
    """Every query's mixture of the last `band` values up to its own: time and memory L · band instead of L².

    A query meets a key at distance s when keys are moved on by s positions, so a band of b is b products of whole
    rows, number by number. Both directions are written out: nothing is moved, and no gradient is padded to be added.
    """
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
