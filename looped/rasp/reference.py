"""The plain meaning of every operation, as double loops over the positions of one row of Python numbers.

Slow and obvious on purpose: the tests hold the library equal to this, `looped bench rasp` measures against
it, and it shares no code with the library.
"""

from __future__ import annotations

from collections.abc import Callable

Row = list[int]
Matrix = list[list[bool]]


def indices(x: Row) -> Row:
    """0 1 2 …"""
    return list(range(len(x)))


def full(x: Row, const: int) -> Row:
    """One constant everywhere."""
    return [const for _ in x]


def tok_map(x: Row, func: Callable[[int], int]) -> Row:
    """`func` of each."""
    return [int(func(a)) for a in x]


def seq_map(x: Row, y: Row, func: Callable[[int, int], int]) -> Row:
    """`func` of each pair."""
    return [int(func(a, b)) for a, b in zip(x, y, strict=True)]


def select(k: Row, q: Row, pred: Callable[[int, int], object]) -> Matrix:
    """Row i: which j <= i have `pred(k[j], q[i])`."""
    return [[j <= i and bool(pred(k[j], q[i])) for j in range(len(k))] for i in range(len(q))]


def sel_width(selector: Matrix) -> Row:
    """How many are selected in each row."""
    return [sum(1 for cell in row if cell) for row in selector]


def aggregate(selector: Matrix, v: Row, default: int = 0, reduction: str = "mean") -> Row:
    """The mean (towards zero), min or max of what each row selects."""
    out = []
    for row in selector:
        chosen = [value for cell, value in zip(row, v, strict=True) if cell]
        if not chosen:
            out.append(default)
        elif reduction == "mean":
            out.append(int(sum(chosen) / len(chosen)))
        else:
            out.append(min(chosen) if reduction == "min" else max(chosen))
    return out


def kqv(
    k: Row, q: Row, v: Row, pred: Callable[[int, int], object], default: int = 0, reduction: str = "mean"
) -> Row:
    """One causal attention."""
    return aggregate(select(k, q, pred), v, default, reduction)


def equals(key: int, query: int) -> bool:
    """Whether they are the same."""
    return key == query


def shift_right(x: Row, n: int, default: int = 0) -> Row:
    """Keys are the positions moved by n, queries the positions."""
    return kqv([i + n for i in indices(x)], indices(x), x, equals, default)


def where(condition: Row, x_if: Row, y_else: Row) -> Row:
    """One or the other."""
    return [a if c else b for c, a, b in zip(condition, x_if, y_else, strict=True)]


def mask(x: Row, bool_mask: Row, mask_val: int = 0) -> Row:
    """`x`, or a constant outside the mask."""
    return where(bool_mask, x, full(x, mask_val))


def cumsum(flags: Row) -> Row:
    """The number of selected true keys."""
    return sel_width(select(flags, flags, lambda k, q: k))


def maximum(x: Row) -> Row:
    """The largest so far."""
    return kqv(x, x, x, lambda k, q: True, reduction="max")


def minimum(x: Row) -> Row:
    """The smallest so far."""
    return kqv(x, x, x, lambda k, q: True, reduction="min")


def num_prev(x: Row, queries: Row) -> Row:
    """How often so far."""
    return sel_width(select(x, queries, equals))


def has_seen(x: Row, queries: Row) -> Row:
    """Whether so far."""
    return kqv(x, queries, full(x, 1), equals)


def seen(flag: Row) -> Row:
    """Whether the flag was up so far."""
    return has_seen(flag, full(flag, 1))


def firsts(x: Row, queries: Row, default: int = -1) -> Row:
    """Where first so far."""
    return kqv(x, queries, indices(x), equals, default, "min")


def lasts(x: Row, queries: Row, default: int = -1) -> Row:
    """Where last so far."""
    return kqv(x, queries, indices(x), equals, default, "max")


def argmax(x: Row) -> Row:
    """Where the largest so far stands first."""
    return firsts(x, maximum(x))


def argmin(x: Row) -> Row:
    """Where the smallest so far stands first."""
    return firsts(x, minimum(x))


def first_true(x: Row, default: int = -1) -> Row:
    """Where first true."""
    return firsts(x, full(x, 1), default)


def index_select(x: Row, idx: Row, default: int = 0) -> Row:
    """The value there."""
    return kqv(indices(x), idx, x, equals, default)


def mode(x: Row) -> Row:
    """The commonest so far; of several, the one that was so often first."""
    out = []
    for i in range(len(x)):
        counts: dict[int, int] = {}
        best = x[0]
        for value in x[: i + 1]:
            counts[value] = counts.get(value, 0) + 1
            if counts[value] > counts.get(best, 0):
                best = value
        out.append(best)
    return out


def induct(k: Row, q: Row, offset: int, default: int = 0) -> Row:
    """The key `offset` after (before, if negative) the first match, if both lie at or before the query."""
    out = []
    for i in range(len(q)):
        found = [j for j in range(i + 1) if k[j] == q[i] and j + offset <= i]
        at = found[0] + offset if found else -1
        out.append(k[at] if at >= 0 else default)
    return out
