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

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from looped.errors import InputError
from looped.rasp import library
from looped.rasp.lint_rules import RULES, LegalityError, Place, RuleError, Violation, caller
from looped.rasp.sequence import COMPARE, Kind, Seq, kind_of, unwrap

P = ParamSpec("P")
R = TypeVar("R")
Array = NDArray[Any]
TABLE_LIMIT = 1 << 12  # cells of a function's table
FUSED = 256  # combinations of values that fused functions may have
RUNNING = -1  # in the place of a head's band


# --- what the compiler refuses, with rule, file and line: the rules of the language, and limits of its own -------
#
#     mine.py:12: unbounded-domain: the state variable 'count' takes more than 1024 values …
LIMITS: dict[str, str] = {
    "unbounded-domain": "a function becomes a feed-forward layer only over a fixed, finite set of values",
    "index-order": "an attention compares indices or counts for equality only, with at most a constant added",
    "loop-nesting": "a compiled loop has one step; loops may follow each other, not lie in each other",
    "step-count": "the number of steps must be a polynomial of degree 2 in the sizes of the question",
    "kind-varies": "a variable is of one kind (token, boolean or index) before and after every step",
    "row-length": "every sum must fit the 53 bits of a float64, every weight the 24 of a float32",
    "width": "the state of a compiled model has a largest width",
}


class CompileError(RuleError):
    """Raised for a program that cannot be turned into weights; the rule is one of `LIMITS`, or of the language."""


def refuse(rule: str, detail: str, place: Place | None = None) -> NoReturn:
    """Raise a `CompileError` at a place, or at the program's line that is being traced."""
    violation = Violation(rule, *(place or caller()), f"{detail} ({LIMITS.get(rule) or RULES[rule]})")
    raise CompileError(violation, located=place is not None)


def at_the_programs_line(operation: Callable[P, R]) -> Callable[P, R]:
    """Turn what the language's own operations raise into a `CompileError` at the program's line."""

    @functools.wraps(operation)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return operation(*args, **kwargs)
        except CompileError:
            raise
        except LegalityError as error:
            found = error.violation
            place = (found.file, found.line) if error.located else caller()
            raise CompileError(Violation(found.rule, *place, found.detail), error.located) from None
        except InputError as error:
            raise CompileError(Violation("argument", *caller(), str(error))) from None

    return wrapped


# --- nodes -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Domain:
    """The numbers a node can be: these values in rising order or, without any, all integers from low to high."""

    low: float
    high: float
    values: tuple[int, ...] | None = None

    @classmethod
    def of(cls, values: Iterable[int]) -> Domain:
        """A finite domain."""
        ordered = tuple(sorted({int(value) for value in values}))
        return cls(ordered[0], ordered[-1], ordered)

    @classmethod
    def union(cls, domains: Iterable[Domain]) -> Domain:
        """All that one or another of them holds."""
        domains = list(domains)
        values = [each.values for each in domains if each.values is not None]
        if len(values) == len(domains):
            return cls.of(itertools.chain(*values))
        return cls(min(each.low for each in domains), max(each.high for each in domains))


FLAG = Domain.of((0, 1))


@dataclass(frozen=True)
class HeadForm:
    """How a head weighs what it sees: a softmax over scores times `scale`, or the best key so far."""

    band: int = 0  # positions it sees, itself included; 0 for all, RUNNING for the best key so far
    scale: float = 1.0
    mean: bool = False  # several keys may share the weight


Branches = tuple["Node", "Node", "Node"]  # flag, then, else


@dataclass(frozen=True, eq=False)
class Node:
    """One number at every position; equal nodes are the same object."""

    op: str
    args: tuple[Node, ...]
    domain: Domain
    data: Any = None  # the rest of what it is, by `op`
    invariant: bool = True  # the same at every step
    table: Array | None = None  # of a point: its values, one axis an argument
    branches: Branches | None = None  # of a point that is a choice

    @property
    def size(self) -> int:
        """How many values it can take."""
        assert self.domain.values is not None
        return len(self.domain.values)

    @property
    def finite(self) -> bool:
        """Whether its values can be listed."""
        return self.domain.values is not None


def values_of(args: Sequence[Node]) -> list[Array]:
    """Every combination of the arguments' values, one flat array an argument, last argument fastest."""
    domains = [np.array(arg.domain.values) for arg in args]
    return [part.reshape(-1) for part in np.meshgrid(*domains, indexing="ij")]


