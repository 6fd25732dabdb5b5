"""Rows of different lengths in one tensor."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from looped.tasks.distributions import compacted, filled, joined, mirrored, within

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5)
JUNK, PAD = 77, 99


def padded(rows: list[list[int]], size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with junk past their length: nobody may read it."""
    tensor = torch.tensor([row + [JUNK] * (size - len(row)) for row in rows])
    return tensor, torch.tensor([len(row) for row in rows])


def test_within() -> None:
    assert within(torch.tensor([0, 2]), 3).tolist() == [[False, False, False], [True, True, False]]


@given(ROWS)
def test_filled_and_mirrored(rows: list[list[int]]) -> None:
    values, lengths = padded(rows)
    assert filled(values, lengths, PAD).tolist() == [row + [PAD] * (6 - len(row)) for row in rows]
    for row, turned in zip(rows, mirrored(values, lengths).tolist(), strict=True):
        assert turned[: len(row)] == row[::-1]


@given(ROWS, st.data())
def test_joined(rows: list[list[int]], data: st.DataObject) -> None:
    others = [data.draw(st.lists(st.integers(0, 9), max_size=6)) for _ in rows]
    both = joined([padded(rows), padded(others)], 14, PAD).tolist()
    assert both == [a + b + [PAD] * (14 - len(a + b)) for a, b in zip(rows, others, strict=True)]


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=5))
def test_compacted(keep: list[list[bool]]) -> None:
    values = torch.arange(6 * len(keep)).reshape(-1, 6)
    kept = [
        [v for v, k in zip(row, ks, strict=True) if k] for row, ks in zip(values.tolist(), keep, strict=True)
    ]
    assert compacted(values, torch.tensor(keep), 6, PAD).tolist() == [r + [PAD] * (6 - len(r)) for r in kept]
