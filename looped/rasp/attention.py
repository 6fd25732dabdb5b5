"""Who looks at whom, and what comes of it: the arrays behind `select` and `kqv`. Knows no rule and no sequence.

Two forms of the same thing. A `Dense` attention is a matrix, query × key: n² cells. Where keys and queries take
few different values, as tokens do, `ByValue` keeps one running sum (count, extreme) for each different key and
a small table of which query value looks at which key value: n cells for each value, and the same results.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from looped.rasp.values import Array, Distinct, at_codes, hot, rows_of

_FAR = np.iinfo(np.int64)


@dataclass(frozen=True)
class Dense:
    """A causal boolean matrix [..., query, key]."""

    cells: Array

    @property
    def positions(self) -> int:
        """The length of the rows."""
        return int(self.cells.shape[-1])

    def width(self) -> Array:
        """How many keys each query looks at."""
        return np.asarray(self.cells.sum(axis=-1))

    def reduce(self, values: Array, default: int, reduction: str) -> Array:
        """The mean (towards zero), min or max of the values looked at, `default` where there are none."""
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
    """A table [query value, key value] of who looks at whom, with the keys and queries it is for."""

    table: Array
    keys: Distinct
    queries: Distinct

    @property
    def positions(self) -> int:
        """The length of the rows."""
        return int(self.keys.codes.shape[-1])

    def width(self) -> Array:
        """How many keys each query looks at."""
        counts = np.cumsum(hot(self.keys), axis=-1, dtype=np.float64)
        return self._asked(np.matmul(self.table.astype(np.float64), counts)).astype(np.int64)

    def reduce(self, values: Array, default: int, reduction: str) -> Array:
        """The mean (towards zero), min or max of the values looked at, `default` where there are none."""
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