# --- functions of functions: a chain of tables as one table over what lies behind it -------------------------
def frontier(node: Node, most: int = FUSED) -> list[Node]:
    """The arguments of a function and of the functions behind it, as far back as the combinations stay few."""
    args = list(node.args)
    tried: set[Node] = set()
    while True:
        for arg in args:
            if arg in tried or arg.op != "point" or (arg.invariant and not node.invariant):
                continue
            tried.add(arg)
            wider = list(dict.fromkeys([*(a for a in args if a is not arg), *arg.args]))
            if _cells(wider) <= max(most, _cells(args)):
                args = wider
                break
        else:
            return args


def _cells(args: Sequence[Node]) -> int:
    return math.prod(arg.size for arg in args)


def evaluate(node: Node, args: Sequence[Node]) -> Array:
    """The node's values over the product of the domains of `args`, from which it can be computed."""
    shape = [arg.size for arg in args]
    grids = np.indices(shape)
    known: dict[Node, Array] = dict(zip(args, grids, strict=True))  # places in the domain

    def place(of: Node) -> Array:
        if of not in known:
            # What can never be is in no domain; whatever stands for it does not matter.
            known[of] = np.searchsorted(np.array(of.domain.values), value(of)).clip(max=of.size - 1)
        return known[of]

    def value(of: Node) -> Array:
        if of.op == "const":
            return np.full(shape, int(of.domain.low))
        assert of.table is not None
        return np.asarray(of.table[tuple(place(arg) for arg in of.args)])

    return value(node)


@dataclass(frozen=True)
class Facts:
    """Which combinations of values of these nodes there can be."""

    nodes: tuple[Node, ...] = ()
    combinations: frozenset[tuple[int, ...]] = frozenset()

    def possible(self, args: Sequence[Node]) -> Array:
        """Of every combination of the arguments' values, whether there can be such a one."""
        shape = [arg.size for arg in args]
        known = [node for node in self.nodes if node in args]
        if len(known) < 2:
            return np.ones(shape, dtype=bool)
        kept = {tuple(c[self.nodes.index(node)] for node in known) for c in self.combinations}
        grids = dict(zip(args, values_of(args), strict=True))
        columns = np.stack([grids[node] for node in known], axis=1)
        return np.array([tuple(row) in kept for row in columns.tolist()]).reshape(shape)


# --- the graph -----------------------------------------------------------------------------------------------
Terms = Iterable[tuple[float, Node]]  # of a weighted sum


@dataclass
class Graph:
    """All nodes made so far, each once."""

    nodes: dict[object, Node] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts)
    operations: Any = None  # the operations of the language on symbols of this graph

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

    def affine(self, terms: Terms, constant: float = 0.0, domain: Domain | None = None) -> Node:
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
        low, high = (constant + sum(side) for side in zip(*ends, strict=True))
        weights = tuple(weight for weight, _ in kept)
        data = (weights, float(constant))
        return self._node("affine", [node for _, node in kept], domain or Domain(low, high), data)

    def compare(self, sign: str, x: Node) -> Node:
        """`x == 0` or `x >= 0` of an integer, as 0 or 1."""
        low, high = x.domain.low, x.domain.high
        if high < 0 or (sign == "==" and low > 0):
            return self.const(0)
        if sign == ">=" and low >= 0:
            return self.const(1)
        return self._node("compare", (x,), FLAG, sign)

    def point(self, args: Sequence[Node], table: ArrayLike, branches: Branches | None = None) -> Node:
        """The function with this table over the product of the arguments' domains, last argument fastest."""
        left: Array = np.ascontiguousarray(table, dtype=np.int64).reshape([arg.size for arg in args])
        kept: list[Node] = []
        for axis in range(len(args) - 1, -1, -1):  # what does not matter is no argument
            if (left == left.take([0], axis)).all():
                left = left.take(0, axis)
            else:
                kept.insert(0, args[axis])
        if not kept:
            return self.const(int(left))
        if len(kept) == 1 and tuple(left.tolist()) == kept[0].domain.values:
            return kept[0]
        return self._node("point", kept, self._values(kept, left), table=left, branches=branches)

    def _values(self, args: Sequence[Node], table: Array) -> Domain:
        """What a function can give, combinations left out that there cannot be."""
        whole = Domain.of(np.unique(table).tolist())
        if not self.facts.nodes:
            return whole
        invariant = all(arg.invariant for arg in args)
        node = Node("point", tuple(args), whole, None, invariant, table)
        behind = frontier(node, TABLE_LIMIT)
        return Domain.of(np.unique(evaluate(node, behind)[self.facts.possible(behind)]).tolist())

    def choose(self, flag: Node, x: Node, y: Node | float) -> Node:
        """`x` where the flag is 1, `y` where it is 0."""
        y = y if isinstance(y, Node) else self.const(y)
        if flag.domain.low == flag.domain.high:  # a constant, or a function that can give only one value
            return x if flag.domain.low else y
        if x is y:
            return x
        if x.finite and y.finite and 2 * x.size * y.size <= TABLE_LIMIT:
            xs, ys = np.array(x.domain.values), np.array(y.domain.values)
            table = np.stack(np.broadcast_arrays(ys[None, :], xs[:, None]))
            return self.point((flag, x, y), table, branches=(flag, x, y))
        return self._node("choose", (flag, x, y), Domain.union((x.domain, y.domain)))

    def read(self, form: HeadForm, pairs: Sequence[tuple[Node, Node]], value: Node) -> Node:
        """What a head brings that scores a key by the sum over pairs of query entry times key entry."""
        if value.op == "const":
            return value
        domain = Domain(value.domain.low, value.domain.high) if form.mean else value.domain
        return self._node("read", (value, *itertools.chain(*pairs)), domain, form)

    def floor(self, mean: Node, longest: int) -> Node:
        """The integer towards zero of a mean over at most `longest` integers."""
        if mean.op == "const":
            return mean
        low, high = int(mean.domain.low), int(mean.domain.high)
        return self._node("floor", (mean,), Domain.of(range(low, high + 1)), longest)


