"""Lines as they arrive: in order, none lost, bounded, and an end for every way to fail."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped.cli.solve import LONGEST_LINE, line_batches
from looped.errors import InputError


@settings(deadline=None, max_examples=40)
@given(st.lists(st.text("01 ", max_size=5), max_size=40), st.integers(1, 7))
def test_every_line_once_in_order(texts: list[str], at_once: int) -> None:
    found = list(line_batches(io.StringIO("\n".join(texts)), at_once))
    assert all(1 <= len(batch) <= at_once for batch in found)
    expected = [(i, text.strip()) for i, text in enumerate(texts, 1) if text.strip()]
    assert [line for batch in found for line in batch] == expected


def test_a_line_without_end_is_refused_after_what_came_before() -> None:
    lines = line_batches(io.StringIO("1\n" + "1" * (LONGEST_LINE + 5)), at_once=10)
    assert next(lines) == [(1, "1")]
    with pytest.raises(InputError, match="line 2 is longer than"):
        next(lines)


def test_bytes_that_are_no_text() -> None:
    source = io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8")
    with pytest.raises(InputError, match="not a text"):
        list(line_batches(source))
