"""Every operation names a bad argument."""

from collections.abc import Callable

import numpy as np
import pytest

from looped.errors import InputError
from looped.rasp import core, library
from looped.rasp.sequence import TOKEN_LIMIT, Seq, kind_of, seq, unwrap

X = seq([1, 0, 1])
LONG = seq([1, 0, 1, 1])
TOKENS = seq([3, 1, 2])

BAD: dict[str, tuple[Callable[[], object], str]] = {
    "indices": (lambda: core.indices([1, 2]), "indices: x must be a sequence, not list"),  # type: ignore[arg-type]
    "full x": (lambda: core.full(3, 1), "full: x must be a sequence, not int"),  # type: ignore[arg-type]
    "full const": (lambda: core.full(X, 1.5), "full: const must be an integer, not float"),  # type: ignore[arg-type]
    "tok_map x": (lambda: core.tok_map("x", abs), "tok_map: x must be a sequence, not str"),  # type: ignore[arg-type]
    "tok_map func": (lambda: core.tok_map(X, 3), "tok_map: func must be a function, not int"),  # type: ignore[arg-type]
    "tok_map result": (
        lambda: core.tok_map(X, lambda a: 0.5),  # type: ignore[arg-type,return-value]
        "tok_map: func must return an integer or a boolean, not float",
    ),
    "tok_map far": (lambda: core.tok_map(X, lambda a: TOKEN_LIMIT), "precision"),
    "seq_map x": (lambda: core.seq_map(1, X, max), "seq_map: x must be a sequence, not int"),  # type: ignore[arg-type]
    "seq_map y": (lambda: core.seq_map(X, 1, max), "seq_map: y must be a sequence, not int"),  # type: ignore[arg-type]
    "seq_map lengths": (lambda: core.seq_map(X, LONG, max), "seq_map: x has 3 positions and y 4"),
    "seq_map result": (lambda: core.seq_map(X, X, lambda a, b: "a"), "seq_map: func must return"),  # type: ignore[arg-type,return-value]
    "select q": (lambda: core.select(X, 1, core.equals), "select: q must be a sequence"),  # type: ignore[arg-type]
    "select lengths": (lambda: core.select(X, LONG, core.equals), "select: k has 3 positions and q 4"),
    "select pred": (lambda: core.select(X, X, "equals"), "select: pred must be a function, not str"),  # type: ignore[arg-type]
    "select pred result": (
        lambda: core.select(X, X, lambda k, q: "yes"),  # type: ignore[arg-type,return-value]
        "select: pred must return true or false, not str",
    ),
    "select index pred": (
        lambda: core.select(core.indices(X), core.indices(X), lambda k, q: 1),
        "select: pred must compare the key with the query",
    ),
    "sel_width": (lambda: core.sel_width(X), r"sel_width: selector must come from select\(...\), not Seq"),  # type: ignore[arg-type]
    "aggregate selector": (lambda: core.aggregate(X, X), "aggregate: selector must come from select"),  # type: ignore[arg-type]
    "aggregate v": (
        lambda: core.aggregate(core.select(X, X, core.equals), [1]),  # type: ignore[arg-type]
        "aggregate: v must be a sequence, not list",
    ),
    "aggregate lengths": (
        lambda: core.aggregate(core.select(X, X, core.equals), LONG),
        "aggregate: selector and v must have the same positions",
    ),
    "aggregate reduction": (
        lambda: core.aggregate(core.select(X, X, core.equals), X, reduction="sum"),
        "aggregate: reduction must be one of mean, min, max, not 'sum'",
    ),
    "kqv k": (lambda: core.kqv(1, X, X, core.equals), "kqv: k must be a sequence"),  # type: ignore[arg-type]
    "kqv v": (lambda: core.kqv(X, X, LONG, core.equals), "kqv: k has 3 positions and v 4"),
    "kqv pred": (lambda: core.kqv(X, X, X, None), "kqv: pred must be a function, not NoneType"),  # type: ignore[arg-type]
    "kqv default": (
        lambda: core.kqv(X, X, X, core.equals, default="0"),  # type: ignore[arg-type]
        "kqv: default must be an integer, not str",
    ),
    "kqv reduction": (
        lambda: core.kqv(X, X, X, core.equals, reduction="median"),
        "kqv: reduction must be one",
    ),
    "shift_right x": (lambda: library.shift_right(1, 1), "shift_right: x must be a sequence"),  # type: ignore[arg-type]
    "shift_right n": (lambda: library.shift_right(X, -1), "shift_right: n must be at least 0, not -1"),
    "shift_right n type": (lambda: library.shift_right(X, X), "shift_right: n must be an integer, not Seq"),  # type: ignore[arg-type]
    "shift_right default": (
        lambda: library.shift_right(X, 1, None),  # type: ignore[arg-type]
        "shift_right: default must be an integer, not NoneType",
    ),
    "where condition": (lambda: library.where(True, X, X), "where: condition must be a sequence"),  # type: ignore[arg-type]
    "where values": (lambda: library.where(TOKENS, X, X), "where: condition must be boolean, or 0 and 1"),
    "where x_if": (lambda: library.where(X, "a", X), "where: x_if must be a sequence, not str"),  # type: ignore[arg-type]
    "where far constant": (lambda: library.where(X, TOKEN_LIMIT, X), "precision"),
    "where lengths": (lambda: library.where(X, X, LONG), "where: condition has 3 positions and y_else 4"),
    "mask x": (lambda: library.mask(1, X), "mask: x must be a sequence"),  # type: ignore[arg-type]
    "mask mask": (lambda: library.mask(X, TOKENS), "mask: bool_mask must be boolean, or 0 and 1"),
    "mask mask_val": (lambda: library.mask(X, X, X), "mask: mask_val must be an integer, not Seq"),  # type: ignore[arg-type]
    "cumsum": (lambda: library.cumsum(TOKENS), "cumsum: bool_array must be boolean, or 0 and 1 only"),
    "cumsum of a count": (lambda: library.cumsum(library.cumsum(X)), "cumsum: bool_array is an index"),
    "maximum": (lambda: library.maximum([1]), "maximum: x must be a sequence"),  # type: ignore[arg-type]
    "minimum": (lambda: library.minimum([1]), "minimum: x must be a sequence"),  # type: ignore[arg-type]
    "argmax": (lambda: library.argmax([1]), "argmax: x must be a sequence"),  # type: ignore[arg-type]
    "argmin": (lambda: library.argmin([1]), "argmin: x must be a sequence"),  # type: ignore[arg-type]
    "num_prev": (lambda: library.num_prev(X, LONG), "num_prev: x has 3 positions and queries 4"),
    "has_seen": (lambda: library.has_seen(X, 1), "has_seen: queries must be a sequence, not int"),  # type: ignore[arg-type]
    "seen": (lambda: library.seen(TOKENS), "seen: flag must be boolean, or 0 and 1 only"),
    "firsts": (lambda: library.firsts(X, X, 0.5), "firsts: default must be an integer, not float"),  # type: ignore[arg-type]
    "firsts kinds": (lambda: library.firsts(X, core.indices(X)), "firsts: an index and a token compared"),
    "lasts": (lambda: library.lasts(X, LONG), "lasts: x has 3 positions and queries 4"),
    "first_true": (lambda: library.first_true(TOKENS), "first_true: x must be boolean, or 0 and 1 only"),
    "index_select x": (
        lambda: library.index_select(1, core.indices(X)),
        "index_select: x must be a sequence",
    ),  # type: ignore[arg-type]
    "index_select idx": (lambda: library.index_select(X, 1), "index_select: idx must be a sequence"),  # type: ignore[arg-type]
    "mode": (lambda: library.mode(3), "mode: x must be a sequence, not int"),  # type: ignore[arg-type]
    "induct": (lambda: library.induct(X, X, -1), "offset must be at least 0, not -1"),
    "induct_kqv": (lambda: library.induct_kqv(X, X, LONG, 1), "induct_kqv: k has 3 positions and v 4"),
    "induct_prev": (lambda: library.induct_prev(X, X, 1), "induct_prev: offset must be at most 0, not 1"),
    "sample prompt": (lambda: library.sample(lambda x: x, [1], 1), "sample: prompt must be a sequence"),  # type: ignore[arg-type]
    "sample count": (lambda: library.sample(lambda x: x, X, -1), "sample: count must be at least 0, not -1"),
    "add": (lambda: X + "a", r"\+: needs a sequence or an integer beside a sequence, not str"),  # type: ignore[operator]
    "add lengths": (lambda: X + LONG, r"\+: sequences of 3 and 4 positions do not match"),
    "compare": (lambda: X < 0.5, "<: needs a sequence or an integer"),  # type: ignore[operator]
    "divide": (lambda: X // 0, "the divisor must be a positive integer, not 0"),
    "modulo": (lambda: X % X, "the divisor must be a positive integer, not Seq"),  # type: ignore[operator]
    "far constant": (lambda: X + TOKEN_LIMIT, "precision"),
    "seq of nothing": (lambda: seq([]), "a sequence needs at least one position"),
    "seq of a number": (lambda: seq(3), "a sequence needs at least one position"),
    "seq of floats": (lambda: seq([0.5]), "a sequence holds integers or booleans, not float64"),
    "seq of uneven rows": (lambda: seq([[1], [1, 2]]), "rows of one length"),
    "seq of far tokens": (lambda: seq([TOKEN_LIMIT]), "precision"),
    "rows that differ": (
        lambda: core.seq_map(seq(np.ones((2, 3), dtype=int)), seq(np.ones((4, 3), dtype=int)), max),
        "seq_map: x and y must have",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_is_named(name: str) -> None:
    action, message = BAD[name]
    with pytest.raises(InputError, match=message):
        action()


def test_every_operation_has_a_bad_argument() -> None:
    from looped.rasp.sequence import OPERATIONS

    tried = {name.split()[0] for name in BAD}
    assert set(OPERATIONS) - {"equals", "leq", "lt", "geq", "gt"} <= tried


def test_kinds() -> None:
    assert kind_of(X).value == "token"
    assert kind_of(X == 1).value == "bool"
    assert kind_of(core.indices(X)).value == "index"
    assert kind_of(library.cumsum(X)).value == "index"
    assert kind_of(library.shift_right(X == 1, 1)).value == "bool"
    assert kind_of(library.shift_right(X == 1, 1, 2)).value == "token"
    assert kind_of((X == 1) + 1).value == "token"
    assert kind_of(seq([True, False])).value == "bool"


def test_a_sequence_prints_and_passes_through_seq() -> None:
    assert repr(seq([1, 2])) == "Seq(token, [1 2])"
    assert seq(X) is X


def test_operators_take_numbers_on_either_side() -> None:
    for made, expected in [
        (2 - TOKENS, [-1, 1, 0]),
        (2 * TOKENS, [6, 2, 4]),
        (1 | X, [1, 1, 1]),
        (1 & TOKENS, [1, 1, 0]),
        (1 ^ X, [0, 1, 0]),
        (-TOKENS, [-3, -1, -2]),
        (~X, [-2, -1, -2]),
        (1 + core.indices(X), [1, 2, 3]),
    ]:
        assert isinstance(made, Seq)
        assert unwrap(made).tolist() == expected
