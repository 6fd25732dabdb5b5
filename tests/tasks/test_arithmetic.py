"""Adding digit by digit against Python's integers."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.tasks.arithmetic import added
from looped.tasks.base import shown


def digits(number: int, size: int) -> torch.Tensor:
    return torch.tensor([[number >> i & 1 for i in range(size)]])


def number(row: torch.Tensor) -> int:
    return sum(bit << i for i, bit in enumerate(row[0].tolist()))


@settings(max_examples=200)
@given(st.integers(1, 300), st.data())
def test_a_sum_is_pythons_sum(size: int, data: st.DataObject) -> None:
    x, y = (data.draw(st.integers(0, 2**size - 1)) for _ in range(2))
    assert number(added(digits(x, size + 1), digits(y, size + 1))) == x + y
    assert number(added(digits(x, size), digits(y, size))) == (x + y) % 2**size


def test_a_carry_through_4096_digits() -> None:
    size = 4096
    assert number(added(digits(2**size - 1, size + 1), digits(1, size + 1))) == 2**size


def test_what_people_typed_is_shown_short() -> None:
    assert shown("a") == "'a'"
    assert shown("\n") == r"'\n'"
    assert len(shown("x" * 5000)) < 30
