"""Symbolic sequences: a program runs on these once, and its operations become nodes of a graph.

A `Symbol` has a sequence's operators and the same kinds. What an operator does to values is never restated: the
language's own operator is called on every combination of values, and its results are the node's table. Only
indices and counts, which have no finite domain, are spelled out: comparison, + 1, - 1, a choice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from looped.compiler.errors import at_the_programs_line, refuse
from looped.compiler.graph import TABLE_LIMIT, Graph, Node, values_of
from looped.rasp import library
from looped.rasp.sequence import Kind, Seq, kind_of, unwrap


class Symbol:
    """A sequence that stands for its values: a node of the graph, and a kind."""

    __slots__ = ("constant", "graph", "kind", "node")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, graph: Graph, node: Node, kind: Kind, constant: int | None = None) -> None:
        self.graph, self.node, self.kind, self.constant = graph, node, kind, constant

    @property
    def operations(self) -> Any:
        """What every operation of the language does to symbols; `looped.rasp.sequence.operation` asks for it."""
        return self.graph.operations


def _install_operators() -> None:
    """Give `Symbol` the operators of a sequence, each of them position by position."""
    for name in ("add", "sub", "mul", "and_", "or_", "xor"):
        function, plain = getattr(operator, name), name.strip("_")
        setattr(Symbol, f"__{plain}__", lambda x, y, f=function: pointwise(f, x, y))
        setattr(Symbol, f"__r{plain}__", lambda x, y, f=function: pointwise(f, y, x))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(operator, name)
        setattr(Symbol, f"__{name}__", lambda x, y, f=function: pointwise(f, x, y))
    for name in ("floordiv", "mod"):  # the divisor is a number of the program's text
        function = getattr(operator, name)
        setattr(Symbol, f"__{name}__", lambda x, y, f=function: pointwise(lambda values: f(values, y), x))
    for name in ("neg", "invert"):
        function = getattr(operator, name)
        setattr(Symbol, f"__{name}__", lambda x, f=function: pointwise(f, x))


def graph_of(*args: Symbol | int) -> Graph:
    """The graph that symbols among the arguments belong to."""
    return next(arg.graph for arg in args if isinstance(arg, Symbol))


def node_of(graph: Graph, arg: Symbol | int) -> Node:
    """The node of an operand."""
    return arg.node if isinstance(arg, Symbol) else graph.const(int(arg))


@at_the_programs_line
def pointwise(operation: Callable[..., Any], *args: Symbol | int) -> Symbol:
    """An operation position by position, as a table of what the language's own operation gives."""
    if any(isinstance(arg, Symbol) and arg.kind is Kind.INDEX for arg in args):
        return _of_indices(operation, *args)
    graph = graph_of(*args)
    symbols = [arg for arg in args if isinstance(arg, Symbol)]
    nodes = [symbol.node for symbol in symbols]
    check_table(nodes)
    grids = iter(values_of(nodes))
    result = operation(*[sequence(arg, next(grids)) if isinstance(arg, Symbol) else arg for arg in args])
    assert isinstance(result, Seq)
    table = np.broadcast_to(unwrap(result), (int(np.prod([node.size for node in nodes])),))
    return Symbol(graph, graph.apply(nodes, table.astype(np.int64)), kind_of(result), result._constant)


def check_table(nodes: list[Node]) -> None:
    """Refuse a function over more combinations of values than a table may have."""
    cells = int(np.prod([float(node.size) if node.finite else np.inf for node in nodes]) if nodes else 1)
    if cells > TABLE_LIMIT:
        refuse("unbounded-domain", f"a function of {cells} combinations of values, more than {TABLE_LIMIT}")


def sequence(symbol: Symbol, values: Any) -> Seq:
    """A real sequence of a symbol's kind with these values."""
    data = np.asarray(values).astype(np.bool_ if symbol.kind is Kind.BOOL else np.int64)
    return Seq(data, symbol.kind, symbol.constant)


def _sample(arg: Symbol | int) -> Seq | int:
    return sequence(arg, [arg.node.domain.low]) if isinstance(arg, Symbol) else arg


# --- indices -----------------------------------------------------------------------------------------------
_COMPARISONS: dict[Callable[..., Any], str] = {
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
}


def _of_indices(operation: Callable[..., Any], *args: Symbol | int) -> Symbol:
    kind = kind_of(operation(*map(_sample, args)))  # the language's own rules, tried on one position
    graph = graph_of(*args)
    x, y = (node_of(graph, arg) for arg in args)
    if operation in _COMPARISONS:
        return Symbol(graph, compared(graph, _COMPARISONS[operation], x, y), kind)
    return Symbol(graph, graph.affine([(1, x), (1 if operation is operator.add else -1, y)]), kind)


def compared(graph: Graph, sign: str, x: Node, y: Node) -> Node:
    """`x sign y` of integers, as 0 or 1."""
    ahead, behind = graph.affine([(1, x), (-1, y)]), graph.affine([(1, y), (-1, x)])
    if sign in ("==", "!="):
        same = graph.compare("==", ahead)
        return same if sign == "==" else opposite(graph, same)
    if sign in (">=", "<="):
        return graph.compare(">=", ahead if sign == ">=" else behind)
    return opposite(graph, graph.compare(">=", behind if sign == ">" else ahead))


def opposite(graph: Graph, flag: Node) -> Node:
    """1 where the flag is 0."""
    return graph.const(1 - flag.domain.low) if flag.op == "const" else graph.point((flag,), np.array([1, 0]))


# --- choices -----------------------------------------------------------------------------------------------
@at_the_programs_line
def where(condition: Symbol, x_if: Symbol | int, y_else: Symbol | int) -> Symbol:
    """`x_if` where the condition is true, `y_else` elsewhere."""
    graph = condition.graph
    truth = sequence(condition, condition.node.domain.values or [0])
    sides = [
        Seq(np.broadcast_to(unwrap(side), unwrap(truth).shape), kind_of(side), side._constant)
        if isinstance(side, Seq)
        else side
        for side in (_sample(x_if), _sample(y_else))
    ]
    kind = kind_of(library.where(truth, *sides))
    node = graph.choose(condition.node, node_of(graph, x_if), node_of(graph, y_else))
    return Symbol(graph, node, kind)


def flagged(graph: Graph, flag: Node, x: Node, default: int) -> Node:
    """`x` where the flag is 1, a constant elsewhere."""
    return graph.choose(flag, x, graph.const(default))


_install_operators()
