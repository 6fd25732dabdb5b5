"""Intervals and errors against published or hand-computed values."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.result_files import over_seeds, wilson


@pytest.mark.parametrize(
    ("right", "samples", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe (1998), Table I
        (6400, 6400, 0.9994, 1.0),
    ],
)
def test_wilson_interval(right: int, samples: int, low: float, high: float) -> None:
    assert wilson(right / samples, samples) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_wilson_interval_holds_the_measured_value_and_narrows(samples: int, share: float) -> None:
    accuracy = round(share * samples) / samples
    low, high = wilson(accuracy, samples)
    assert 0 <= low <= accuracy + 1e-12
    assert accuracy - 1e-12 <= high <= 1
    wider = wilson(accuracy, samples, z=3.0)
    assert wider[0] <= low + 1e-12
    assert high <= wider[1] + 1e-12


def test_mean_and_standard_error_over_seeds() -> None:
    spread = over_seeds([0.9, 1.0, 0.8, 1.0, 0.8])
    assert spread.mean == pytest.approx(0.9)
    assert spread.error == pytest.approx(0.1 / math.sqrt(5))  # sample deviation .1


def test_one_seed_has_no_error() -> None:
    spread = over_seeds([0.75])
    assert (spread.mean, spread.error) == (0.75, None)
