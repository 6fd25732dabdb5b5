"""What a graph is made of: a number at every position, and which numbers it can be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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

    def join(self, other: Domain) -> Domain:
        """All that one or the other holds."""
        if self.values is not None and other.values is not None:
            return Domain.of(self.values + other.values)
        return Domain(min(self.low, other.low), max(self.high, other.high))


FLAG = Domain.of((0, 1))


@dataclass(frozen=True)
class HeadForm:
    """How a head weighs what it sees: a softmax over scores times `scale`, or the best key so far."""

    band: int = 0  # positions it sees, itself included; 0 for all
    running: bool = False
    scale: float = 1.0
    mean: bool = False  # several keys may share the weight


@dataclass(frozen=True, eq=False)
class Node:
    """One number at every position; equal nodes are the same object."""

    op: str
    args: tuple[Node, ...]
    domain: Domain
    data: Any = None  # the rest of what it is, by `op`
    invariant: bool = True  # the same at every step
    table: Array | None = None  # of a point: its values, one axis an argument
    branches: tuple[Node, Node, Node] | None = None  # of a point that is a choice: flag, then, else

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
