"""Every library function equals its double-loop meaning, on single rows and on batches."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import rasp_reference as reference
from looped.rasp import attention, core, library
from looped.rasp.attention import ByValue, Dense, distinct
from looped.rasp.sequence import Seq, seq, unwrap

Case = tuple[Callable[[Seq, Seq], Seq], Callable[[list[int], list[int]], list[int]]]


def indexed(x: Seq) -> Seq:
    """An index sequence that depends on x: where each value stood first."""
    return library.firsts(x, x)


CASES: dict[str, Case] = {
    "indices": (lambda x, y: core.indices(x), lambda x, y: reference.indices(x)),
    "full": (lambda x, y: core.full(x, 3), lambda x, y: reference.full(x, 3)),
    "tok_map": (
        lambda x, y: core.tok_map(x, lambda a: a * a - 1),
        lambda x, y: reference.tok_map(x, lambda a: a * a - 1),
    ),
    "tok_map to bool": (
        lambda x, y: core.tok_map(x, lambda a: a > 1),
        lambda x, y: reference.tok_map(x, lambda a: a > 1),
    ),
    "seq_map": (
        lambda x, y: core.seq_map(x, y, lambda a, b: a - 2 * b if a else b),
        lambda x, y: reference.seq_map(x, y, lambda a, b: a - 2 * b if a else b),
    ),
    "sel_width": (
        lambda x, y: core.sel_width(core.select(x, y, lambda k, q: k + q == 3)),
        lambda x, y: reference.sel_width(reference.select(x, y, lambda k, q: k + q == 3)),
    ),
    "shift_right": (lambda x, y: library.shift_right(x, 2, 7), lambda x, y: reference.shift_right(x, 2, 7)),
    "shift_right 0": (lambda x, y: library.shift_right(x, 0), lambda x, y: x),
    "shift_right far": (lambda x, y: library.shift_right(x, 99, 1), lambda x, y: reference.full(x, 1)),
    "where": (
        lambda x, y: library.where(x > 1, x, y),
        lambda x, y: reference.where([a > 1 for a in x], x, y),
    ),
    "mask": (lambda x, y: library.mask(x, y == 0, 9), lambda x, y: reference.mask(x, [b == 0 for b in y], 9)),
    "cumsum": (
        lambda x, y: library.cumsum(x == y),
        lambda x, y: reference.cumsum(reference.seq_map(x, y, equal)),
    ),
    "maximum": (lambda x, y: library.maximum(x), lambda x, y: reference.maximum(x)),
    "minimum": (lambda x, y: library.minimum(x), lambda x, y: reference.minimum(x)),
    "argmax": (lambda x, y: library.argmax(x), lambda x, y: reference.argmax(x)),
    "argmin": (lambda x, y: library.argmin(x), lambda x, y: reference.argmin(x)),
    "num_prev": (lambda x, y: library.num_prev(x, y), lambda x, y: reference.num_prev(x, y)),
    "has_seen": (lambda x, y: library.has_seen(x, y), lambda x, y: reference.has_seen(x, y)),
    "has_seen constant": (
        lambda x, y: library.has_seen(x, core.full(x, 2)),
        lambda x, y: reference.has_seen(x, reference.full(x, 2)),
    ),
    "seen": (lambda x, y: library.seen(x == y), lambda x, y: reference.seen(reference.seq_map(x, y, equal))),
    "firsts": (lambda x, y: library.firsts(x, y, -5), lambda x, y: reference.firsts(x, y, -5)),
    "lasts": (lambda x, y: library.lasts(x, y), lambda x, y: reference.lasts(x, y)),
    "firsts of indices": (
        lambda x, y: library.firsts(indexed(x), indexed(y)),
        lambda x, y: reference.firsts(reference.firsts(x, x), reference.firsts(y, y)),
    ),
    "first_true": (
        lambda x, y: library.first_true(x == y),
        lambda x, y: reference.first_true(reference.seq_map(x, y, equal)),
    ),
    "index_select": (
        lambda x, y: library.index_select(x, library.lasts(x, y), 8),
        lambda x, y: reference.index_select(x, reference.lasts(x, y), 8),
    ),
    "mode": (lambda x, y: library.mode(x), lambda x, y: reference.mode(x)),
    "induct": (lambda x, y: library.induct(x, y, 1), lambda x, y: reference.induct(x, y, 1)),
    "induct 0": (lambda x, y: library.induct(x, y, 0, 4), lambda x, y: reference.induct(x, y, 0, 4)),
    "induct_prev": (
        lambda x, y: library.induct_prev(x, y, -1, 6),
        lambda x, y: reference.induct(x, y, -1, 6),
    ),
    "kqv index predicate": (
        lambda x, y: core.kqv(core.indices(x), core.indices(x), x, lambda k, q: k == q - 1, 5),
        lambda x, y: reference.shift_right(x, 1, 5),
    ),
}
for reduction in core.REDUCTIONS:
    for name, pred in {
        "equals": core.equals,
        "leq": core.leq,
        "lt": core.lt,
        "geq": core.geq,
        "gt": core.gt,
    }.items():
        CASES[f"kqv {name} {reduction}"] = (
            lambda x, y, p=pred, r=reduction: core.kqv(x, y, y, p, -7, r),
            lambda x, y, p=pred, r=reduction: reference.kqv(x, y, y, p, -7, r),
        )
        CASES[f"aggregate {name} {reduction}"] = (
            lambda x, y, p=pred, r=reduction: core.aggregate(core.select(x, y, p), x, 2, r),
            lambda x, y, p=pred, r=reduction: reference.aggregate(reference.select(x, y, p), x, 2, r),
        )


def equal(a: int, b: int) -> bool:
    return a == b


rows = st.integers(1, 12).flatmap(
    lambda n: st.lists(
        st.tuples(*[st.lists(st.integers(-2, 4), min_size=n, max_size=n)] * 2), min_size=1, max_size=3
    )
)


@pytest.mark.parametrize("name", CASES)
@given(batch=rows)
@settings(deadline=None, max_examples=25)
def test_equals_double_loop(name: str, batch: list[tuple[list[int], list[int]]]) -> None:
    ours, plain = CASES[name]
    xs, ys = [x for x, _ in batch], [y for _, y in batch]
    expected = np.array([[int(v) for v in plain(x, y)] for x, y in batch])
    np.testing.assert_array_equal(unwrap(ours(seq(xs), seq(ys))).astype(int), expected)
    np.testing.assert_array_equal(unwrap(ours(seq(xs[0]), seq(ys[0]))).astype(int), expected[0])


def test_every_function_of_the_library_is_compared() -> None:
    source = " ".join(CASES)
    for name, value in {**vars(core), **vars(library)}.items():
        public = callable(value) and getattr(value, "__module__", "") in (core.__name__, library.__name__)
        if (
            public
            and not name.startswith(("_", "need_"))
            and name not in {"Selector", "sample", "predicate_table"}
        ):
            assert name.removesuffix("_kqv") in source or name == "select", name


@given(batch=rows)
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("shortcut", ["number", "first", "last"])
def test_sorting_equals_looking_at_values_one_by_one(
    shortcut: str, batch: list[tuple[list[int], list[int]]]
) -> None:
    keys, queries = np.array([x for x, _ in batch]), np.array([y for _, y in batch])
    by_sort = getattr(attention._sorted(*attention._coded(keys, queries)[:2]), shortcut)
    np.testing.assert_array_equal(getattr(attention, shortcut)(keys, queries), by_sort)
    many = 10_000 * keys, 10_000 * queries  # too far apart for a table
    np.testing.assert_array_equal(getattr(attention, shortcut)(*many), by_sort)


@given(batch=rows)
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("reduction", core.REDUCTIONS)
def test_both_forms_of_attention_are_equal(reduction: str, batch: list[tuple[list[int], list[int]]]) -> None:
    keys, queries = np.array([x for x, _ in batch]), np.array([y for _, y in batch])
    few = distinct(keys), distinct(queries)
    table = few[0].values[None, :] <= few[1].values[:, None]
    by_value = ByValue(table, *few)
    dense = Dense(np.tril(keys[:, None, :] <= queries[:, :, None]))
    np.testing.assert_array_equal(by_value.width(), dense.width())
    np.testing.assert_array_equal(by_value.reduce(queries, 9, reduction), dense.reduce(queries, 9, reduction))


def test_kqv_in_blocks_equals_kqv_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = seq(np.random.default_rng(0).integers(0, 4, (9, 10)))
    whole = unwrap(core.kqv(x, x, x, core.leq))
    monkeypatch.setattr(core, "_BLOCK", 1)
    np.testing.assert_array_equal(unwrap(core.kqv(x, x, x, core.leq)), whole)


def test_sample_continues_with_the_last_output() -> None:
    # The next token of a copy: what followed the first occurrence of the last token.
    grown = library.sample(lambda x: library.induct(x, x, 1), seq([5, 6, 7, 5]), 3)
    assert unwrap(grown).tolist() == [5, 6, 7, 5, 6, 7, 5]