# --- symbols -------------------------------------------------------------------------------------------------
# Symbolic sequences: a program runs on these once, and its operations become nodes of the graph.
#
# A `Symbol` has a sequence's operators and the same kinds. What an operator does to values is never restated: the
# language's own operator is called on every combination of values, and its results are the node's table. Only
# indices and counts, which have no finite domain, are spelled out: comparison, + 1, - 1, a choice.


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
    for name in ("add", "sub", "mul", "and", "or", "xor"):
        function = getattr(operator, f"__{name}__")
        setattr(Symbol, f"__r{name}__", lambda x, y, f=function: pointwise(f, y, x))
        setattr(Symbol, f"__{name}__", lambda x, y, f=function: pointwise(f, x, y))
    for name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "invert"):
        function = getattr(operator, name)
        setattr(Symbol, f"__{name}__", lambda *args, f=function: pointwise(f, *args))
    for name in ("floordiv", "mod"):  # the divisor is a number of the program's text
        function = getattr(operator, name)
        setattr(Symbol, f"__{name}__", lambda x, y, f=function: pointwise(lambda values: f(values, y), x))


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
    return Symbol(graph, graph.point(nodes, table.astype(np.int64)), kind_of(result), result._constant)


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
_SIGNS = {function: sign for sign, function in COMPARE.items()}


def _of_indices(operation: Callable[..., Any], *args: Symbol | int) -> Symbol:
    kind = kind_of(operation(*map(_sample, args)))  # the language's own rules, tried on one position
    graph = graph_of(*args)
    x, y = (node_of(graph, arg) for arg in args)
    if operation in _SIGNS:
        return Symbol(graph, compared(graph, _SIGNS[operation], x, y), kind)
    return Symbol(graph, graph.affine([(1, x), (1 if operation is operator.add else -1, y)]), kind)


def compared(graph: Graph, sign: str, x: Node, y: Node) -> Node:
    """`x sign y` of integers, as 0 or 1."""
    ahead, behind = graph.affine([(1, x), (-1, y)]), graph.affine([(1, y), (-1, x)])
    if sign in ("==", "!="):
        same = graph.compare("==", ahead)
        return same if sign == "==" else _opposite(graph, same)
    if sign in (">=", "<="):
        return graph.compare(">=", ahead if sign == ">=" else behind)
    return _opposite(graph, graph.compare(">=", behind if sign == ">" else ahead))


def _opposite(graph: Graph, flag: Node) -> Node:
    return graph.const(1 - flag.domain.low) if flag.op == "const" else graph.point((flag,), np.array([1, 0]))


# --- choices -----------------------------------------------------------------------------------------------
@at_the_programs_line
def where(condition: Symbol, x_if: Symbol | int, y_else: Symbol | int) -> Symbol:
    """`x_if` where the condition is true, `y_else` elsewhere."""
    graph = condition.graph
    truth = sequence(condition, [condition.node.domain.low])
    kind = kind_of(library.where(truth, _sample(x_if), _sample(y_else)))
    return Symbol(graph, graph.choose(condition.node, node_of(graph, x_if), node_of(graph, y_else)), kind)


_install_operators()
