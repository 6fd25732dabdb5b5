"""Nodes into what a layer can do: heads, and units of a feed-forward part. Knows no matrices.

A `LayerOp` is a number that will stand in the state: given (a token's id, an index, a variable), brought by a head, or
computed by units. Units compute step functions (a value at the far left, and a jump at each threshold) and choices (of
several values the one whose flags are as they should be).

Everything else is a weighted sum of such numbers, taken where it is needed. A function of several variables is one of
a single number, their values being its digits. A chain of functions over small domains becomes one function, so that
it takes one layer and not many.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from looped.compiler.graph import FUSED, Array, Domain, Graph, HeadForm, Node, evaluate, frontier, values_of

MOST_FLAGS = 6  # of one choice
DIGIT_ORDERS = 120  # orders of the digits that are tried
Jumps = tuple[tuple[float, float], ...]  # thresholds in rising order, each with what the function rises by


@dataclass(frozen=True)
class Sum:
    """A weighted sum of ops and a constant."""

    terms: tuple[tuple[float, LayerOp], ...] = ()
    constant: float = 0.0

    @property
    def ops(self) -> list[LayerOp]:
        """What is summed."""
        return [op for _, op in self.terms]

    def plus(self, other: Sum | float, weight: float = 1.0) -> Sum:
        """This sum and a multiple of another, or of a constant."""
        if not isinstance(other, Sum):
            return Sum(self.terms, self.constant + weight * other)
        weights = {op: own for own, op in self.terms}
        for own, op in other.terms:
            weights[op] = weights.get(op, 0.0) + weight * own
        kept = tuple((own, op) for op, own in weights.items() if own)
        return Sum(kept, self.constant + weight * other.constant)


@dataclass(frozen=True, eq=False)
class LayerOp:
    """A number in the state."""

    domain: Domain
    invariant: bool  # the same at every step
    parts: tuple[Sum, ...] = ()  # what it is computed from; nothing if it is given

    parity: ClassVar[int] = 1  # of its slots: attention of layer i is slot 2i, the feed-forward part 2i + 1

    @property
    def needs(self) -> list[LayerOp]:
        """The numbers it is computed from."""
        return [op for part in self.parts for op in part.ops]

    def slot_after(self, slot: int) -> int:
        """The first slot after this one in which it can be computed."""
        return slot + 1 + (slot + 1 + self.parity) % 2


@dataclass(frozen=True, eq=False)
class Brought(LayerOp):
    """What a head brings; its parts are query, key, query, key, …, value."""

    parity = 0
    form: HeadForm = field(default_factory=HeadForm)


@dataclass(frozen=True, eq=False)
class Computed(LayerOp):
    """What units add up to: relu of each sum times its weight, and a constant."""

    units: tuple[tuple[Sum, float], ...] = ()
    base: float = 0.0
    cost: int = 0  # by which a step function and a choice that do the same are compared


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
        return _alone(LayerOp(node.domain, node.invariant))

    def _const(self, node: Node) -> Sum:
        return Sum((), node.domain.low)

    def _affine(self, node: Node) -> Sum:
        weights, constant = node.data
        return self._weighted(weights, node.args, constant)

    def _weighted(self, weights: Sequence[float], args: Sequence[Node], constant: float = 0.0) -> Sum:
        total = Sum((), constant)
        for weight, arg in zip(weights, args, strict=True):
            total = total.plus(self(arg), weight)
        return total

    def _read(self, node: Node) -> Sum:
        value, *scores = map(self, node.args)
        return _alone(Brought(node.domain, node.invariant, (*scores, value), node.data))

    def _compare(self, node: Node) -> Sum:
        jumps = ((0.0, 1.0),) if node.data == ">=" else ((0.0, 1.0), (1.0, -1.0))
        return _steps(node, self(node.args[0]), 0.0, jumps)

    def _floor(self, node: Node) -> Sum:
        fine = 1.0 / 2 ** int(np.ceil(np.log2(node.data)))
        low, *rest = node.domain.values or ()
        # Towards zero: above it, value k begins at k; below it, just after k - 1.
        jumps = tuple((float(k) if k > 0 else k - 1 + fine, 1.0) for k in rest)
        return _steps(node, self(node.args[0]), float(low), jumps, fine)

    # --- functions over finite domains -----------------------------------------------------------------------
    def _point(self, node: Node) -> Sum:
        args = frontier(node)
        cells = int(np.prod([arg.size for arg in args]))
        if cells > FUSED and node.branches is not None:
            return self._choose(node)
        values = evaluate(node, args)
        straight = _straight(args, values)
        if straight is not None:
            weights, constant = straight
            return self._weighted(weights, args, constant)
        steps = _steps(node, *self._digits(args, values))
        if node.branches is None:
            return steps
        choice = self._choose(node)
        return min(steps, choice, key=lambda way: (self._slot(way, node), _cost(way)))

    def _slot(self, total: Sum, root: Node) -> int:
        """In which slot a sum is there at the earliest; what is the same at every step is there before a step."""
        return max([self._op_slot(op, root.invariant) for op in total.ops], default=-1)

    def _op_slot(self, op: LayerOp, invariant: bool) -> int:
        if (op, invariant) not in self._slots:
            ready = max([self._op_slot(inner, invariant) for inner in op.needs], default=-1)
            early = not op.parts or (op.invariant and not invariant)
            self._slots[op, invariant] = -1 if early else op.slot_after(ready)
        return self._slots[op, invariant]

    def _digits(self, args: Sequence[Node], values: Array) -> tuple[Sum, float, Jumps]:
        """The weights of the arguments that make the function a step function with the fewest jumps."""
        grids, possible = values_of(args), self.graph.facts.possible(args).reshape(-1)
        results = values.reshape(-1)[possible]
        found = ((weights, _jumps(np.dot(weights, grids)[possible], results)) for weights in _codes(args))
        told_apart = [(weights, *jumps) for weights, jumps in found if jumps is not None]
        weights, base, at, rises = min(told_apart, key=lambda each: len(each[2]))
        return self._weighted(weights, args), base, tuple(zip(at.tolist(), rises.tolist(), strict=True))

    # --- choices ------------------------------------------------------------------------------------------------
    def _choose(self, node: Node) -> Sum:
        flags: list[Node] = []
        tree = self._tree(node, node, flags)
        chosen: dict[Node, set[tuple[bool | None, ...]]] = {}
        for assignment in itertools.product((False, True), repeat=len(flags)):
            leaf = _follow(tree, dict(zip(flags, assignment, strict=True)))
            chosen.setdefault(leaf, set()).add(assignment)
        parts: list[Sum] = []
        units: list[tuple[Sum, float]] = []
        ways = 0
        for leaf, cubes in chosen.items():
            low, high = leaf.domain.low, leaf.domain.high
            for cube in _merged(cubes):
                ways += 1
                missed = Sum()  # how many flags are not as they must be
                for flag, wanted in zip(flags, cube, strict=True):
                    if wanted is not None:
                        parts.append(self(flag))
                        missed = missed.plus(Sum((), 1.0).plus(parts[-1], -1.0) if wanted else parts[-1])
                parts.append(self(leaf))
                if high > low:
                    units.append((parts[-1].plus(-low).plus(missed, low - high), 1.0))
                if low:
                    units.append((Sum((), 1.0).plus(missed, -1.0), low))
        return _alone(Computed(node.domain, node.invariant, tuple(parts), tuple(units), cost=2 * ways))

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
        own = node.branches
        if own is not None and (node is root or all(map(_is_flag, _flags_of(own[0], root)))):
            return own
        args = frontier(node, 0)
        inner = args[0].args if args[0].op == "choose" else args[0].branches
        if len(args) == 1 and inner is not None:
            values = dict(zip(args[0].domain.values or (), evaluate(node, args).tolist(), strict=True))
            tables = [[values.get(v, 0) for v in side.domain.values or ()] for side in inner[1:]]
            x, y = (self.graph.point([side], table) for side, table in zip(inner[1:], tables, strict=True))
            return inner[0], x, y
        return own


def _cost(total: Sum) -> int:
    op = total.ops[0]
    assert isinstance(op, Computed)
    return op.cost


def _is_flag(node: Node) -> bool:
    return node.domain.values == (0, 1) and node.op != "point"


def _alone(op: LayerOp) -> Sum:
    return Sum(((1.0, op),))


def _steps(node: Node, z: Sum, base: float, jumps: Jumps, fine: float = 1.0) -> Sum:
    """A step function of a sum: `base`, and more by each jump from its threshold on.

    Two units make a jump, with a ramp from ¾ to ¼ of the finest step before the threshold; nothing stands on a ramp.
    """
    far, near, slope = 0.75 * fine, 0.25 * fine, 2.0 / fine
    units = tuple(
        (Sum().plus(z, slope).plus(slope * (offset - threshold)), sign * jump)
        for threshold, jump in jumps
        for offset, sign in ((far, 1.0), (near, -1.0))
    )
    return _alone(Computed(node.domain, node.invariant, (z,), units, base, cost=len(units)))


def _straight(args: Sequence[Node], values: Array) -> tuple[list[float], float] | None:
    """Whole weights and a constant, if the function is a weighted sum of its arguments."""
    weights = []
    for axis, arg in enumerate(args):
        first, line = arg.domain.values or (), np.moveaxis(values, axis, 0).reshape(arg.size, -1)[:, 0]
        weights.append(float(line[1] - line[0]) / (first[1] - first[0]) if arg.size > 1 else 0.0)
    rest = values.reshape(-1) - np.dot(weights, values_of(args))
    straight = all(weight.is_integer() for weight in weights) and (rest == rest[0]).all()
    return (weights, float(rest[0])) if straight else None


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


def _jumps(code: Array, values: Array) -> tuple[float, Array, Array] | None:
    """First value, thresholds and rises of a function of the code; None if a code has two values."""
    order = np.argsort(code, kind="stable")
    code, values = code[order], values[order].astype(float)
    rises = np.diff(values)
    if rises[code[1:] == code[:-1]].any():
        return None
    at = np.flatnonzero(rises)
    return float(values[0]), code[at + 1], rises[at]


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
