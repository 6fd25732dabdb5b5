"""Nodes into what a layer can do: heads, step functions and choices. Knows no matrices.

A `LayerOp` is a number that will stand in the state:

    Given    something given: a token's id, an index, a variable
    Brought  what a head brings
    Steps    a function of one weighted sum z: a value at the far left, and a jump at each threshold
    Mux      one of several values, by flags: each value passes where its flags are as they should be

Everything else is a weighted sum of such numbers, taken where it is needed. A function of several variables is one of
a single number, their values being its digits. A chain of functions over small domains becomes one function, so that
it takes one layer and not many.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from looped.compiler.graph import FUSED, Array, Domain, Graph, HeadForm, Node, evaluate, frontier

MOST_FLAGS = 6  # of one choice
DIGIT_ORDERS = 120  # orders of the digits that are tried


@dataclass(frozen=True)
class Sum:
    """A weighted sum of ops and a constant."""

    terms: tuple[tuple[float, LayerOp], ...] = ()
    constant: float = 0.0

    def plus(self, other: Sum, weight: float = 1.0) -> Sum:
        """This sum and a multiple of another."""
        weights = {op: own for own, op in self.terms}
        for own, op in other.terms:
            weights[op] = weights.get(op, 0.0) + weight * own
        kept = tuple((own, op) for op, own in weights.items() if own)
        return Sum(kept, self.constant + weight * other.constant)


@dataclass(frozen=True, eq=False)
class LayerOp:
    """A number in the state."""

    domain: Domain
    invariant: bool
    name: str = ""  # of something given

    def inputs(self) -> tuple[Sum, ...]:
        """What it is computed from."""
        return ()


@dataclass(frozen=True, eq=False)
class Brought(LayerOp):
    """What a head brings."""

    form: HeadForm = field(default_factory=HeadForm)
    pairs: tuple[tuple[Sum, Sum], ...] = ()
    value: Sum = field(default_factory=Sum)

    def inputs(self) -> tuple[Sum, ...]:
        """Queries, keys and the value."""
        return (*(part for pair in self.pairs for part in pair), self.value)


@dataclass(frozen=True, eq=False)
class Steps(LayerOp):
    """A step function of a sum: `base`, and more by each jump from its threshold on.

    A threshold has a ramp before it, from `ramp[0]` to `ramp[1]` below; nothing ever stands on a ramp.
    """

    z: Sum = field(default_factory=Sum)
    base: float = 0.0
    jumps: tuple[tuple[float, float], ...] = ()
    ramp: tuple[float, float] = (0.75, 0.25)

    def inputs(self) -> tuple[Sum, ...]:
        """The sum."""
        return (self.z,)


@dataclass(frozen=True, eq=False)
class Way:
    """One way through a choice: flags and what each must be, and the value that then passes."""

    flags: tuple[tuple[Sum, bool], ...]
    value: Sum
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Mux(LayerOp):
    """The value of the one way whose flags are as they must be."""

    ways: tuple[Way, ...] = ()

    def inputs(self) -> tuple[Sum, ...]:
        """Flags and values."""
        return tuple(part for way in self.ways for part in (*(flag for flag, _ in way.flags), way.value))


class Lowering:
    """Lowers the nodes of one graph, each once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._done: dict[Node, Sum] = {}
        self._slots: dict[tuple[LayerOp, bool], int] = {}

    def __call__(self, node: Node) -> Sum:
        """The node as a sum of ops."""
        if node not in self._done:
            self._done[node] = getattr(self, f"_{node.op}")(node)
        return self._done[node]

    def _leaf(self, node: Node) -> Sum:
        name = node.data[0]
        return _alone(LayerOp(node.domain, node.invariant, name))

    def _const(self, node: Node) -> Sum:
        return Sum((), node.domain.low)

    def _affine(self, node: Node) -> Sum:
        weights, constant = node.data
        total = Sum((), constant)
        for weight, arg in zip(weights, node.args, strict=True):
            total = total.plus(self(arg), weight)
        return total

    def _read(self, node: Node) -> Sum:
        assert isinstance(node.data, HeadForm)
        value, *rest = map(self, node.args)
        pairs = tuple(zip(rest[::2], rest[1::2], strict=True))
        return _alone(Brought(node.domain, node.invariant, "", node.data, pairs, value))

    def _compare(self, node: Node) -> Sum:
        jumps = ((0.0, 1.0),) if node.data == ">=" else ((0.0, 1.0), (1.0, -1.0))
        return _alone(Steps(node.domain, node.invariant, "", self(node.args[0]), 0.0, jumps))

    def _floor(self, node: Node) -> Sum:
        assert isinstance(node.data, int)
        assert node.domain.values is not None
        fine = 1.0 / 2 ** int(np.ceil(np.log2(node.data)))
        low, *rest = node.domain.values
        # Towards zero: above it, value k begins at k; below it, just after k - 1.
        jumps = tuple((float(k) if k > 0 else k - 1 + fine, 1.0) for k in rest)
        ramp = (0.75 * fine, 0.25 * fine)
        return _alone(Steps(node.domain, node.invariant, "", self(node.args[0]), float(low), jumps, ramp))

    # --- functions over finite domains -----------------------------------------------------------------------
    def _point(self, node: Node) -> Sum:
        args = frontier(node)
        cells = int(np.prod([arg.size for arg in args]))
        if cells > FUSED and node.branches is not None:
            return self._choose(node)
        values = evaluate(node, args)
        straight = _straight(args, values)
        if straight is not None:
            total = Sum((), straight[-1])
            for weight, arg in zip(straight, args, strict=False):
                total = total.plus(self(arg), weight)
            return total
        steps = _alone(Steps(node.domain, node.invariant, "", *self._digits(args, values)))
        if node.branches is None:
            return steps
        choice = self._choose(node)
        return min(steps, choice, key=lambda way: (self._slot(way, node), _units(way)))

    def _slot(self, total: Sum, root: Node) -> int:
        """In which slot a sum is there at the earliest; what is the same at every step is there before a step."""
        return max([self._op_slot(op, root.invariant) for _, op in total.terms], default=-1)

    def _op_slot(self, op: LayerOp, invariant: bool) -> int:
        if (op, invariant) not in self._slots:
            inputs = [inner for part in op.inputs() for _, inner in part.terms]
            after = max([self._op_slot(inner, invariant) for inner in inputs], default=-1) + 1
            early = bool(op.name) or (op.invariant and not invariant)
            even = isinstance(op, Brought)
            self._slots[op, invariant] = -1 if early else after + ((after % 2 == 0) != even)
        return self._slots[op, invariant]

    def _digits(
        self, args: Sequence[Node], values: Array
    ) -> tuple[Sum, float, tuple[tuple[float, float], ...]]:
        """The weights of the arguments that make the function a step function with the fewest jumps."""
        grids = np.meshgrid(*(np.array(arg.domain.values) for arg in args), indexing="ij")
        possible = self.graph.facts.possible(args)
        best: tuple[list[float], float, tuple[tuple[float, float], ...]] | None = None
        for weights in _codes(args):
            code = sum(weight * grid for weight, grid in zip(weights, grids, strict=True))
            jumps = _jumps(np.asarray(code)[possible], values[possible])
            if jumps is not None and (best is None or len(jumps[1]) < len(best[2])):
                best = (weights, *jumps)
        assert best is not None
        total = Sum()
        for weight, arg in zip(best[0], args, strict=True):
            total = total.plus(self(arg), weight)
        return total, best[1], best[2]

    # --- choices ------------------------------------------------------------------------------------------------
    def _choose(self, node: Node) -> Sum:
        flags: list[Node] = []
        tree = self._tree(node, node, flags)
        chosen: dict[Node, set[tuple[bool | None, ...]]] = {}
        for assignment in itertools.product((False, True), repeat=len(flags)):
            leaf = _follow(tree, dict(zip(flags, assignment, strict=True)))
            chosen.setdefault(leaf, set()).add(assignment)
        ways = []
        for leaf, cubes in chosen.items():
            for cube in _merged(cubes):
                fixed = tuple((self(f), bool(v)) for f, v in zip(flags, cube, strict=True) if v is not None)
                ways.append(Way(fixed, self(leaf), leaf.domain.low, leaf.domain.high))
        return _alone(Mux(node.domain, node.invariant, "", tuple(ways)))

    def _tree(self, node: Node, root: Node, flags: list[Node]) -> Any:
        """A choice within choices as (condition, its flags, then, else); what is none, or takes too many, is a leaf."""
        branches = self._branches(node, root)
        if branches is None:
            return node
        condition, x, y = branches
        needed = _flags_of(condition, root)
        if len({*flags, *needed}) > MOST_FLAGS:
            if node is not root:
                return node
            needed = [condition]
        flags[:] = dict.fromkeys([*flags, *needed])
        return condition, needed, self._tree(x, root, flags), self._tree(y, root, flags)

    def _branches(self, node: Node, root: Node) -> tuple[Node, Node, Node] | None:
        """The choice that a node is; or, for a function of one choice, the choice between the function's values."""
        if node.invariant and not root.invariant:
            return None
        if node.op == "choose":
            condition, x, y = node.args
            return condition, x, y
        if node.op != "point":
            return None
        if node.branches is not None and (
            node is root or all(_is_flag(f) for f in _flags_of(node.branches[0], root))
        ):
            return node.branches
        args = frontier(node, 0)
        inner = args[0].args if args[0].op == "choose" else args[0].branches
        if len(args) == 1 and inner is not None:
            values = dict(zip(args[0].domain.values or (), evaluate(node, args).tolist(), strict=True))
            condition, *sides = inner
            x, y = (
                self.graph.apply([side], [values.get(v, 0) for v in side.domain.values or ()])
                for side in sides
            )
            return condition, x, y
        return node.branches


