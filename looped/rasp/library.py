"""The RASP-L library: common combinations of the primitives. Knows the core, no program.

Each function equals the `kqv` in its docstring (a test compares both) and is faster: n or n log n work per row
instead of n². "So far" means at this position or before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from looped.errors import InputError
from looped.rasp import attention, sequence
from looped.rasp.attention import Array
from looped.rasp.lint_rules import refuse
from looped.rasp.sequence import Kind, Seq, kind_of, need_same, operation, unwrap

__all__ = [
    "argmax", "argmin", "cumsum", "first_true", "firsts", "has_seen", "index_select", "induct", "induct_kqv",
    "induct_prev", "lasts", "mask", "maximum", "minimum", "mode", "num_prev", "sample", "seen", "shift_right",
    "where",
]  # fmt: skip
NULL = -999  # a value that no token has: what `induct` puts where a match must not happen


# --- moving and choosing --------------------------------------------------------------------------------
@operation
def shift_right(x: Seq, n: int, default: int = 0) -> Seq:
    """Every value n positions further right: kqv(indices(x) + n, indices(x), x, equals, default)."""
    data = unwrap(x)
    if n < 0:
        refuse("causality", f"shift_right: n must be at least 0, not {n}")
    kind = Kind.TOKEN if kind_of(x) is Kind.BOOL and default not in (0, 1) else kind_of(x)
    out = np.full(data.shape, default, dtype=bool if kind is Kind.BOOL else np.int64)
    out[..., n:] = data[..., : max(data.shape[-1] - n, 0)]
    return Seq(out, kind)


@operation
def where(condition: Seq, x_if: Seq | int, y_else: Seq | int) -> Seq:
    """`x_if` where the condition is true, `y_else` elsewhere; both of one kind, or one a constant."""
    chosen = _truth("where", "condition", condition)
    x, y = _choice("where", "x_if", condition, x_if), _choice("where", "y_else", condition, y_else)
    kinds = {kind_of(part) for part in (x, y) if part._constant is None} or {kind_of(x), kind_of(y)}
    if Kind.INDEX in kinds and len(kinds) > 1:
        refuse("index-to-token", "where: an index on one side, a token on the other")
    kind = kinds.pop() if len(kinds) == 1 else Kind.TOKEN
    if kind is Kind.BOOL and any(part._constant not in (None, 0, 1) for part in (x, y)):
        kind = Kind.TOKEN
    out = np.where(chosen, unwrap(x), unwrap(y))
    return Seq(out.astype(bool) if kind is Kind.BOOL else out.astype(np.int64), kind)


@operation
def mask(x: Seq, bool_mask: Seq, mask_val: int = 0) -> Seq:
    """`x` where the mask is true, `mask_val` elsewhere."""
    need_same("mask", "x", x, "bool_mask", bool_mask)
    _truth("mask", "bool_mask", bool_mask)
    return where(bool_mask, x, mask_val)


# --- running values -------------------------------------------------------------------------------------
@operation
def cumsum(bool_array: Seq) -> Seq:
    """How many are true so far, a count: sel_width(select(b, b, lambda k, q: k))."""
    return Seq(np.cumsum(_truth("cumsum", "bool_array", bool_array), axis=-1), Kind.INDEX)


@operation
def maximum(x: Seq) -> Seq:
    """The largest value so far: kqv(x, x, x, lambda k, q: True, reduction="max")."""
    return Seq(np.maximum.accumulate(unwrap(x), axis=-1), kind_of(x))


@operation
def minimum(x: Seq) -> Seq:
    """The smallest value so far: kqv(x, x, x, lambda k, q: True, reduction="min")."""
    return Seq(np.minimum.accumulate(unwrap(x), axis=-1), kind_of(x))


@operation
def argmax(x: Seq) -> Seq:
    """Where the largest value so far stands first: firsts(x, maximum(x))."""
    return Seq(_best_so_far(np.maximum.accumulate(unwrap(x), axis=-1)), Kind.INDEX)


@operation
def argmin(x: Seq) -> Seq:
    """Where the smallest value so far stands first: firsts(x, minimum(x))."""
    return Seq(_best_so_far(np.minimum.accumulate(unwrap(x), axis=-1)), Kind.INDEX)


def _best_so_far(best: Array) -> Array:
    """The position at which the running best was last bettered."""
    bettered = best[..., 1:] != best[..., :-1]
    at = np.zeros(best.shape, dtype=np.int64)
    at[..., 1:] = np.where(bettered, np.arange(1, best.shape[-1]), 0)
    return np.maximum.accumulate(at, axis=-1)


# --- finding --------------------------------------------------------------------------------------------
@operation
def num_prev(x: Seq, queries: Seq) -> Seq:
    """How often each query has occurred in x so far, a count: sel_width(select(x, queries, equals))."""
    _comparable("num_prev", x, queries)
    return Seq(attention.number(unwrap(x), unwrap(queries)), Kind.INDEX)


@operation
def has_seen(x: Seq, queries: Seq) -> Seq:
    """Whether each query has occurred in x so far: kqv(x, queries, full(x, 1), equals)."""
    _comparable("has_seen", x, queries)
    if queries._constant is not None:
        seen = np.logical_or.accumulate(unwrap(x) == queries._constant, axis=-1)
        return Seq(np.broadcast_to(seen, np.broadcast_shapes(seen.shape, unwrap(queries).shape)), Kind.BOOL)
    return Seq(attention.first(unwrap(x), unwrap(queries)) >= 0, Kind.BOOL)


@operation
def seen(flag: Seq) -> Seq:
    """Whether the flag has been true so far: has_seen(flag, full(flag, 1))."""
    return Seq(np.logical_or.accumulate(_truth("seen", "flag", flag), axis=-1), Kind.BOOL)


@operation
def firsts(x: Seq, queries: Seq, default: int = -1) -> Seq:
    """Where each query first stands in x so far: kqv(x, queries, indices(x), equals, default, "min")."""
    _comparable("firsts", x, queries)
    found = attention.first(unwrap(x), unwrap(queries))
    return Seq(np.where(found < 0, default, found), Kind.INDEX)


@operation
def lasts(x: Seq, queries: Seq, default: int = -1) -> Seq:
    """Where each query last stands in x so far: kqv(x, queries, indices(x), equals, default, "max")."""
    _comparable("lasts", x, queries)
    found = attention.last(unwrap(x), unwrap(queries))
    return Seq(np.where(found < 0, default, found), Kind.INDEX)


@operation
def first_true(x: Seq, default: int = -1) -> Seq:
    """Where x is first true so far: firsts(x, full(x, 1))."""
    data = _truth("first_true", "x", x)
    found = np.logical_or.accumulate(data, axis=-1)
    return Seq(np.where(found, np.argmax(data, axis=-1)[..., None], default), Kind.INDEX)


@operation
def index_select(x: Seq, idx: Seq, default: int = 0) -> Seq:
    """The value of x at each index, if that is not to the right: kqv(indices(x), idx, x, equals)."""
    need_same("index_select", "x", x, "idx", idx)
    if kind_of(idx) is not Kind.INDEX and idx._constant is None:
        refuse("index-to-token", "index_select at a token")
    data, at = np.broadcast_arrays(unwrap(x), unwrap(idx))
    reachable = (at >= 0) & (at <= np.arange(data.shape[-1]))
    values = np.take_along_axis(data, np.where(reachable, at, 0), axis=-1).astype(np.int64)
    return Seq(np.where(reachable, values, default), kind_of(x).read)


# --- patterns -------------------------------------------------------------------------------------------
@operation
def mode(x: Seq) -> Seq:
    """The commonest value so far; of several, the one that was so often first."""
    return index_select(x, argmax(num_prev(x, x)))


@operation
def induct_kqv(k: Seq, q: Seq, v: Seq, offset: int, default: int = 0, null_val: int = NULL) -> Seq:
    """The value of v `offset` positions after the first key equal to the query, if not to the right."""
    _comparable("induct_kqv", k, q)
    need_same("induct_kqv", "k", k, "v", v)
    sequence.need_int("induct_kqv", "offset", offset, least=0)
    at = firsts(shift_right(k, offset, default=null_val), q, default=null_val)
    return index_select(v, at, default=default)


@operation
def induct(k: Seq, q: Seq, offset: int, default: int = 0, null_val: int = NULL) -> Seq:
    """The key `offset` positions after the first key equal to the query: an induction head."""
    return induct_kqv(k, q, k, offset, default=default, null_val=null_val)


@operation
def induct_prev(k: Seq, q: Seq, offset: int, default: int = 0, null_val: int = NULL) -> Seq:
    """The key `-offset` positions before the first key equal to the query; `offset` is 0 or negative."""
    _comparable("induct_prev", k, q)
    if offset > 0:
        raise InputError(f"induct_prev: offset must be at most 0, not {offset}")
    at = firsts(k, q, default=null_val)
    return index_select(shift_right(k, -offset, default=default), at, default=default)


def sample(program: Callable[[Seq], Seq], prompt: Seq, count: int) -> Seq:
    """The prompt continued by `count` tokens, each the program's last output: next-token prediction.

    For the code that runs a program; a program itself never calls it.
    """
    data = unwrap(sequence.need_seq("sample", "prompt", prompt)).astype(np.int64)
    sequence.need_int("sample", "count", count, least=0)
    for _ in range(count):
        output = sequence.need_seq("sample", "the program's output", program(sequence.token(data)))
        data = np.concatenate([data, unwrap(output)[..., -1:].astype(np.int64)], axis=-1)
    return sequence.token(data)


# --- arguments ------------------------------------------------------------------------------------------
def _truth(caller: str, name: str, value: Seq) -> Array:
    data = unwrap(sequence.need_seq(caller, name, value))
    if kind_of(value) is Kind.INDEX:
        refuse("index-to-token", f"{caller}: {name} is an index")
    if kind_of(value) is Kind.TOKEN and not ((data == 0) | (data == 1)).all():
        raise InputError(f"{caller}: {name} must be boolean, or 0 and 1 only")
    return data.astype(bool)


def _choice(caller: str, name: str, condition: Seq, value: Seq | int) -> Seq:
    if isinstance(value, int):
        return sequence.operand(caller, value)
    need_same(caller, "condition", condition, name, value)
    return value


def _comparable(caller: str, x: Seq, queries: Seq) -> None:
    need_same(caller, "x", x, "queries", queries)
    sequence.refuse_mixed(x, queries, f"{caller}: an index and a token compared")
