"""Every operation of the language on symbols: what each becomes, as attention heads and functions.

Three ways of looking back are enough for all of them:

    best     of the matching keys the one with the largest order, ties to the earliest: exact, nothing is averaged
    mean     the average over all matching keys
    number   how many match: with the first position always among those looked at, its share of the weight is
             1 / m; of all positions j, 2(j + 1) - (j + 1)²/m is largest at j = m - 1, so a second head finds it

A match may be missing: the head then brings something else, and whether its key matches is a function of the
query and the key it brought.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from looped.compiler.graph import Graph
from looped.compiler.matching import ByClass, Equal, Everything, Match, by_class, found, match
from looped.compiler.nodes import FLAG, Domain, HeadForm, Node
from looped.compiler.refusal import at_the_programs_line, refuse
from looped.compiler.symbols import Symbol, flagged, pointwise, where
from looped.rasp import core, library
from looped.rasp.library import NULL
from looped.rasp.sequence import Kind

SHARP = 2.0**13  # a score ahead by 1 leaves nothing for the others, even after a division by 8
LIBRARY = (
    *(
        "shift_right",
        "mask",
        "cumsum",
        "maximum",
        "minimum",
        "argmax",
        "argmin",
        "num_prev",
        "has_seen",
        "seen",
    ),
    *("firsts", "lasts", "first_true", "index_select", "mode", "induct_kqv", "induct", "induct_prev"),
)
INDEX, SQUARE = "index", "index squared"


@dataclass(frozen=True)
class SymbolicSelector:
    """What `select` gives."""

    match: Match


class Operations:
    """The operations of one graph, for rows of at most `longest` positions."""

    def __init__(self, graph: Graph, longest: int) -> None:
        self.graph, self.longest = graph, longest
        self.index = graph.leaf(INDEX, Domain(0, longest - 1))
        self.index_squared = graph.leaf(SQUARE, Domain(0, (longest - 1) ** 2))
        self.squares: dict[Node, Node] = {}  # of state variables that hold indices, where they are asked for

    def table(self) -> dict[Callable[..., Any], Callable[..., Any]]:
        """The language's operations and what stands for each."""
        named: dict[Callable[..., Any], Callable[..., Any]]
        named = {core.indices: self.indices, core.full: self.full, core.tok_map: self.tok_map}
        named |= {core.seq_map: self.seq_map, core.select: self.select, core.sel_width: self.sel_width}
        named |= {core.aggregate: self.aggregate, core.kqv: self.kqv, library.where: where}
        return named | {getattr(library, name): at_the_programs_line(getattr(self, name)) for name in LIBRARY}

    def symbol(self, node: Node, kind: Kind = Kind.TOKEN) -> Symbol:
        """A symbol of this graph."""
        return Symbol(self.graph, node, kind)

    # --- looking back ------------------------------------------------------------------------------------------
    def square(self, x: Node) -> Node:
        """x²: of an index a second entry that goes wherever the index goes."""
        graph = self.graph
        if x.finite:
            return graph.apply([x], np.array(x.domain.values) ** 2)
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

    def best(self, match: Match, order: Node, values: list[Node]) -> list[Node]:
        """The values at the matching key of the largest order, or anywhere if nothing matches."""
        graph = self.graph
        ranked = (
            order if self._is_position(order) else graph.affine([(self.longest, order), (-1, self.index)])
        )
        span = _power_of_two(ranked.domain.high - ranked.domain.low + 1)
        pairs: list[tuple[Node, Node]] = []
        if isinstance(match, ByClass):
            pairs = [(query, key) for query, key in match.pairs]
            if all(query.op == "const" for query, _ in pairs):  # the query does not matter
                ranked = graph.affine([(1, ranked), *((q.domain.low * span, k) for q, k in pairs)])
                pairs = []
            else:
                pairs = [(graph.affine([(span, query)]), key) for query, key in pairs]
        if isinstance(match, Equal):
            if self._is_position(match.key):  # no two keys are equal: nothing to rank
                ranked, span = graph.const(0), 1.0
            step = 2 * span
            pairs = [(graph.affine([(2 * step, match.query)], step / 2), match.key)]
            ranked = graph.affine([(1, ranked), (-step, self.square(match.key))])
        if not pairs:
            form, pairs = HeadForm(running=True), [(graph.const(1), ranked)]
        else:
            form = HeadForm(scale=SHARP)
            pairs.append((graph.const(1), ranked))
        return [graph.read(form, pairs, value) for value in values]

    def key_read(self, match: Match, order: Node) -> Node | None:
        """The class (or value) of the key that `best` brings."""
        if isinstance(match, Everything):
            return None
        return self.best(match, order, [match.key if isinstance(match, Equal) else match.key_class])[0]

    def earliest(self) -> Node:
        """The order that prefers early positions."""
        return self.graph.affine([(-1, self.index)])

    def any(self, match: Match) -> Node:
        """Whether something matches."""
        return found(self.graph, match, self.key_read(match, self.earliest()))

    def extreme(self, match: Match, value: Node, default: int, largest: bool) -> Node:
        """The largest or smallest value among the matches."""
        order = value if largest else self.graph.affine([(-1, value)])
        (read,) = self.best(match, order, [value])
        return flagged(self.graph, found(self.graph, match, self.key_read(match, order)), read, default)

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
        return flagged(graph, self.any(match), mean, default)

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
        (start,) = self.best(Everything(), self.earliest(), [match.key_class])
        return graph.choose(found(graph, match, start), graph.affine([(1, after)], 1), after)

    def _listed(self, match: Equal) -> ByClass:
        if not (match.key.finite and match.query.finite):
            refuse("unbounded-domain", "a number of equal indices")
        keys, queries = np.array(match.key.domain.values), np.array(match.query.domain.values)
        return by_class(self.graph, match.key, match.query, keys[None, :] == queries[:, None])

    # --- the core ----------------------------------------------------------------------------------------------
    def indices(self, x: Symbol) -> Symbol:
        """The position of each position."""
        return self.symbol(self.index, Kind.INDEX)

    def full(self, x: Symbol, const: int) -> Symbol:
        """The same constant at every position."""
        return Symbol(self.graph, self.graph.const(int(const)), Kind.TOKEN, int(const))

    def tok_map(self, x: Symbol, func: Callable[..., Any]) -> Symbol:
        """A function of each token."""
        return pointwise(lambda seq: core.tok_map(seq, func), x)

    def seq_map(self, x: Symbol, y: Symbol, func: Callable[..., Any]) -> Symbol:
        """A function of each pair of tokens."""
        if func in core._SIGNS:
            return func(x, y)  # type: ignore[no-any-return]
        return pointwise(lambda a, b: core.seq_map(a, b, func), x, y)

    def select(self, k: Symbol, q: Symbol, pred: Callable[..., Any], causal: bool = True) -> SymbolicSelector:
        """Which keys each query selects."""
        return SymbolicSelector(match(k, q, pred))

    def sel_width(self, selector: SymbolicSelector) -> Symbol:
        """How many keys each position selects."""
        return self.symbol(self.number(selector.match), Kind.INDEX)

    def aggregate(
        self, selector: SymbolicSelector, v: Symbol, default: int = 0, reduction: str = "mean"
    ) -> Symbol:
        """The mean, min or max of the selected values."""
        kind = Kind.INDEX if v.kind is Kind.INDEX else Kind.TOKEN
        if reduction == "mean":
            return self.symbol(self.mean(selector.match, v.node, default), kind)
        return self.symbol(self.extreme(selector.match, v.node, default, reduction == "max"), kind)

    def kqv(
        self,
        k: Symbol,
        q: Symbol,
        v: Symbol,
        pred: Callable[..., Any],
        default: int = 0,
        reduction: str = "mean",
    ) -> Symbol:
        """One causal attention."""
        return self.aggregate(self.select(k, q, pred), v, default, reduction)

    # --- the library -------------------------------------------------------------------------------------------
    def shift_right(self, x: Symbol, n: int, default: int = 0) -> Symbol:
        """Every value n positions further right."""
        kind = Kind.TOKEN if x.kind is Kind.BOOL and default not in (0, 1) else x.kind
        if n == 0:
            return self.symbol(x.node, kind)
        form, graph = HeadForm(band=n + 1, scale=SHARP), self.graph
        read = graph.read(form, [(graph.const(1), self.earliest())], x.node)
        inside = graph.compare(">=", graph.affine([(1, self.index)], -n))
        return self.symbol(flagged(graph, inside, read, default), kind)

    def mask(self, x: Symbol, bool_mask: Symbol, mask_val: int = 0) -> Symbol:
        """`x` where the mask is true, `mask_val` elsewhere."""
        return where(bool_mask, x, mask_val)

    def cumsum(self, bool_array: Symbol) -> Symbol:
        """How many are true so far."""
        return self.symbol(self.number(self._equal_to(bool_array, 1)), Kind.INDEX)

    def maximum(self, x: Symbol) -> Symbol:
        """The largest value so far."""
        return self.symbol(self.extreme(Everything(), x.node, 0, largest=True), x.kind)

    def minimum(self, x: Symbol) -> Symbol:
        """The smallest value so far."""
        return self.symbol(self.extreme(Everything(), x.node, 0, largest=False), x.kind)

    def argmax(self, x: Symbol) -> Symbol:
        """Where the largest value so far stands first."""
        return self.symbol(self.best(Everything(), x.node, [self.index])[0], Kind.INDEX)

    def argmin(self, x: Symbol) -> Symbol:
        """Where the smallest value so far stands first."""
        order = self.graph.affine([(-1, x.node)])
        return self.symbol(self.best(Everything(), order, [self.index])[0], Kind.INDEX)

    def num_prev(self, x: Symbol, queries: Symbol) -> Symbol:
        """How often each query has occurred so far."""
        return self.symbol(self.number(match(x, queries, core.equals)), Kind.INDEX)

    def has_seen(self, x: Symbol, queries: Symbol) -> Symbol:
        """Whether each query has occurred so far."""
        return self.symbol(self.any(match(x, queries, core.equals)), Kind.BOOL)

    def seen(self, flag: Symbol) -> Symbol:
        """Whether the flag has been true so far."""
        return self.symbol(self.any(self._equal_to(flag, 1)), Kind.BOOL)

    def firsts(self, x: Symbol, queries: Symbol, default: int = -1) -> Symbol:
        """Where each query first stands so far."""
        chosen = self.extreme(match(x, queries, core.equals), self.index, default, largest=False)
        return self.symbol(chosen, Kind.INDEX)

    def lasts(self, x: Symbol, queries: Symbol, default: int = -1) -> Symbol:
        """Where each query last stands so far."""
        chosen = self.extreme(match(x, queries, core.equals), self.index, default, largest=True)
        return self.symbol(chosen, Kind.INDEX)

    def first_true(self, x: Symbol, default: int = -1) -> Symbol:
        """Where x is first true so far."""
        return self.symbol(self.extreme(self._equal_to(x, 1), self.index, default, largest=False), Kind.INDEX)

    def index_select(self, x: Symbol, idx: Symbol, default: int = 0) -> Symbol:
        """The value at each index, if that is not to the right."""
        kind = Kind.INDEX if x.kind is Kind.INDEX else Kind.TOKEN
        return self.symbol(self.extreme(Equal(self.index, idx.node), x.node, default, largest=False), kind)

    def mode(self, x: Symbol) -> Symbol:
        """The commonest value so far."""
        return self.index_select(x, self.argmax(self.num_prev(x, x)))

    def induct_kqv(
        self, k: Symbol, q: Symbol, v: Symbol, offset: int, default: int = 0, null_val: int = NULL
    ) -> Symbol:
        """The value `offset` positions after the first key equal to the query."""
        at = self.firsts(self.shift_right(k, offset, default=null_val), q, default=null_val)
        return self.index_select(v, at, default=default)

    def induct(self, k: Symbol, q: Symbol, offset: int, default: int = 0, null_val: int = NULL) -> Symbol:
        """The key `offset` positions after the first key equal to the query."""
        return self.induct_kqv(k, q, k, offset, default=default, null_val=null_val)

    def induct_prev(
        self, k: Symbol, q: Symbol, offset: int, default: int = 0, null_val: int = NULL
    ) -> Symbol:
        """The key `-offset` positions before the first key equal to the query."""
        at = self.firsts(k, q, default=null_val)
        return self.index_select(self.shift_right(k, -offset, default=default), at, default=default)

    def _equal_to(self, x: Symbol, value: int) -> Match:
        """Keys that have this value."""
        if x.node.domain == FLAG and value == 1:
            return by_class(self.graph, x.node, self.graph.const(1), np.array([[False, True]]))
        return match(x, self.full(x, value), core.equals)


def _power_of_two(least: float) -> float:
    """The first power of two that is at least this: as a weight it never rounds."""
    return float(2.0 ** np.ceil(np.log2(least)))
