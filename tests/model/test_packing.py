"""Rows without padding against lists of lists."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from looped.fast.packing import Packing

CPU = torch.device("cpu")
sizes = st.lists(st.integers(1, 6), min_size=1, max_size=7)


def rows_of(sizes: list[int], seeds: int = 2) -> tuple[torch.Tensor, list[list[list[float]]]]:
    """Padded rows of different numbers, and the same as lists without the padding."""
    longest = max(sizes)
    padded = torch.arange(seeds * len(sizes) * longest).view(seeds, len(sizes), longest).double()
    lists = [[row[:size].tolist() for row, size in zip(seed, sizes, strict=True)] for seed in padded]
    return padded, lists


@given(sizes)
def test_rows_lie_one_after_the_other(sizes: list[int]) -> None:
    padded, lists = rows_of(sizes)
    packing = Packing(tuple(sizes))
    packed = packing.pack(padded)
    assert packed.tolist() == [[x for row in seed for x in row] for seed in lists]
    starts = packing.starts(CPU).tolist()
    assert [int(packed[0, at]) for at in starts] == [int(row[0]) for row in lists[0]]
    assert packing.places(CPU).tolist() == [list(pair) for pair in zip(starts, sizes, strict=True)]
    assert sum(rows * size for rows, size in packing.runs) == packed.shape[1] == packing.ends[-1]


@given(sizes)
def test_padding_that_no_row_needs_is_left_out(sizes: list[int]) -> None:
    padded, lists = rows_of(sizes)
    wider = torch.nn.functional.pad(padded, (0, 2), value=-1.0)
    packed = Packing(tuple(sizes)).pack(wider)
    assert packed.tolist() == [[x for row in seed for x in row] for seed in lists]


@given(sizes, st.data())
def test_what_rows_have_and_positions_sum_to(sizes: list[int], data: st.DataObject) -> None:
    packing = Packing(tuple(sizes))
    padded, lists = rows_of(sizes)
    spread = packing.spread(torch.arange(len(sizes)).expand(2, -1))
    assert spread[1].tolist() == [i for i, size in enumerate(sizes) for _ in range(size)]
    some = data.draw(st.integers(0, len(sizes)))
    totals = packing.total(packing.pack(padded)[:, : packing.ends[some]])
    wanted = [[sum(row) if i < some else 0.0 for i, row in enumerate(seed)] for seed in lists]
    assert totals.tolist() == wanted
    flow = packing.pack(padded)[..., None] * torch.tensor([3.0, 4.0])
    norms = [[5 * sum(x * x for x in row) ** 0.5 for row in seed] for seed in lists]
    torch.testing.assert_close(packing.norms(flow), torch.tensor(norms, dtype=torch.float64))


@given(sizes, st.integers(1, 3))
def test_the_positions_of_every_nth_row(sizes: list[int], every: int) -> None:
    packing = Packing(tuple(sizes))
    padded, lists = rows_of(sizes)
    chosen = packing.of_rows(slice(0, None, every), CPU)
    assert packing.pack(padded)[0, chosen].tolist() == [x for row in lists[0][::every] for x in row]


@pytest.mark.parametrize(("sizes", "shape"), [((3, 3), (1, 2, 3, 4)), ((3, 2), (1, 1, 5, 4))])
def test_a_model_sees_even_rows_as_rows(sizes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    packing = Packing(sizes)
    assert packing.wide(torch.zeros(1, sum(sizes), 4)).shape == shape
    assert packing.fills(3) == packing.even
    assert not packing.fills(4)
