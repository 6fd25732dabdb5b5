"""Every operation of the language on symbols: what each becomes, as reads of earlier positions and functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from looped.compiler.attention import SHARP, Equal, Everything, Match, Reader, by_class, match
from looped.compiler.errors import at_the_programs_line, refuse
from looped.compiler.graph import FLAG, Graph, HeadForm, Node
from looped.compiler.symbols import Symbol, flagged, pointwise, where
from looped.rasp import core
from looped.rasp.library import NULL
from looped.rasp.sequence import OPERATIONS, Kind


@dataclass(frozen=True)
class SymbolicSelector:
    """What `select` gives."""

    match: Match
    operations: Operations


class Operations(Reader):
    """Every operation of the language on symbols of one graph: what each becomes, as reads and functions."""

    def __init__(self, graph: Graph, longest: int) -> None:
        super().__init__(graph, longest)
        graph.operations = self

    def symbol(self, node: Node, kind: Kind = Kind.TOKEN) -> Symbol:
        """A symbol of this graph."""
        return Symbol(self.graph, node, kind)

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
        if func in core.SIGNS:
            return func(x, y)  # type: ignore[no-any-return]
        return pointwise(lambda a, b: core.seq_map(a, b, func), x, y)

    def select(self, k: Symbol, q: Symbol, pred: Callable[..., Any], causal: bool = True) -> SymbolicSelector:
        """Which keys each query selects."""
        return SymbolicSelector(match(k, q, pred), self)

    def sel_width(self, selector: SymbolicSelector) -> Symbol:
        """How many keys each position selects."""
        return self.symbol(self.number(selector.match), Kind.INDEX)

    def aggregate(
        self, selector: SymbolicSelector, v: Symbol, default: int = 0, reduction: str = "mean"
    ) -> Symbol:
        """The mean, min or max of the selected values."""
        kind = Kind.INDEX if v.kind is Kind.INDEX else Kind.TOKEN
        if reduction == "mean":
            largest = max(abs(v.node.domain.low), abs(v.node.domain.high))
            if largest > core.MEAN_LIMIT:
                refuse("mean-range", f"the mean of values of size up to {largest:g}")
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

    def where(self, condition: Symbol, x_if: Symbol | int, y_else: Symbol | int) -> Symbol:
        """`x_if` where the condition is true, `y_else` elsewhere."""
        return where(condition, x_if, y_else)

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


for _name in OPERATIONS:
    if hasattr(Operations, _name):
        setattr(Operations, _name, at_the_programs_line(getattr(Operations, _name)))
