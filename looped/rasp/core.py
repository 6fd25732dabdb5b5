"""The primitives of RASP-L; the library is built of these. Knows no program.

    x                          3 1 3 2
    indices(x)                 0 1 2 3
    tok_map(x, lambda v: v+1)  4 2 4 3
    kqv(k, q, v, pred)         at i: the mean (min, max) of v[j] over all j <= i with pred(k[j], q[i])

All of it is vectorised over positions and rows. A function given to `tok_map`, `seq_map` or `select` gets plain
numbers; it is called once for each different value (or pair of values), not once per position.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from looped.errors import InputError
from looped.rasp import sequence
from looped.rasp.attention import Array, ByValue, Dense, distinct, rows_of
from looped.rasp.lint_rules import refuse
from looped.rasp.sequence import Kind, Seq, kind_of, need_same, operation, unwrap

__all__ = [
    "Selector", "aggregate", "equals", "full", "geq", "gt", "indices", "kqv", "leq", "lt", "sel_width",
    "select", "seq_map", "tok_map",
]  # fmt: skip
REDUCTIONS = ("mean", "min", "max")
MEAN_LIMIT = 64  # values under a mean: a mean of values up to R tells counts up to R apart, and no others
_BLOCK = 1 << 22  # cells of a selector that `kqv` holds at once

Value = int | bool


# --- predicates: `pred(key, query)`, for numbers and for sequences --------------------------------------
def equals(key: Seq | Value, query: Seq | Value) -> Seq | bool:
    """Whether the key is the query."""
    return key == query


def leq(key: Seq | Value, query: Seq | Value) -> Seq | bool:
    """Whether the key is at most the query."""
    return key <= query


def lt(key: Seq | Value, query: Seq | Value) -> Seq | bool:
    """Whether the key is less than the query."""
    return key < query


def geq(key: Seq | Value, query: Seq | Value) -> Seq | bool:
    """Whether the key is at least the query."""
    return key >= query


def gt(key: Seq | Value, query: Seq | Value) -> Seq | bool:
    """Whether the key is greater than the query."""
    return key > query


Predicate = Callable[..., Seq | Value]
SIGNS: dict[Predicate, str] = {equals: "==", leq: "<=", lt: "<", geq: ">=", gt: ">"}
sequence.OPERATIONS.update((pred.__name__, pred) for pred in SIGNS)


class Selector:
    """Which positions, itself and earlier ones, each position selects."""

    __slots__ = ("_attention", "_positions")

    def __init__(self, attention: Dense | ByValue, positions: int) -> None:
        self._attention, self._positions = attention, positions

    __bool__ = sequence.refused("control-flow", "a selector used as a truth value")
    __getitem__ = sequence.refused("indexing", "a selector indexed")


# --- one value a position -------------------------------------------------------------------------------
@operation
def indices(x: Seq) -> Seq:
    """The position of each position: 0 1 2 …"""
    data = unwrap(x)
    return Seq(np.broadcast_to(np.arange(data.shape[-1]), data.shape), Kind.INDEX)


@operation
def full(x: Seq, const: int) -> Seq:
    """The same constant at every position of `x`."""
    data = unwrap(x)
    return Seq(np.full(data.shape, const, dtype=np.int64), Kind.TOKEN, int(const))


@operation
def tok_map(x: Seq, func: Callable[[int], Value]) -> Seq:
    """`func` of each token."""
    data = unwrap(x)
    if kind_of(x) is Kind.INDEX:
        refuse("index-to-token", "tok_map of an index")
    values, codes = _plain_values(data)
    return _mapped("tok_map", [func(value) for value in values], codes)


@operation
def seq_map(x: Seq, y: Seq, func: Callable[..., Value | Seq]) -> Seq:
    """`func` of each pair of tokens at the same position; of indices, comparison only."""
    need_same("seq_map", "x", x, "y", y)
    if func in SIGNS:
        return sequence.compare(SIGNS[func], x, y)
    if Kind.INDEX in (kind_of(x), kind_of(y)):
        refuse("index-to-token", "seq_map of an index with a function other than a comparison")
    a, b = np.broadcast_arrays(unwrap(x), unwrap(y))
    (xs, x_codes), (ys, y_codes) = _plain_values(a), _plain_values(b)
    pairs, codes = distinct(x_codes * len(ys) + y_codes)
    results = [func(xs[pair // len(ys)], ys[pair % len(ys)]) for pair in pairs.tolist()]
    return _mapped("seq_map", results, codes)


# --- attention ------------------------------------------------------------------------------------------
@operation
def select(k: Seq, q: Seq, pred: Predicate, causal: bool = True) -> Selector:
    """Which keys each query selects: at row i, the j <= i where `pred(k[j], q[i])`."""
    need_same("select", "k", k, "q", q)
    if causal is not True:
        refuse("causality", "select without causal=True")
    return Selector(_attend(k, q, pred), unwrap(k).shape[-1])


@operation
def sel_width(selector: Selector) -> Seq:
    """How many keys each position selects: a count."""
    _need_selector("sel_width", selector)
    return Seq(selector._attention.width(), Kind.INDEX)


@operation
def aggregate(selector: Selector, v: Seq, default: int = 0, reduction: str = "mean") -> Seq:
    """The mean (towards zero), min or max of the selected values; `default` where nothing is selected."""
    _need_selector("aggregate", selector)
    _need_values("aggregate", v, reduction)
    values = unwrap(v)
    if selector._positions != values.shape[-1]:
        sizes = f"{selector._positions} positions and v {values.shape[-1]}"
        raise InputError(f"aggregate: selector and v must have the same positions, the selector has {sizes}")
    return Seq(selector._attention.reduce(values, default, reduction), kind_of(v).read)


@operation
def kqv(k: Seq, q: Seq, v: Seq, pred: Predicate, default: int = 0, reduction: str = "mean") -> Seq:
    """One causal attention: `aggregate(select(k, q, pred), v)`, without holding the whole selector."""
    need_same("kqv", "k", k, "q", q)
    need_same("kqv", "k", k, "v", v)
    _need_values("kqv", v, reduction)
    data = np.broadcast_arrays(unwrap(k), unwrap(q), unwrap(v))
    keys, queries, values = (rows_of(part) for part in data)
    n = keys.shape[-1]
    out = np.empty(values.shape, dtype=np.int64)
    rows = max(1, _BLOCK // (n * n))
    for start in range(0, len(out), rows):
        block = slice(start, start + rows)
        attention = _attend(_part(k, keys[block]), _part(q, queries[block]), pred)
        out[block] = attention.reduce(values[block], default, reduction)
    return Seq(out.reshape(data[0].shape), kind_of(v).read)


def _part(x: Seq, data: Array) -> Seq:
    return Seq(data, kind_of(x), x._constant)


def _attend(k: Seq, q: Seq, pred: Predicate) -> Dense | ByValue:
    if Kind.INDEX in (kind_of(k), kind_of(q)):
        # Sequences, not numbers, go into the predicate: so an index keeps to its rules in there too.
        across, down = np.broadcast_arrays(unwrap(k)[..., None, :], unwrap(q)[..., :, None])
        with (
            sequence.recording()
        ):  # the predicate counts as one operation, in however many blocks it is evaluated
            chosen = pred(_part(k, across), _part(q, down))
        if not isinstance(chosen, Seq) or kind_of(chosen) is not Kind.BOOL:
            raise InputError("select: pred must compare the key with the query, giving true or false")
        return Dense(np.tril(unwrap(chosen)))
    data = np.broadcast_arrays(unwrap(k), unwrap(q))
    keys, queries = distinct(data[0]), distinct(data[1])
    table = predicate_table(pred, keys.values.astype(data[0].dtype), queries.values.astype(data[1].dtype))
    if table.size <= 4 * data[0].shape[-1]:
        return ByValue(table, keys, queries)
    return Dense(np.tril(table[queries.codes[..., :, None], keys.codes[..., None, :]]))


def predicate_table(pred: Predicate, keys: Array, queries: Array) -> Array:
    """Which query value (down) selects which key value (across)."""
    if pred in SIGNS:
        return np.asarray(sequence.COMPARE[SIGNS[pred]](keys[None, :], queries[:, None]))
    calls = [[_truth(pred(key, query)) for key in keys.tolist()] for query in queries.tolist()]
    return np.array(calls, dtype=bool)


# --- arguments -----------------------------------------------------------------------------------------
def _need_selector(name: str, value: object) -> None:
    if not isinstance(value, Selector):
        raise InputError(f"{name}: selector must come from select(...), not {type(value).__name__}")


def _need_values(name: str, v: Seq, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise InputError(f"{name}: reduction must be one of {', '.join(REDUCTIONS)}, not {reduction!r}")
    if reduction == "mean" and kind_of(v) is Kind.INDEX:
        refuse("index-arithmetic", f"{name}: the mean of indices (min and max are allowed)")
    if reduction == "mean" and kind_of(v) is Kind.TOKEN:
        largest = int(np.abs(unwrap(v)).max())
        if largest > MEAN_LIMIT:
            refuse("mean-range", f"{name}: the mean of a value of size {largest}")


# --- values ---------------------------------------------------------------------------------------------
def _plain_values(data: Array) -> tuple[list[Value], Array]:
    """The different values as Python's own numbers or booleans, and their codes."""
    values, codes = distinct(data)
    return values.astype(data.dtype).tolist(), codes


def _mapped(name: str, results: list[Value | Seq], place: Array) -> Seq:
    for result in results:
        if not isinstance(result, (int, np.integer, np.bool_)):
            raise InputError(f"{name}: func must return an integer or a boolean, not {type(result).__name__}")
    if all(isinstance(result, (bool, np.bool_)) for result in results):
        return Seq(np.array(results, dtype=bool)[place], Kind.BOOL)
    return sequence.token(np.array(results, dtype=np.int64)[place])


def _truth(value: Value | Seq) -> bool:
    if not isinstance(value, (int, np.integer, np.bool_)):
        raise InputError(f"select: pred must return true or false, not {type(value).__name__}")
    return bool(value)
