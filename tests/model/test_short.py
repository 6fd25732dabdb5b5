"""Attention of short rows on a CPU: whatever rows are grouped with, each is attended to as if it were alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from looped.fast import short
from looped.fast.packing import Packing
from looped.model.config import ModelConfig

WIDTH = 12


def one_by_one(packing: Packing, heads: int, qkv: torch.Tensor) -> torch.Tensor:
    """Every row of every seed through the library's own attention."""
    out = torch.empty(*qkv.shape[:2], WIDTH)
    for seed in range(qkv.shape[0]):
        for start, size in zip(packing.ends, packing.sizes, strict=False):
            q, k, v = qkv[seed, start : start + size].view(size, 3, heads, -1).permute(1, 2, 0, 3)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out[seed, start : start + size] = mixed.transpose(0, 1).reshape(size, WIDTH)
    return out


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 3), st.sampled_from([1, 3, 4]))
def test_each_row_is_attended_to_as_if_alone(sizes: list[int], seeds: int, heads: int) -> None:
    packing, config = Packing(tuple(sizes)), ModelConfig(5, width=WIDTH, heads=heads)
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(seeds, sum(sizes), 3 * WIDTH, generator=generator).requires_grad_()
    assert short.suits(config, packing, qkv)
    found, wanted = short.attend(config, packing, qkv), one_by_one(packing, heads, qkv)
    torch.testing.assert_close(found, wanted)
    flow = torch.randn(found.shape, generator=generator)
    torch.testing.assert_close(torch.autograd.grad(found, qkv, flow), torch.autograd.grad(wanted, qkv, flow))


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((4, 4, 4), [(3, 4)]),
        ((9, 8, 6, 5, 2), [(3, 9), (1, 5), (1, 2)]),
        ((2, 3, 4), [(2, 3), (1, 4)]),  # 4 is more than 1.5 times 2
        ((8, 1, 8), [(1, 8), (1, 1), (1, 8)]),  # only neighbours, whatever stands further on
    ],
)
def test_rows_are_filled_up_by_half_their_size_at_most(
    sizes: tuple[int, ...], groups: list[tuple[int, int]]
) -> None:
    shapes = short._Heads(Packing(sizes), heads=2, seeds=3).shapes
    assert shapes == [(6 * rows, size) for rows, size in groups]


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (ModelConfig(5, width=WIDTH, heads=3), short.LONGEST + 1),
        (ModelConfig(5, width=WIDTH, heads=3, positions="alibi"), 4),
        (ModelConfig(5, width=WIDTH, heads=3, sharpen=True), 4),
    ],
)
def test_what_it_leaves_to_others(config: ModelConfig, longest: int) -> None:
    assert not short.suits(config, Packing((longest, 2)), torch.zeros(1, longest + 2, 3 * WIDTH))
