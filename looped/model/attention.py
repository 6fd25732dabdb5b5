"""Causal multi-head attention of one model, as an ordinary `torch.nn.Module`.

A head is one of three kinds, and a layer may have all of them, in this order:

    banded    sees the last `band` positions, itself included      config.bands, one number a head
    global    sees every position up to its own                    the heads in between
    running   takes the value of the best key so far               config.running, the last heads

Shapes: B rows, L positions, D width, H heads, d = D / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from looped.model import positions
from looped.model.config import ModelConfig


class CausalAttention(nn.Module):
    """Queries, keys and values from one matrix, a mixture per head, and a matrix back to the width."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Mix the positions of every row."""
        rows, size, width = h.shape
        split = self.qkv(h).view(rows, size, 3, self.config.heads, self.config.head_size)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [B, H, L, d]
        q, k = positions.turn(self.config, q), positions.turn(self.config, k)
        soft = self.config.heads - self.config.running
        mixed = self.attend(q[:, :soft], k[:, :soft], v[:, :soft]) if soft else v[:, :0]
        if self.config.running:
            mixed = torch.cat([mixed, best_so_far(k[:, soft:], v[:, soft:])], dim=1)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(rows, size, width))
        return out

    def attend(
        self, q: Float[Tensor, "B H L d"], k: Float[Tensor, "B H L d"], v: Float[Tensor, "B H L d"]
    ) -> Float[Tensor, "B H L d"]:
        """Softmax attention of the banded and global heads."""
        config, heads, size = self.config, q.shape[1], q.shape[2]
        bands = config.head_bands[:heads]
        if config.sharpen:
            q = q * sharpening(bands, size, q)
        offsets = positions.bias(config, size, size, q.device)
        if offsets is None and not any(bands):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        seen = visible(bands, size, q.device)
        if offsets is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        mask = offsets[:heads].masked_fill(~seen, float("-inf")).to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def visible(bands: tuple[int, ...], size: int, device: torch.device) -> Bool[Tensor, "H L L"]:
    """Which keys each query sees, head by head; band 0 is global."""
    at = torch.arange(size, device=device)
    distance = at[:, None] - at
    return torch.stack([(distance >= 0) & (distance < (band or size)) for band in bands])


def sharpening(bands: tuple[int, ...], size: int, like: Tensor) -> Float[Tensor, "H L 1"]:
    """log2(i + 2) / 4 at position i of a global head, 1 in a banded one.

    A softmax over more keys spreads thinner; scores that grow with the logarithm of their number counter that.
    """
    at = torch.arange(size, device=like.device, dtype=torch.float32)
    scale = (torch.log2(at + 2) / 4).to(like.dtype)
    return torch.stack([torch.ones_like(scale) if band else scale for band in bands])[..., None]


def best_so_far(k: Float[Tensor, "B H L d"], v: Float[Tensor, "B H L d"]) -> Float[Tensor, "B H L d"]:
    """The value at the largest key so far, by each key's first entry: sharp attention with one fixed query."""
    best = k[..., 0].cummax(dim=-1).indices
    return v.gather(2, best[..., None].expand_as(v))
