"""How sure a measured accuracy is: Wilson's interval for one, mean and standard error over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

Z95 = 1.959963984540054  # standard deviations that hold 95 % of a normal distribution


def wilson(accuracy: float, samples: int, z: float = Z95) -> tuple[float, float]:
    """The interval that holds the true accuracy 95 times of 100 (with the default z), given a measured one.

    Unlike the normal interval it is honest at the ends: 6,400 right of 6,400 give (.9994, 1).
    """
    assert samples > 0
    assert 0 <= accuracy <= 1
    shrink = 1 + z * z / samples
    middle = (accuracy + z * z / (2 * samples)) / shrink
    half = z / shrink * math.sqrt(accuracy * (1 - accuracy) / samples + z * z / (4 * samples * samples))
    return 0.0 if accuracy == 0 else middle - half, 1.0 if accuracy == 1 else middle + half


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its standard error, which one seed alone does not have."""

    mean: float
    error: float | None


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean ± standard error (sample deviation over the root of the number of seeds)."""
    assert values
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Spread(fmean(values), error)
