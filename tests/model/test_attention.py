"""Attention in its fast forms against the plain one: every head a masked softmax."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from looped.fast import attention
from looped.model.config import ModelConfig

CONFIGS = [
    ModelConfig(vocab=3, heads=4, width=32),
    ModelConfig(vocab=3, heads=4, width=32, bands=(1, 2, 3, 5)),
    ModelConfig(vocab=3, heads=4, width=32, bands=(2, 2)),
    ModelConfig(vocab=3, heads=4, width=32, positions="rotary"),
    ModelConfig(vocab=3, heads=4, width=32, positions="rotary", bands=(2, 2, 2)),
    ModelConfig(vocab=3, heads=4, width=32, positions="alibi"),
    ModelConfig(vocab=3, heads=4, width=32, positions="alibi", bands=(3,)),
    ModelConfig(vocab=3, heads=16, width=32, bands=(2,) * 16),
]


def inputs(config: ModelConfig, size: int, rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return 2 * torch.randn(rows, size, 3 * config.width, generator=generator)


def rotated(x: list[float], position: int) -> list[float]:
    """Pairs (i, i + half) turned by position · 10000^(-i/half)."""
    half = len(x) // 2
    out = list(x)
    for i in range(half):
        angle = position * 10000 ** (-i / half)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i] * math.sin(angle) + x[i + half] * math.cos(angle)
    return out


def obvious(config: ModelConfig, qkv: Tensor) -> Tensor:
    """One row, head and query at a time, from the definitions."""
    rows, size, _ = qkv.shape
    d = config.head_size
    out = torch.zeros(rows, size, config.width)
    q, k, v = qkv.double().split(config.width, dim=2)
    for n in range(rows):
        for head, band in enumerate(config.head_bands):
            own = slice(head * d, (head + 1) * d)
            for i in range(size):
                first = max(0, i - band + 1) if band else 0
                scores = []
                for j in range(first, i + 1):
                    a, b = q[n, i, own].tolist(), k[n, j, own].tolist()
                    if config.positions == "rotary":
                        a, b = rotated(a, i), rotated(b, j)
                    score = sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(d)
                    if config.positions == "alibi":
                        score -= 2 ** (-8 * (head + 1) / config.heads) * (i - j)
                    scores.append(score)
                share = torch.tensor(scores, dtype=torch.float64).softmax(0)
                out[n, i, own] = (share @ v[n, first : i + 1, own]).float()
    return out


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.positions}-{c.head_bands}")
@pytest.mark.parametrize("size", [1, 2, 9, 24])
def test_attention_is_what_its_definition_says(config: ModelConfig, size: int) -> None:
    qkv = inputs(config, size, rows=2)
    torch.testing.assert_close(attention.attend(config, qkv), obvious(config, qkv), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.positions}-{c.head_bands}")
def test_the_weights_shown_are_the_weights_used(config: ModelConfig) -> None:
    qkv = inputs(config, 11)
    shares = attention.weights(config, qkv)
    assert shares.shape == (3, config.heads, 11, 11)
    torch.testing.assert_close(shares.sum(-1), torch.ones(3, config.heads, 11))
    for head, band in enumerate(config.head_bands):
        hidden = ~attention.visible(11, 11, band, qkv.device)
        assert float(shares[:, head, hidden].abs().max()) == 0
        assert float(shares[:, head, ~hidden].min()) > 0
    v = qkv[..., 2 * config.width :].view(3, 11, config.heads, config.head_size).transpose(1, 2)
    mixed = (shares @ v).transpose(1, 2).reshape(3, 11, config.width)
    torch.testing.assert_close(mixed, attention.attend(config, qkv), rtol=1e-4, atol=1e-5)


def test_visible_shows_the_band() -> None:
    assert attention.visible(4, 4, 2, torch.device("cpu")).int().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]
    assert attention.visible(2, 4, 0, torch.device("cpu")).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(1, 40))
def test_a_band_by_shifting_is_a_band_by_masking(band: int, size: int) -> None:
    generator = torch.Generator().manual_seed(band * 100 + size)
    qkv = torch.randn(3, 2, 4, size, 8, generator=generator).requires_grad_()
    mask = attention.visible(size, size, band, qkv.device)
    masked = torch.nn.functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], attn_mask=mask)
    shifted = attention.attend_banded(qkv[0], qkv[1], qkv[2], band)
    torch.testing.assert_close(shifted, masked, rtol=1e-4, atol=1e-5)
    flow = torch.randn(masked.shape, generator=generator)
    slopes = (torch.autograd.grad(out, qkv, flow)[0] for out in (shifted, masked))
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.positions}-{c.head_bands}")
@pytest.mark.parametrize("portions", [[9], [1] * 9, [4, 1, 1, 3], [2, 7]], ids=str)
def test_positions_after_a_cache_give_the_same(config: ModelConfig, portions: list[int]) -> None:
    qkv = inputs(config, 9)
    cache: attention.Cache | None = None
    parts = []
    for part in qkv.split(portions, dim=1):
        out, cache = attention.attend_after(config, part, cache)
        parts.append(out)
    assert cache is not None
    assert cache[0].shape == (3, config.heads, 9, config.head_size)
    torch.testing.assert_close(torch.cat(parts, dim=1), attention.attend(config, qkv), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bands", [(), (2,)])
def test_float64_is_attended_in_float64(bands: tuple[int, ...]) -> None:
    """Two scores that float32 cannot tell apart: the better key gets all of the weight."""
    config = ModelConfig(vocab=5, layers=1, heads=1, width=1, bands=bands)
    keys = torch.tensor([2.0**28, 2.0**28 + 8] + [0.0] * 8, dtype=torch.float64)
    qkv = torch.stack([torch.full_like(keys, 2.0), keys, torch.arange(10.0, dtype=torch.float64)], dim=-1)
    mixed = attention.attend(config, qkv[None])
    assert mixed.dtype == torch.float64
    assert abs(float(mixed[0, 1, 0]) - 1.0) < 1e-6
