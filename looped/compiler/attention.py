"""Attention of a compiled model: predicates as scores, and three ways of reading earlier positions.

    best     of the matching keys the one with the largest order, ties to the earliest: exact, nothing is averaged
    mean     the average over all matching keys
    number   how many match: from the first position's share of the weight, by a second head

A predicate over finite domains is a 0/1 table of query × key, and its score a sum over classes of keys with equal
columns; equality of integers is a parabola. `docs/compiler.md` derives both. If nothing matches, the head brings some
other key's value; whether its key matches is a function of the query and of the class of the key it brought.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from looped.compiler import graph as graphs
from looped.compiler.graph import Array, Domain, Graph, HeadForm, Node, Symbol, refuse
from looped.rasp import core
from looped.rasp.library import NULL
from looped.rasp.sequence import OPERATIONS, Kind, unwrap

Function = Callable[..., Any]  # that a program gives to an operation
MOST_CLASSES = 3  # of an equality that is scored by classes rather than by the parabola
LARGEST_CLASSES = 60  # of any predicate: each class takes an entry of a head


@dataclass(frozen=True)
class Everything:
    """Every key matches."""


@dataclass(frozen=True)
class ByClass:
    """A table of query × class of key, and each key's class (0: wanted by no query)."""

    pairs: tuple[tuple[Node, Node], ...]  # products whose sum is 1 for a match, else 0
    query: Node
    key: Node
    key_class: Node
    table: Array  # [query value, class]


@dataclass(frozen=True)
class Equal:
    """The key is the query."""

    key: Node
    query: Node


Match = Everything | ByClass | Equal


def match(k: Symbol, q: Symbol, pred: Function) -> Match:
    """A predicate of keys and queries, ready to be scored."""
    if Kind.INDEX in (k.kind, q.kind):
        return _of_indices(k, q, pred)
    graphs.check_table([k.node, q.node])
    keys, queries = (unwrap(graphs.sequence(x, x.node.domain.values)) for x in (k, q))
    table = core.predicate_table(pred, keys, queries)
    if table.all():
        return Everything()
    equality = (table == (keys[None, :] == queries[:, None])).all()
    if equality and table.sum() > MOST_CLASSES:
        return Equal(k.node, q.node)
    return by_class(k.graph, k.node, q.node, table)


def by_class(graph: Graph, key: Node, query: Node, table: Array) -> ByClass:
    """The table [query value, key value] with its keys put into classes."""
    columns, class_of = np.unique(table, axis=1, return_inverse=True)
    class_of = class_of.reshape(-1)
    wanted = [i for i in range(columns.shape[1]) if columns[:, i].any()]
    if len(wanted) > LARGEST_CLASSES:
        detail = f"an attention with {len(wanted)} classes of keys, more than {LARGEST_CLASSES}"
        refuse("unbounded-domain", detail)
    number = {old: new + 1 for new, old in enumerate(wanted)}
    classes = np.array([number.get(int(old), 0) for old in class_of])
    pairs = tuple(
        (graph.point([query], columns[:, old]), graph.point([key], classes == new))
        for old, new in number.items()
    )
    wants = np.stack([np.zeros(len(table), dtype=bool), *(columns[:, old] for old in wanted)], axis=1)
    # `classes` may leave out 0, or hold only it: the table of a key's class follows its domain.
    key_class = graph.point([key], classes)
    return ByClass(pairs, query, key, key_class, wants)


def _of_indices(k: Symbol, q: Symbol, pred: Function) -> Match:
    """Ask the predicate what it compares, with stand-ins for one key and one query."""
    graph = k.graph
    key, query = graph.leaf("a key", k.node.domain), graph.leaf("a query", q.node.domain)
    asked = pred(Symbol(graph, key, k.kind, k.constant), Symbol(graph, query, q.kind, q.constant)).node
    if asked.op == "const" and asked.domain.low == 1:
        return Everything()
    difference = asked.args[0] if asked.op == "compare" and asked.data == "==" else None
    weights: dict[Node, float] = {}
    if difference is not None and difference.op == "affine":
        weights = dict(zip(difference.args, difference.data[0], strict=True))
    if difference is None or sorted(weights.values()) != [-1, 1] or set(weights) != {key, query}:
        refuse("index-order", "an attention by another comparison of indices")
    offset = difference.data[1] * weights[query]  # key·w - query·w + c = 0  ⇔  key = query + …
    return Equal(k.node, graph.affine([(1, q.node)], offset))


