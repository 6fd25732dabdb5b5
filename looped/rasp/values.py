"""The different values in an array, coded 0, 1, 2, …: the start of every shortcut that works value by value."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_RANGE = 4096  # up to this span of values a table is faster than a sort


class Distinct(NamedTuple):
    """The different values in rising order, and for every place the position of its value among them."""

    values: Array
    codes: Array


def distinct(data: Array) -> Distinct:
    """The different values of an array: of `3 1 3 2` the values 1 2 3 and the codes 2 0 2 1."""
    if data.dtype == np.bool_:
        data = data.astype(np.int64)
    low, high = int(data.min()), int(data.max())
    if high - low > _RANGE:
        values, codes = np.unique(data, return_inverse=True)
        return Distinct(values, codes.reshape(data.shape))
    places = data - low
    values = np.flatnonzero(np.bincount(places.reshape(-1)))
    code_of = np.zeros(high - low + 1, dtype=np.int64)
    code_of[values] = np.arange(len(values))
    return Distinct(values + low, code_of[places])


def rows_of(data: Array) -> Array:
    """All leading axes as one: [row, position]."""
    return data.reshape(-1, data.shape[-1])


def hot(keys: Distinct) -> Array:
    """Where each value stands: a boolean [row, value, position]."""
    return np.asarray(rows_of(keys.codes)[:, None, :] == np.arange(len(keys.values))[:, None])


def at_codes(by_value: Array, asked: Distinct) -> Array:
    """Of [row, value, position], at every position the entry of the value that is asked for there."""
    codes = rows_of(asked.codes)
    rows, n = codes.shape
    return np.asarray(by_value[np.arange(rows)[:, None], codes, np.arange(n)].reshape(asked.codes.shape))