def _units(total: Sum) -> int:
    """How many units of a feed-forward part it takes."""
    op = total.terms[0][1]
    return 2 * len(op.jumps) if isinstance(op, Steps) else 2 * len(op.ways) if isinstance(op, Mux) else 1


def _is_flag(node: Node) -> bool:
    return node.domain.values == (0, 1) and node.op != "point"


def _alone(op: LayerOp) -> Sum:
    return Sum(((1.0, op),))


def _straight(args: Sequence[Node], values: Array) -> list[float] | None:
    """Whole weights and a constant, if the function is a weighted sum of its arguments."""
    weights: list[float] = []
    for axis, arg in enumerate(args):
        ends = np.array(arg.domain.values)
        if len(ends) < 2:
            weights.append(0.0)
            continue
        line = values.take(0, axis=axis).reshape(-1)[0], values.take(1, axis=axis).reshape(-1)[0]
        weights.append(float(line[1] - line[0]) / float(ends[1] - ends[0]))
    if any(not weight.is_integer() for weight in weights):
        return None
    grids = np.meshgrid(*(np.array(arg.domain.values) for arg in args), indexing="ij")
    total = np.asarray(sum(weight * grid for weight, grid in zip(weights, grids, strict=True)))
    rest = values - total
    return [*weights, float(rest.reshape(-1)[0])] if (rest == rest.reshape(-1)[0]).all() else None


