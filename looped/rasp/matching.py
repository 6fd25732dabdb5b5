"""For every query, the earlier keys equal to it: how many, the first, the last. Arrays only, no rules.

The general definition compares every query with every earlier key, n² cells. Here one sort puts equal keys
and queries side by side, in order of position, so that running counts and positions give the same answer.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from looped.rasp.sequence import Array


class Matches(NamedTuple):
    """At each query: how many equal keys stand at or before it, and where first and last (or -1)."""

    number: Array
    first: Array
    last: Array


def matches(keys: Array, queries: Array) -> Matches:
    """The matches of every query [..., n] among the keys [..., n] at or before its position.

    keys     3 1 3 2        number 1 0 2 0        first  0 -1 0 -1        last  0 -1 2 -1
    queries  3 2 3 9
    """
    keys, queries = np.broadcast_arrays(keys, queries)
    shape, n = keys.shape, keys.shape[-1]
    keys, queries = keys.reshape(-1, n).astype(np.int64), queries.reshape(-1, n).astype(np.int64)
    rows = len(keys)
    # One event a key and one a query, ordered by row, value, position, and keys before queries.
    value = np.concatenate([keys, queries], axis=1)
    is_key = np.arange(2 * n) < n
    at = (np.arange(2 * n) % n) * 2 + ~is_key
    order = np.argsort((value - value.min()) * (2 * n) + at, axis=1)
    row = np.arange(rows)[:, None]
    value, at, key = value[row, order], at[order], is_key[order]
    place = np.broadcast_to(np.arange(2 * n), value.shape)
    fresh = np.ones(value.shape, dtype=bool)
    fresh[:, 1:] = value[:, 1:] != value[:, :-1]
    start = np.maximum.accumulate(np.where(fresh, place, 0), axis=1)  # where the run of equal values begins
    so_far = np.cumsum(key, axis=1)
    count = so_far - (so_far - key)[row, start]
    latest = np.maximum.accumulate(np.where(key, place, -1), axis=1)
    position = at // 2
    last = np.where(count > 0, position[row, latest], -1)
    earliest = np.maximum.accumulate(np.where(key & (count == 1), place, -1), axis=1)
    first = np.where(count > 0, position[row, earliest], -1)
    out = np.empty((3, rows, n), dtype=np.int64)
    query_rows, query_places = np.nonzero(~key)
    out[:, query_rows, position[query_rows, query_places]] = np.stack([count, first, last])[
        :, query_rows, query_places
    ]
    return Matches(*out.reshape(3, *shape))
