"""Speed of the n-RASP-L operations against plain double loops, on the same rows, in one run.

looped bench rasp --json
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict, TypeVar

import numpy as np

from benchmarks import rasp_reference as reference
from looped.errors import InputError
from looped.rasp import core, library
from looped.rasp.sequence import Seq, seq, unwrap

T = TypeVar("T")

NULL = library.NULL
ALPHABET = 8  # different tokens in the rows


class Operation(NamedTuple):
    """One operation on two rows of tokens, both ways."""

    name: str
    ours: Callable[[Seq, Seq], Seq]
    plain: Callable[[list[int], list[int]], list[int]]


class Measured(TypedDict):
    """Seconds for one call of each side."""

    operation: str
    ours_seconds: float
    plain_seconds: float
    speedup: float


OPERATIONS = (
    Operation(
        "kqv, mean",
        lambda x, y: core.kqv(x, y, y, core.equals),
        lambda x, y: reference.kqv(x, y, y, reference.equals),
    ),
    Operation(
        "kqv, max",
        lambda x, y: core.kqv(x, y, y, core.leq, reduction="max"),
        lambda x, y: reference.kqv(x, y, y, lambda k, q: k <= q, reduction="max"),
    ),
    Operation(
        "sel_width",
        lambda x, y: core.sel_width(core.select(x, y, lambda k, q: k + q == 7)),
        lambda x, y: reference.sel_width(reference.select(x, y, lambda k, q: k + q == 7)),
    ),
    Operation(
        "shift_right", lambda x, y: library.shift_right(x, 1), lambda x, y: reference.shift_right(x, 1)
    ),
    Operation(
        "cumsum",
        lambda x, y: library.cumsum(x == 1),
        lambda x, y: reference.cumsum([int(value == 1) for value in x]),
    ),
    Operation("maximum", lambda x, y: library.maximum(x), lambda x, y: reference.maximum(x)),
    Operation("argmax", lambda x, y: library.argmax(x), lambda x, y: reference.argmax(x)),
    Operation("num_prev", library.num_prev, reference.num_prev),
    Operation("has_seen", library.has_seen, reference.has_seen),
    Operation("firsts", library.firsts, reference.firsts),
    Operation("lasts", library.lasts, reference.lasts),
    Operation(
        "index_select",
        lambda x, y: library.index_select(x, library.firsts(x, y)),
        lambda x, y: reference.index_select(x, reference.firsts(x, y)),
    ),
    Operation(
        "mode",
        lambda x, y: library.mode(x),
        lambda x, y: reference.index_select(x, reference.argmax(reference.num_prev(x, x))),
    ),
    Operation(
        "induct",
        lambda x, y: library.induct(x, y, 1),
        lambda x, y: reference.index_select(x, reference.firsts(reference.shift_right(x, 1, NULL), y, NULL)),
    ),
)


def measure(n: int = 256, seed: int = 0, repeats: int = 20) -> dict[str, object]:
    """Times every operation both ways on random rows of n tokens; the results must be equal.

    Seconds are the best of `repeats` calls for ours and of two for the double loops; `speedup` is the ratio
    of the sums.
    """
    if n < 1 or repeats < 1:
        raise InputError(f"n and repeats must be at least 1, not {n} and {repeats}")
    generator = np.random.default_rng(seed)
    x, y = generator.integers(0, ALPHABET, (2, n)).tolist()
    rows = [_measured(operation, x, y, repeats) for operation in OPERATIONS]
    ours, plain = (sum(row[side] for row in rows) for side in ("ours_seconds", "plain_seconds"))
    return {
        "n": n,
        "operations": rows,
        "ours_seconds": ours,
        "plain_seconds": plain,
        "speedup": plain / ours,
        "equal": True,
    }


def table(measured: dict[str, object]) -> tuple[Sequence[str], list[Sequence[object]]]:
    """Columns and rows for people, in milliseconds."""
    rows: list[Measured] = measured["operations"]  # type: ignore[assignment]
    total: Measured = {"operation": "all", **measured}  # type: ignore[typeddict-item]
    return ("operation", "ours ms", "double loop ms", "times faster"), [
        (
            row["operation"],
            round(row["ours_seconds"] * 1e3, 4),
            round(row["plain_seconds"] * 1e3, 2),
            round(row["speedup"], 1),
        )
        for row in [*rows, total]
    ]


def _measured(operation: Operation, x: list[int], y: list[int], repeats: int) -> Measured:
    a, b = seq(x), seq(y)
    ours, fast = _timed(lambda: unwrap(operation.ours(a, b)), repeats)
    plain, slow = _timed(lambda: operation.plain(x, y), 2)
    if ours.astype(int).tolist() != [int(value) for value in plain]:
        raise AssertionError(f"{operation.name} differs from its double loop")
    return {
        "operation": operation.name,
        "ours_seconds": fast,
        "plain_seconds": slow,
        "speedup": slow / fast,
    }


def _timed(action: Callable[[], T], repeats: int) -> tuple[T, float]:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        result = action()
        best = min(best, time.perf_counter() - start)
    return result, best
