"""What a layer can do: the numbers that stand in the state, and the sums of them that are taken anywhere.

    Brought  what a head brings
    Steps    a function of one weighted sum z: a value at the far left, and a jump at each threshold
    Mux      one of several values, by flags: each value passes where its flags are as they should be

Knows no graph and no matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from looped.compiler.nodes import Domain, HeadForm


@dataclass(frozen=True)
class Sum:
    """A weighted sum of solids and a constant."""

    terms: tuple[tuple[float, Solid], ...] = ()
    constant: float = 0.0

    def plus(self, other: Sum, weight: float = 1.0) -> Sum:
        """This sum and a multiple of another."""
        weights = {solid: own for own, solid in self.terms}
        for own, solid in other.terms:
            weights[solid] = weights.get(solid, 0.0) + weight * own
        kept = tuple((own, solid) for solid, own in weights.items() if own)
        return Sum(kept, self.constant + weight * other.constant)


@dataclass(frozen=True, eq=False)
class Solid:
    """A number in the state."""

    domain: Domain
    invariant: bool
    name: str = ""  # of something given

    def inputs(self) -> tuple[Sum, ...]:
        """What it is computed from."""
        return ()


@dataclass(frozen=True, eq=False)
class Brought(Solid):
    """What a head brings."""

    form: HeadForm = field(default_factory=HeadForm)
    pairs: tuple[tuple[Sum, Sum], ...] = ()
    value: Sum = field(default_factory=Sum)

    def inputs(self) -> tuple[Sum, ...]:
        """Queries, keys and the value."""
        return (*(part for pair in self.pairs for part in pair), self.value)


@dataclass(frozen=True, eq=False)
class Steps(Solid):
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
class Mux(Solid):
    """The value of the one way whose flags are as they must be."""

    ways: tuple[Way, ...] = ()

    def inputs(self) -> tuple[Sum, ...]:
        """Flags and values."""
        return tuple(part for way in self.ways for part in (*(flag for flag, _ in way.flags), way.value))
