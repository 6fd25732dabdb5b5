"""What happens in which layer, and where in the state each number stands. Knows no matrices.

Slots are counted through a section (the layers before the loop, or the block): attention of layer i is slot 2i, its
feed-forward part slot 2i + 1. Everything is done as early as it can be; the variables change in the last slot, all
at once. A number that is needed no more is taken out of the state by the next feed-forward part, and its place
is given to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from looped.compiler.lower import Brought, LayerOp, Mux, Steps, Sum


@dataclass(frozen=True)
class Commit:
    """A variable's new value: computed straight into its place, or moved there."""

    target: LayerOp
    value: Sum
    direct: LayerOp | None  # what computes it, if nothing else needs that


@dataclass
class Section:
    """A stretch of layers: what is computed in which slot, where it stands, and when it is taken out."""

    commits: list[Commit]
    slots: dict[LayerOp, int] = field(default_factory=dict)
    places: dict[LayerOp, int] = field(default_factory=dict)  # of numbers that do not outlive the section
    cleared: dict[LayerOp, int] = field(default_factory=dict)  # slot of a feed-forward part
    last: int = -1  # slot in which the variables change

    @property
    def layers(self) -> int:
        """How many layers it takes."""
        return (self.last + 1) // 2


def plan(commits: Iterable[tuple[LayerOp, Sum]], given: set[LayerOp], kept: Iterable[LayerOp]) -> Section:
    """The schedule for new values of variables, from what is given; `kept` are computed too, and stay."""
    goals, kept = list(commits), dict.fromkeys(kept)  # in order: the same program gives the same weights
    uses = Counter(op for _, value in goals for _, op in value.terms)
    order: list[LayerOp] = []
    for op in [op for _, value in goals for _, op in value.terms] + list(kept):
        _visit(op, given, uses, order)
    section = Section([Commit(target, value, _direct(value, given, uses, kept)) for target, value in goals])
    _assign_slots(section, order, given)
    return section


def _visit(op: LayerOp, given: set[LayerOp], uses: Counter[LayerOp], order: list[LayerOp]) -> None:
    """Append what an op needs, then the op, each once; count the uses of each."""
    if op in given or op in order:
        return
    for part in op.inputs():
        for _, inner in part.terms:
            _visit(inner, given, uses, order)
    for inner in {inner for part in op.inputs() for _, inner in part.terms}:
        uses[inner] += 1
    order.append(op)


def _direct(
    value: Sum, given: set[LayerOp], uses: Counter[LayerOp], kept: Container[LayerOp]
) -> LayerOp | None:
    if len(value.terms) != 1 or value.constant or value.terms[0][0] != 1:
        return None
    op = value.terms[0][1]
    if op in given or op in kept or uses[op] != 1 or not isinstance(op, Steps | Mux):
        return None
    return op


def _assign_slots(section: Section, order: list[LayerOp], given: set[LayerOp]) -> None:
    def ready(parts: Iterable[Sum]) -> int:
        return max([section.slots.get(op, -1) for part in parts for _, op in part.terms], default=-1)

    for op in order:
        after = ready(op.inputs()) + 1
        even = isinstance(op, Brought)
        section.slots[op] = after if (after % 2 == 0) == even else after + 1
    late = {commit.direct for commit in section.commits if commit.direct is not None}
    earliest = [section.slots[op] for op in order]
    earliest += [ready([commit.value]) + 1 for commit in section.commits if commit.direct is None]
    if earliest:
        section.last = max(earliest) + (max(earliest) % 2 == 0)
    for op in late:
        section.slots[op] = section.last


def allocate(section: Section, order_from: int, stays: set[LayerOp]) -> int:
    """Give a place to every number that does not stay, from `order_from` on; return the first place not used."""
    last_use: dict[LayerOp, int] = {}
    for op, slot in section.slots.items():
        for part in op.inputs():
            for _, inner in part.terms:
                last_use[inner] = max(last_use.get(inner, -1), slot)
    for commit in section.commits:
        for _, inner in commit.value.terms:
            last_use[inner] = max(last_use.get(inner, -1), section.last)
    direct = {commit.direct for commit in section.commits}
    free: list[tuple[int, int]] = []  # (place, slot from which on it is free)
    end = order_from
    for op in sorted(section.slots, key=lambda s: section.slots[s]):
        if op in stays or op in direct:
            continue
        born = section.slots[op]
        match = next((entry for entry in free if entry[1] < born), None)
        if match is None:
            place, end = end, end + 1
        else:
            place = match[0]
            free.remove(match)
        used = last_use[op]
        section.places[op] = place
        section.cleared[op] = used if used % 2 else used + 1
        free.append((place, section.cleared[op]))
    return end
