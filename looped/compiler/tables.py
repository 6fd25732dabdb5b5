"""Functions of functions: a chain of tables as one table over what lies behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from looped.compiler.nodes import Array, Node, values_of

FUSED = 256  # combinations of values that fused functions may have


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
