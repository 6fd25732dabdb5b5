"""Array algorithms behind `select`, `kqv` and the library. Knows no rule and no sequence.

Two forms of attention. A `Dense` attention is a matrix, query × key: n² cells. Where keys and queries take few
different values, as tokens do, `ByValue` keeps one running sum (count, extreme) for each different key and a small
table of which query value selects which key value: n cells for each value, and the same results.

Equality needs less. For every query, the earlier keys equal to it: how many, the first, the last.

    keys     3 1 3 2        number  1 0 2 0        first  0 -1 0 -1        last  0 -1 2 -1
    queries  3 2 3 9

Few different values are compared one by one, n cells each. Many are sorted, so that equal keys lie side by side in
order of position, and a search for the query finds the first, the last and how many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_RANGE = 4096  # up to this span of values a table is faster than a sort
_FEW = 64  # different values up to which they are compared one by one
_CELLS = 1 << 24  # and only while this many cells suffice
_FAR = np.iinfo(np.int64)


# --- the different values of an array --------------------------------------------------------------------
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


# --- attention in two forms ------------------------------------------------------------------------------
@dataclass(frozen=True)
class Dense:
    """A causal boolean matrix [..., query, key]."""

    cells: Array

    def width(self) -> Array:
        """How many keys each query selects."""
        return np.asarray(self.cells.sum(axis=-1))

    def reduce(self, values: Array, default: int, reduction: str) -> Array:
        """The mean (towards zero), min or max of the selected values, `default` where there are none."""
        if reduction == "mean":
            # Values are small integers, so a sum in floating point is exact.
            total = np.matmul(self.cells.astype(np.float64), values[..., None].astype(np.float64))[..., 0]
            return _mean(total, self.width(), default)
        lowest = reduction == "min"
        masked = np.where(self.cells, values[..., None, :].astype(np.int64), _FAR.max if lowest else _FAR.min)
        out = masked.min(axis=-1) if lowest else masked.max(axis=-1)
        return np.where(self.cells.any(axis=-1), out, default)


@dataclass(frozen=True)
class ByValue:
    """A table [query value, key value] of who selects whom, with the keys and queries it is for."""

    table: Array
    keys: Distinct
    queries: Distinct

    def width(self) -> Array:
        """How many keys each query selects."""
        counts = np.cumsum(hot(self.keys), axis=-1, dtype=np.float64)
        return self._asked(np.matmul(self.table.astype(np.float64), counts)).astype(np.int64)

    def reduce(self, values: Array, default: int, reduction: str) -> Array:
        """The mean (towards zero), min or max of the selected values, `default` where there are none."""
        of_key = hot(self.keys)
        each = rows_of(np.broadcast_to(values, self.keys.codes.shape))[:, None, :]
        if reduction == "mean":
            running = np.cumsum(of_key * each, axis=-1, dtype=np.float64)
            total = self._asked(np.matmul(self.table.astype(np.float64), running))
            return _mean(total, self.width(), default)
        lowest = reduction == "min"
        far = _FAR.max if lowest else _FAR.min
        better = np.minimum if lowest else np.maximum
        running = better.accumulate(np.where(of_key, each.astype(np.int64), far), axis=-1)
        allowed = np.where(self.table[None, :, :, None], running[:, None], far)
        out = self._asked(better.reduce(allowed, axis=2))
        return np.where(out == far, default, out)

    def _asked(self, by_query_value: Array) -> Array:
        """[row, query value, position] at each position's own query value."""
        return at_codes(by_query_value, self.queries)


def _mean(total: Array, width: Array, default: int) -> Array:
    return np.where(width > 0, np.trunc(total / np.maximum(width, 1)), default).astype(np.int64)


# --- equal keys ------------------------------------------------------------------------------------------
def number(keys: Array, queries: Array) -> Array:
    """How many keys at or before each query are equal to it."""
    coded, asked, few = _coded(keys, queries)
    if not few:
        return _sorted(coded, asked).number
    return at_codes(np.cumsum(hot(coded), axis=-1, dtype=np.int64), asked)


def first(keys: Array, queries: Array) -> Array:
    """Where the first key equal to each query stands, if at or before it; else -1."""
    coded, asked, few = _coded(keys, queries)
    if not few:
        return _sorted(coded, asked).first
    where = hot(coded)
    n = where.shape[-1]
    earliest = np.where(where.any(axis=-1), where.argmax(axis=-1), n)
    found = np.take_along_axis(earliest, rows_of(asked.codes), axis=-1).reshape(asked.codes.shape)
    return np.where(found <= np.arange(n), found, -1)


def last(keys: Array, queries: Array) -> Array:
    """Where the last key equal to each query stands at or before it; else -1."""
    coded, asked, few = _coded(keys, queries)
    if not few:
        return _sorted(coded, asked).last
    where = hot(coded)
    latest = np.maximum.accumulate(np.where(where, np.arange(where.shape[-1]), -1), axis=-1)
    return at_codes(latest, asked)


def _coded(keys: Array, queries: Array) -> tuple[Distinct, Distinct, bool]:
    """Keys and queries as codes of the same values, and whether those are few."""
    keys, queries = np.broadcast_arrays(keys, queries)
    values, codes = distinct(np.stack([keys, queries]).astype(np.int64))
    few = len(values) <= _FEW and len(values) * keys.size <= _CELLS
    return Distinct(values, codes[0]), Distinct(values, codes[1]), few


class _Matches(NamedTuple):
    number: Array
    first: Array
    last: Array


def _sorted(keys: Distinct, queries: Distinct) -> _Matches:
    """Keys in order of row, value and position: the matches of a query lie side by side."""
    n, position = keys.codes.shape[-1], np.arange(keys.codes.shape[-1])
    row = np.arange(keys.codes.size // n).reshape(*keys.codes.shape[:-1], 1) * len(keys.values)
    ordered = np.sort(((row + keys.codes) * n + position).reshape(-1))
    begin = (row + queries.codes) * n
    low, high = np.searchsorted(ordered, begin), np.searchsorted(ordered, begin + position, side="right")
    earliest, latest = (ordered.take(at, mode="clip") % n for at in (low, high - 1))
    found = low < high
    return _Matches(high - low, np.where(found, earliest, -1), np.where(found, latest, -1))