def _codes(args: Sequence[Node]) -> list[list[float]]:
    """Weights that may tell all combinations apart that have to be: sums, differences, digits in some order."""
    found: list[list[float]] = [[1.0] * len(args)]
    if len(args) == 2:
        found.append([1.0, -1.0])
    for order in itertools.islice(itertools.permutations(range(len(args))), DIGIT_ORDERS):
        weights, weight = [0.0] * len(args), 1.0
        for i in order:
            weights[i] = weight
            weight *= args[i].domain.high - args[i].domain.low + 1
        found.append(weights)
    return found


def _jumps(code: Array, values: Array) -> tuple[float, tuple[tuple[float, float], ...]] | None:
    """First value and jumps of a function of the code; None if a code has two values."""
    order = np.argsort(code, kind="stable")
    code, values = code[order], values[order]
    same = code[1:] == code[:-1]
    if (values[1:] != values[:-1])[same].any():
        return None
    at = np.flatnonzero(values[1:] != values[:-1]) + 1
    return float(values[0]), tuple((float(code[i]), float(values[i] - values[i - 1])) for i in at)


# --- choices ---------------------------------------------------------------------------------------------------
def _flags_of(condition: Node, root: Node) -> list[Node]:
    """The flags that a condition is a function of, or the condition itself."""
    if condition.op != "point" or (condition.invariant and not root.invariant):
        return [condition]
    behind = frontier(condition)
    if len(behind) <= 4 and all(arg.domain.values == (0, 1) for arg in behind):
        return behind
    return [condition]


def _follow(tree: Any, flags: dict[Node, bool]) -> Node:
    if isinstance(tree, Node):
        return tree
    condition, needed, x, y = tree
    if needed == [condition]:
        holds = flags[condition]
    else:
        table = evaluate(condition, needed)
        holds = bool(table[tuple(int(flags[flag]) for flag in needed)])
    return _follow(x if holds else y, flags)


def _merged(cubes: set[tuple[bool | None, ...]]) -> list[tuple[bool | None, ...]]:
    """Fewer cubes that cover the same assignments, still without overlap."""
    work = set(cubes)
    changed = True
    while changed:
        changed = False
        for a, b in itertools.combinations(sorted(work, key=str), 2):
            apart = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
            if len(apart) == 1 and a[apart[0]] is not None and b[apart[0]] is not None:
                work -= {a, b}
                work.add(tuple(None if i == apart[0] else x for i, x in enumerate(a)))
                changed = True
                break
    return sorted(work, key=str)
