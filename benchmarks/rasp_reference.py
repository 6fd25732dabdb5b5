"""The plain meaning of every n-RASP-L operation, as double loops over the positions of one row of Python numbers.

Slow and obvious on purpose: the tests compare the library with this, `rasp_operations.py` measures against it, and
it shares no code with the library.
"""

from __future__ import annotations

from collections.abc import Callable

Tokens = list[int]
Matrix = list[list[bool]]


def indices(x: Tokens) -> Tokens:
    """0 1 2 …"""
    return list(range(len(x)))


def full(x: Tokens, const: int) -> Tokens:
    """One constant everywhere."""
    return [const for _ in x]


def tok_map(x: Tokens, func: Callable[[int], int]) -> Tokens:
    """`func` of each."""
    return [int(func(a)) for a in x]


def seq_map(x: Tokens, y: Tokens, func: Callable[[int, int], int]) -> Tokens:
    """`func` of each pair."""
    return [int(func(a, b)) for a, b in zip(x, y, strict=True)]


def select(k: Tokens, q: Tokens, pred: Callable[[int, int], object]) -> Matrix:
    """Row i: which j <= i have `pred(k[j], q[i])`."""
    return [[j <= i and bool(pred(k[j], q[i])) for j in range(len(k))] for i in range(len(q))]


def sel_width(selector: Matrix) -> Tokens:
    """How many are selected in each row."""
    return [sum(1 for cell in row if cell) for row in selector]


def aggregate(selector: Matrix, v: Tokens, default: int = 0, reduction: str = "mean") -> Tokens:
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
    k: Tokens,
    q: Tokens,
    v: Tokens,
    pred: Callable[[int, int], object],
    default: int = 0,
    reduction: str = "mean",
) -> Tokens:
    """One causal attention."""
    return aggregate(select(k, q, pred), v, default, reduction)


def equals(key: int, query: int) -> bool:
    """Whether they are the same."""
    return key == query


def shift_right(x: Tokens, n: int, default: int = 0) -> Tokens:
    """Keys are the positions moved by n, queries the positions."""
    return kqv([i + n for i in indices(x)], indices(x), x, equals, default)


def where(condition: Tokens, x_if: Tokens, y_else: Tokens) -> Tokens:
    """One or the other."""
    return [a if c else b for c, a, b in zip(condition, x_if, y_else, strict=True)]


def mask(x: Tokens, bool_mask: Tokens, mask_val: int = 0) -> Tokens:
    """`x`, or a constant outside the mask."""
    return where(bool_mask, x, full(x, mask_val))


def cumsum(flags: Tokens) -> Tokens:
    """The number of selected true keys."""
    return sel_width(select(flags, flags, lambda k, q: k))


def maximum(x: Tokens) -> Tokens:
    """The largest so far."""
    return kqv(x, x, x, lambda k, q: True, reduction="max")


def minimum(x: Tokens) -> Tokens:
    """The smallest so far."""
    return kqv(x, x, x, lambda k, q: True, reduction="min")


def num_prev(x: Tokens, queries: Tokens) -> Tokens:
    """How often so far."""
    return sel_width(select(x, queries, equals))


def has_seen(x: Tokens, queries: Tokens) -> Tokens:
    """Whether so far."""
    return kqv(x, queries, full(x, 1), equals)


def seen(flag: Tokens) -> Tokens:
    """Whether the flag was up so far."""
    return has_seen(flag, full(flag, 1))


def firsts(x: Tokens, queries: Tokens, default: int = -1) -> Tokens:
    """Where first so far."""
    return kqv(x, queries, indices(x), equals, default, "min")


def lasts(x: Tokens, queries: Tokens, default: int = -1) -> Tokens:
    """Where last so far."""
    return kqv(x, queries, indices(x), equals, default, "max")


def argmax(x: Tokens) -> Tokens:
    """Where the largest so far stands first."""
    return firsts(x, maximum(x))


def argmin(x: Tokens) -> Tokens:
    """Where the smallest so far stands first."""
    return firsts(x, minimum(x))


def first_true(x: Tokens, default: int = -1) -> Tokens:
    """Where first true."""
    return firsts(x, full(x, 1), default)


def index_select(x: Tokens, idx: Tokens, default: int = 0) -> Tokens:
    """The value there."""
    return kqv(indices(x), idx, x, equals, default)


def mode(x: Tokens) -> Tokens:
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


def induct(k: Tokens, q: Tokens, offset: int, default: int = 0) -> Tokens:
    """The key `offset` after (before, if negative) the first match, if both lie at or before the query."""
    out = []
    for i in range(len(q)):
        found = [j for j in range(i + 1) if k[j] == q[i] and j + offset <= i]
        at = found[0] + offset if found else -1
        out.append(k[at] if at >= 0 else default)
    return out
