"""For every query, the earlier keys equal to it: how many, the first, the last. Arrays only, no rules.

The general definition compares every query with every earlier key, n² cells. Few different values are looked at
one by one, n cells each. Many are sorted, so that equal keys and queries lie side by side in order of
position, and running counts and positions give the same answer.

    keys     3 1 3 2        number  1 0 2 0        first  0 -1 0 -1        last  0 -1 2 -1
    queries  3 2 3 9
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from looped.rasp.values import Array, Distinct, at_codes, distinct, hot, rows_of

_FEW = 64  # different values up to which they are looked at one by one
_CELLS = 1 << 24  # and only while this many cells suffice


def number(keys: Array, queries: Array) -> Array:
    """How many keys at or before each query are equal to it."""
    few = _few_values(keys, queries)
    if few is None:
        return _sorted(keys, queries).number
    return at_codes(np.cumsum(hot(few.keys), axis=-1, dtype=np.int64), few.queries)


def first(keys: Array, queries: Array) -> Array:
    """Where the first key equal to each query stands, if at or before it; else -1."""
    few = _few_values(keys, queries)
    if few is None:
        return _sorted(keys, queries).first
    where = hot(few.keys)
    n = where.shape[-1]
    earliest = np.where(where.any(axis=-1), where.argmax(axis=-1), n)
    found = earliest[np.arange(len(where))[:, None], rows_of(few.queries.codes)].reshape(
        few.queries.codes.shape
    )
    return np.where(found <= np.arange(n), found, -1)


def last(keys: Array, queries: Array) -> Array:
    """Where the last key equal to each query stands at or before it; else -1."""
    few = _few_values(keys, queries)
    if few is None:
        return _sorted(keys, queries).last
    where = hot(few.keys)
    latest = np.maximum.accumulate(np.where(where, np.arange(where.shape[-1]), -1), axis=-1)
    return at_codes(latest, few.queries)


class _Few(NamedTuple):
    keys: Distinct
    queries: Distinct  # coded like the keys


def _few_values(keys: Array, queries: Array) -> _Few | None:
    keys, queries = np.broadcast_arrays(keys, queries)
    values, codes = distinct(np.stack([keys, queries]).astype(np.int64))
    if len(values) > _FEW or len(values) * keys.size > _CELLS:
        return None
    return _Few(Distinct(values, codes[0]), Distinct(values, codes[1]))


class _Matches(NamedTuple):
    number: Array
    first: Array
    last: Array


def _sorted(keys: Array, queries: Array) -> _Matches:
    keys, queries = np.broadcast_arrays(keys, queries)
    shape, n = keys.shape, keys.shape[-1]
    keys, queries = keys.reshape(-1, n).astype(np.int64), queries.reshape(-1, n).astype(np.int64)
    rows = len(keys)
    # One event a key and one a query, ordered by value, position, and keys before queries.
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
    earliest = np.maximum.accumulate(np.where(key & (count == 1), place, -1), axis=1)
    position = at // 2
    found = np.stack(
        [
            count,
            np.where(count > 0, position[row, earliest], -1),
            np.where(count > 0, position[row, latest], -1),
        ]
    )
    out = np.empty((3, rows, n), dtype=np.int64)
    query_rows, query_places = np.nonzero(~key)
    out[:, query_rows, position[query_rows, query_places]] = found[:, query_rows, query_places]
    return _Matches(*out.reshape(3, *shape))