def found(graph: Graph, match: Match, key_read: Node | None) -> Node:
    """Whether what a head brought is a match, given the class (or, for an equality, the value) of its key."""
    if isinstance(match, Everything):
        return graph.const(1)
    assert key_read is not None
    if isinstance(match, Equal):
        if key_read.finite and match.query.finite and key_read.size * match.query.size <= 64:
            keys, queries = np.array(key_read.domain.values), np.array(match.query.domain.values)
            return graph.point((match.query, key_read), keys[None, :] == queries[:, None])
        return graphs.compared(graph, "==", key_read, match.query)
    classes = key_read.domain.values or ()
    return graph.point((match.query, key_read), match.table[:, list(classes)])


# --- reading -------------------------------------------------------------------------------------------------
SHARP = 2.0**13  # a score ahead by 1 leaves nothing for the others, even after a division by 8
INDEX, SQUARE = "index", "index squared"


@dataclass(frozen=True)
class SymbolicSelector:
    """What `select` gives."""

    match: Match
    operations: Operations


class Operations:
    """Every operation of the language on symbols of one graph, as reads of earlier positions and functions.

    An operation `name` is the method `_name`; one without a method is made of others. Rows have at most `longest`
    positions.
    """

    def __init__(self, graph: Graph, longest: int) -> None:
        self.graph, self.longest = graph, longest
        self.index = graph.leaf(INDEX, Domain(0, longest - 1))
        self.index_squared = graph.leaf(SQUARE, Domain(0, (longest - 1) ** 2))
        self.squares: dict[Node, Node] = {}  # of state variables that hold indices, where they are asked for
        graph.operations = self

    def symbol(self, node: Node, kind: Kind = Kind.TOKEN) -> Symbol:
        """A symbol of this graph."""
        return Symbol(self.graph, node, kind)

    def square(self, x: Node) -> Node:
        """x²: of an index a second entry that goes wherever the index goes."""
        graph = self.graph
        if x.finite:
            return graph.point([x], np.array(x.domain.values) ** 2)
        if x is self.index:
            return self.index_squared
        if x.op == "leaf":
            largest = max(abs(x.domain.low), abs(x.domain.high)) ** 2
            name = f"{x.data[0]} squared"
            return self.squares.setdefault(x, graph.leaf(name, Domain(0, largest), invariant=False))
        if x.op == "affine" and len(x.args) == 1:
            (weight,), constant = x.data
            inner = x.args[0]
            terms = [(weight**2, self.square(inner)), (2 * weight * constant, inner)]
            return graph.affine(terms, constant**2)
        if x.op == "choose":
            return graph.choose(x.args[0], self.square(x.args[1]), self.square(x.args[2]))
        if x.op == "read":
            pairs = list(zip(x.args[1::2], x.args[2::2], strict=True))
            assert isinstance(x.data, HeadForm)
            return graph.read(x.data, pairs, self.square(x.args[0]))
        refuse("index-order", "an attention by a sum of indices")

    def best(self, match: Match, order: Node, value: Node) -> Node:
        """The value at the matching key of the largest order, or anywhere if nothing matches."""
        graph = self.graph
        ranked = order
        if not self._is_position(order):  # ties to the earliest
            ranked = graph.affine([(self.longest, order), (-1, self.index)])
        span = _power_of_two(ranked.domain.high - ranked.domain.low + 1)
        pairs: list[tuple[Node, Node]] = []
        if isinstance(match, ByClass):
            if all(query.op == "const" for query, _ in match.pairs):  # the query does not matter
                ranked = graph.affine([(1, ranked), *((q.domain.low * span, k) for q, k in match.pairs)])
            else:
                pairs = [(graph.affine([(span, query)]), key) for query, key in match.pairs]
        if isinstance(match, Equal):
            if self._is_position(match.key):  # no two keys are equal: nothing to rank
                ranked, span = graph.const(0), 1.0
            step = 2 * span
            pairs = [(graph.affine([(2 * step, match.query)], step / 2), match.key)]
            ranked = graph.affine([(1, ranked), (-step, self.square(match.key))])
        form = HeadForm(scale=SHARP) if pairs else HeadForm(band=graphs.RUNNING)
        return graph.read(form, [*pairs, (graph.const(1), ranked)], value)

    def key_read(self, match: Match, order: Node) -> Node | None:
        """The class (or value) of the key that `best` brings."""
        if isinstance(match, Everything):
            return None
        return self.best(match, order, match.key if isinstance(match, Equal) else match.key_class)

    def earliest(self) -> Node:
        """The order that prefers early positions."""
        return self.graph.affine([(-1, self.index)])

    def any(self, match: Match) -> Node:
        """Whether something matches."""
        return found(self.graph, match, self.key_read(match, self.earliest()))

    def extreme(self, match: Match, value: Node, default: int, largest: bool) -> Node:
        """The largest or smallest value among the matches."""
        order = value if largest else self.graph.affine([(-1, value)])
        read = self.best(match, order, value)
        return self.graph.choose(found(self.graph, match, self.key_read(match, order)), read, default)

    def mean(self, match: Match, value: Node, default: int) -> Node:
        """The mean of the values among the matches, towards zero."""
        graph = self.graph
        if isinstance(match, Equal) and self._is_position(match.key):  # at most one key: nothing to average
            return self.extreme(match, value, default, largest=False)
        form, pairs = HeadForm(scale=SHARP, mean=True), []
        if isinstance(match, ByClass):
            pairs = list(match.pairs)
        if isinstance(match, Equal):
            scores = graph.affine([(-2, self.square(match.key))])
            pairs = [(graph.affine([(4, match.query)], 1), match.key), (graph.const(1), scores)]
        mean = graph.floor(graph.read(form, pairs, value), self.longest)
        return graph.choose(self.any(match), mean, default)

    def _is_position(self, x: Node) -> bool:
        return x is self.index or (x.op == "affine" and x.args == (self.index,))

    def number(self, match: Match) -> Node:
        """How many keys match."""
        graph = self.graph
        if isinstance(match, Everything):
            return graph.affine([(1, self.index)], 1)
        if isinstance(match, Equal):
            match = self._listed(match)
        first = graph.compare("==", self.index)
        later = [(query, graph.choose(first, graph.const(0), key)) for query, key in match.pairs]
        share = graph.read(HeadForm(scale=SHARP, mean=True), [*later, (graph.const(1), first)], first)
        fine = HeadForm(scale=SHARP * _power_of_two(self.longest))
        parabola = [
            (graph.affine([(-2, share)], 2), self.index),
            (graph.affine([(-1, share)]), self.index_squared),
        ]
        after = graph.read(fine, parabola, self.index)  # matches from the second position on
        start = self.best(Everything(), self.earliest(), match.key_class)
        return graph.choose(found(graph, match, start), graph.affine([(1, after)], 1), after)

    def _listed(self, match: Equal) -> ByClass:
        if not (match.key.finite and match.query.finite):
            refuse("unbounded-domain", "a number of equal indices")
        keys, queries = np.array(match.key.domain.values), np.array(match.query.domain.values)
        return by_class(self.graph, match.key, match.query, keys[None, :] == queries[:, None])

    # --- the core ----------------------------------------------------------------------------------------------
    def _indices(self, x: Symbol) -> Symbol:
        return self.symbol(self.index, Kind.INDEX)

    def _full(self, x: Symbol, const: int) -> Symbol:
        return Symbol(self.graph, self.graph.const(int(const)), Kind.TOKEN, int(const))

    def _tok_map(self, x: Symbol, func: Function) -> Symbol:
        return graphs.pointwise(lambda seq: core.tok_map(seq, func), x)

    def _seq_map(self, x: Symbol, y: Symbol, func: Function) -> Symbol:
        if func in core.SIGNS:
            return func(x, y)  # type: ignore[no-any-return]
        return graphs.pointwise(lambda a, b: core.seq_map(a, b, func), x, y)

    def _select(self, k: Symbol, q: Symbol, pred: Function, causal: bool = True) -> SymbolicSelector:
        return SymbolicSelector(match(k, q, pred), self)

    def _sel_width(self, selector: SymbolicSelector) -> Symbol:
        return self.symbol(self.number(selector.match), Kind.INDEX)

    def _aggregate(
        self, selector: SymbolicSelector, v: Symbol, default: int = 0, reduction: str = "mean"
    ) -> Symbol:
        """The mean, min or max of the selected values."""
        kind = v.kind.read
        if reduction == "mean":
            largest = max(abs(v.node.domain.low), abs(v.node.domain.high))
            if largest > core.MEAN_LIMIT:
                refuse("mean-range", f"the mean of values of size up to {largest:g}")
            return self.symbol(self.mean(selector.match, v.node, default), kind)
        return self.symbol(self.extreme(selector.match, v.node, default, reduction == "max"), kind)

    def _kqv(
        self, k: Symbol, q: Symbol, v: Symbol, pred: Function, default: int = 0, reduction: str = "mean"
    ) -> Symbol:
        """One causal attention."""
        return self._aggregate(self._select(k, q, pred), v, default, reduction)

    # --- the library -------------------------------------------------------------------------------------------
    def _shift_right(self, x: Symbol, n: int, default: int = 0) -> Symbol:
        kind = Kind.TOKEN if x.kind is Kind.BOOL and default not in (0, 1) else x.kind
        if n == 0:
            return self.symbol(x.node, kind)
        form, graph = HeadForm(band=n + 1, scale=SHARP), self.graph
        read = graph.read(form, [(graph.const(1), self.earliest())], x.node)
        inside = graph.compare(">=", graph.affine([(1, self.index)], -n))
        return self.symbol(graph.choose(inside, read, default), kind)

    def _where(self, condition: Symbol, x_if: Symbol | int, y_else: Symbol | int) -> Symbol:
        return graphs.where(condition, x_if, y_else)

    def _mask(self, x: Symbol, bool_mask: Symbol, mask_val: int = 0) -> Symbol:
        return graphs.where(bool_mask, x, mask_val)

    def _cumsum(self, bool_array: Symbol) -> Symbol:
        return self.symbol(self.number(self._equal_to(bool_array, 1)), Kind.INDEX)

    def _maximum(self, x: Symbol) -> Symbol:
        return self.symbol(self.extreme(Everything(), x.node, 0, largest=True), x.kind)

    def _minimum(self, x: Symbol) -> Symbol:
        return self.symbol(self.extreme(Everything(), x.node, 0, largest=False), x.kind)

    def _argmax(self, x: Symbol) -> Symbol:
        return self.symbol(self.best(Everything(), x.node, self.index), Kind.INDEX)

    def _argmin(self, x: Symbol) -> Symbol:
        order = self.graph.affine([(-1, x.node)])
        return self.symbol(self.best(Everything(), order, self.index), Kind.INDEX)

    def _num_prev(self, x: Symbol, queries: Symbol) -> Symbol:
        return self.symbol(self.number(match(x, queries, core.equals)), Kind.INDEX)

    def _has_seen(self, x: Symbol, queries: Symbol) -> Symbol:
        return self.symbol(self.any(match(x, queries, core.equals)), Kind.BOOL)

    def _seen(self, flag: Symbol) -> Symbol:
        return self.symbol(self.any(self._equal_to(flag, 1)), Kind.BOOL)

    def _firsts(self, x: Symbol, queries: Symbol, default: int = -1) -> Symbol:
        return self._place(match(x, queries, core.equals), default, largest=False)

    def _lasts(self, x: Symbol, queries: Symbol, default: int = -1) -> Symbol:
        return self._place(match(x, queries, core.equals), default, largest=True)

    def _first_true(self, x: Symbol, default: int = -1) -> Symbol:
        return self._place(self._equal_to(x, 1), default, largest=False)

    def _place(self, match: Match, default: int, largest: bool) -> Symbol:
        """Where the first or the last match stands."""
        return self.symbol(self.extreme(match, self.index, default, largest), Kind.INDEX)

    def _index_select(self, x: Symbol, idx: Symbol, default: int = 0) -> Symbol:
        chosen = self.extreme(Equal(self.index, idx.node), x.node, default, largest=False)
        return self.symbol(chosen, x.kind.read)

    def _induct_kqv(
        self, k: Symbol, q: Symbol, v: Symbol, offset: int, default: int = 0, null_val: int = NULL
    ) -> Symbol:
        at = self._firsts(self._shift_right(k, offset, default=null_val), q, default=null_val)
        return self._index_select(v, at, default=default)

    def _induct_prev(
        self, k: Symbol, q: Symbol, offset: int, default: int = 0, null_val: int = NULL
    ) -> Symbol:
        at = self._firsts(k, q, default=null_val)
        return self._index_select(self._shift_right(k, -offset, default=default), at, default=default)

    def _equal_to(self, x: Symbol, value: int) -> Match:
        """Keys that have this value."""
        if x.node.domain == graphs.FLAG and value == 1:
            return by_class(self.graph, x.node, self.graph.const(1), np.array([[False, True]]))
        return match(x, self._full(x, value), core.equals)


def _power_of_two(least: float) -> float:
    """The first power of two that is at least this: as a weight it never rounds."""
    return float(2.0 ** np.ceil(np.log2(least)))


for _name in OPERATIONS:
    if _own := getattr(Operations, f"_{_name}", None):
        setattr(Operations, f"_{_name}", graphs.at_the_programs_line(_own))
