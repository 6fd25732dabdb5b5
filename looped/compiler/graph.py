"""The dataflow graph of a program: what every position computes, before anything is a matrix. Knows no weights.

A node is one number at every position. Its domain says which numbers: a finite set, or all integers of a range.

    leaf      given: a token's id, an index, a state variable
    const     the same number everywhere
    affine    2·x - y + 1
    compare   x == 0, x >= 0 for an integer x, as 0 or 1
    point     any function of nodes with finite domains, as a table
    choose    x where a flag is 1, else y
    read      what an attention head brings
    floor     a mean, as the integer towards zero

Equal nodes are one node: whatever a program computes twice is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from looped.compiler.nodes import FLAG, Array, Domain, HeadForm, Node
from looped.compiler.tables import Facts, evaluate, frontier

TABLE_LIMIT = 1 << 12  # cells of a function's table


@dataclass
class Graph:
    """All nodes made so far, each once."""

    nodes: dict[object, Node] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)

    def _node(self, op: str, args: Sequence[Node], domain: Domain, data: object = None, **more: Any) -> Node:
        key = (op, *map(id, args), data, domain if op in ("leaf", "affine") else None)
        if "table" in more:
            key = (*key, more["table"].shape, more["table"].tobytes())
        if key not in self.nodes:
            given = bool(more.pop("invariant", True))
            invariant = given and all(arg.invariant for arg in args)
            self.nodes[key] = Node(op, tuple(args), domain, data, invariant, **more)
        return self.nodes[key]

    # --- nodes ---------------------------------------------------------------------------------------------
    def leaf(self, name: str, domain: Domain, invariant: bool = True) -> Node:
        """Something given, by name."""
        return self._node("leaf", (), domain, (name, invariant), invariant=invariant)

    def const(self, value: float) -> Node:
        """The same number everywhere."""
        values = (int(value),) if float(value).is_integer() else None
        return self._node("const", (), Domain(value, value, values), float(value))

    def affine(
        self, terms: Iterable[tuple[float, Node]], constant: float = 0.0, domain: Domain | None = None
    ) -> Node:
        """A weighted sum; `domain` if more is known than the sum of the ranges."""
        sums: dict[Node, float] = {}
        for weight, node in terms:
            if node.op == "const":
                constant += weight * node.domain.low
            elif node.op == "affine":
                weights, inner = node.data
                constant += weight * inner
                for own, arg in zip(weights, node.args, strict=True):
                    sums[arg] = sums.get(arg, 0.0) + weight * own
            else:
                sums[node] = sums.get(node, 0.0) + weight
        kept = [(weight, node) for node, weight in sums.items() if weight]
        if not kept:
            return self.const(constant)
        if len(kept) == 1 and kept[0][0] == 1 and constant == 0:
            return kept[0][1]
        ends = [sorted((weight * node.domain.low, weight * node.domain.high)) for weight, node in kept]
        span = domain or Domain(
            constant + sum(low for low, _ in ends), constant + sum(high for _, high in ends)
        )
        weights = tuple(weight for weight, _ in kept)
        return self._node("affine", [node for _, node in kept], span, (weights, float(constant)))

    def compare(self, sign: str, x: Node) -> Node:
        """`x == 0` or `x >= 0` of an integer, as 0 or 1."""
        low, high = x.domain.low, x.domain.high
        if high < 0 or (sign == "==" and low > 0):
            return self.const(0)
        if sign == ">=" and low >= 0:
            return self.const(1)
        return self._node("compare", (x,), FLAG, sign)

    def point(
        self, args: Sequence[Node], table: Array, branches: tuple[Node, Node, Node] | None = None
    ) -> Node:
        """The function with this table over the product of the arguments' domains."""
        table = np.ascontiguousarray(table, dtype=np.int64)
        kept: list[Node] = []
        for axis in range(len(args) - 1, -1, -1):  # what does not matter is no argument
            if (table == table.take([0], axis)).all():
                table = table.take(0, axis)
            else:
                kept.insert(0, args[axis])
        if not kept:
            return self.const(int(table))
        if len(kept) == 1 and tuple(table.tolist()) == kept[0].domain.values:
            return kept[0]
        return self._node("point", kept, self._values(kept, table), table=table, branches=branches)

    def _values(self, args: Sequence[Node], table: Array) -> Domain:
        """What a function can give, combinations left out that there cannot be."""
        whole = Domain.of(np.unique(table).tolist())
        if not self.facts.nodes:
            return whole
        invariant = all(arg.invariant for arg in args)
        node = Node("point", tuple(args), whole, None, invariant, table)
        behind = frontier(node, TABLE_LIMIT)
        return Domain.of(np.unique(evaluate(node, behind)[self.facts.possible(behind)]).tolist())

    def apply(self, args: Sequence[Node], values: Array | Sequence[int]) -> Node:
        """The function whose values over the product of the domains, last argument fastest, are given flat."""
        return self.point(args, np.asarray(values).reshape([arg.size for arg in args]))

    def choose(self, flag: Node, x: Node, y: Node) -> Node:
        """`x` where the flag is 1, `y` where it is 0."""
        if flag.domain.low == flag.domain.high:  # a constant, or a function that can give only one value
            return x if flag.domain.low else y
        if x is y:
            return x
        if x.finite and y.finite and 2 * x.size * y.size <= TABLE_LIMIT:
            xs, ys = np.array(x.domain.values), np.array(y.domain.values)
            table = np.stack(
                [
                    np.broadcast_to(ys[None, :], (len(xs), len(ys))),
                    np.broadcast_to(xs[:, None], (len(xs), len(ys))),
                ]
            )
            return self.point((flag, x, y), table, branches=(flag, x, y))
        return self._node("choose", (flag, x, y), x.domain.join(y.domain))

    def read(self, form: HeadForm, pairs: Sequence[tuple[Node, Node]], value: Node) -> Node:
        """What a head brings that scores a key by the sum over pairs of query entry times key entry."""
        if value.op == "const":
            return value
        flat = [node for pair in pairs for node in pair]
        domain = Domain(value.domain.low, value.domain.high) if form.mean else value.domain
        return self._node("read", (value, *flat), domain, form)

    def floor(self, mean: Node, longest: int) -> Node:
        """The integer towards zero of a mean over at most `longest` integers."""
        if mean.op == "const":
            return mean
        low, high = int(mean.domain.low), int(mean.domain.high)
        return self._node("floor", (mean,), Domain.of(range(low, high + 1)), longest)
