"""Layers as matrices, and how many bits their sums need. Knows what a unit or a head can do; no program.

A threshold is two units of a feed-forward part: relu(2z - 2t + 1.5) - relu(2z - 2t + 0.5) is 0 up to t - ¾ and 1
from t - ¼ on, exactly, for every z that is an integer or within a quarter of one.

All entries of the state are integers, except for means. A sum of integers times weights is exact as long as the
largest it can become, in units of the finest step its terms have, fits the 53 bits of a float64. What is made of a
mean carries a rounding error instead, which must stay far below what would change a result: half a step of a
threshold, or the lead that the best score has over the next.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

import numpy as np

from looped.compiler.graph import Array, HeadForm
from looped.compiler.lower import Brought, LayerOp, Mux, Steps, Sum
from looped.model.config import ModelConfig

Pairs = tuple[tuple[Sum, Sum], ...]
Place = Callable[[LayerOp], int]
HEAD_SIZES = (4, 16, 64)  # powers of 4: a score is divided by their root, which must not round


@dataclass(frozen=True)
class Unit:
    """One unit of a feed-forward part: relu of a sum, added to some places with weights."""

    z: Sum
    adds: tuple[tuple[int, float], ...]


@dataclass
class LayerPlan:
    """One layer: heads with what they bring where, units, and constants added to places."""

    heads: dict[tuple[HeadForm, Pairs], list[tuple[Sum, int]]] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    constants: Counter[int] = field(default_factory=Counter)

    def split(self, size: int) -> list[tuple[HeadForm, Pairs, list[tuple[Sum, int]]]]:
        """Heads that bring at most `size` values each."""
        return [
            (form, pairs, brings[i : i + size])
            for (form, pairs), brings in self.heads.items()
            for i in range(0, len(brings), size)
        ]


def layer_plans(section: Section, place: Place, fresh: bool) -> list[LayerPlan]:
    """The layers of a section; `fresh` if its variables' places are still empty."""
    layers = [LayerPlan() for _ in range(section.layers)]
    direct = {commit.direct: commit for commit in section.commits if commit.direct is not None}
    for op, slot in section.slots.items():
        layer = layers[slot // 2]
        if isinstance(op, Brought):
            layer.heads.setdefault((op.form, op.pairs), []).append((op.value, place(op)))
        else:
            target = place(direct[op].target) if op in direct else place(op)
            _compute(layer, op, target)
    for op, slot in section.cleared.items():
        _clear(layers[slot // 2], op, place(op))
    for commit in section.commits:
        last = layers[-1]
        if commit.direct is None:
            low = commit.target.domain.low
            last.units.append(Unit(commit.value.plus(Sum((), -low)), ((place(commit.target), 1.0),)))
            last.constants[place(commit.target)] += low  # type: ignore[assignment]
        if not fresh:
            _clear(last, commit.target, place(commit.target))
    return layers


def _clear(layer: LayerPlan, op: LayerOp, place: int) -> None:
    low = op.domain.low
    layer.units.append(Unit(Sum(((1.0, op),), -low), ((place, -1.0),)))
    layer.constants[place] -= low  # type: ignore[assignment]


def _compute(layer: LayerPlan, op: LayerOp, target: int) -> None:
    if isinstance(op, Steps):
        far, near = op.ramp
        slope = 1.0 / (far - near)
        for threshold, jump in op.jumps:
            for offset, sign in ((far, 1.0), (near, -1.0)):
                shifted = Sum().plus(op.z, slope).plus(Sum((), slope * (offset - threshold)))
                layer.units.append(Unit(shifted, ((target, sign * jump),)))
        layer.constants[target] += op.base  # type: ignore[assignment]
        return
    assert isinstance(op, Mux)
    for way in op.ways:
        missed = Sum()  # how many flags are not as they must be
        for flag, wanted in way.flags:
            missed = missed.plus(Sum((), 1.0).plus(flag, -1.0) if wanted else flag)
        if way.high > way.low:
            passing = way.value.plus(Sum((), -way.low)).plus(missed, way.low - way.high)
            layer.units.append(Unit(passing, ((target, 1.0),)))
        if way.low:
            layer.units.append(Unit(Sum((), 1.0).plus(missed, -1.0), ((target, way.low),)))


@dataclass(frozen=True)
class HeadLayout:
    """Which heads of a section's layers have which band: banded ones, those that see all, running ones."""

    bands: tuple[int, ...]
    everywhere: int
    running: int

    @classmethod
    def of(cls, layers: list[LayerPlan], size: int) -> HeadLayout:
        """As many of each as the layer that needs most."""
        most: Counter[tuple[bool, int]] = Counter()
        for layer in layers:
            most |= Counter((form.running, form.band) for form, _, _ in layer.split(size))
        bands = tuple(band for (run, band), n in sorted(most.items()) for _ in range(n) if band and not run)
        return cls(bands, most[False, 0], most[True, 0])

    @property
    def heads(self) -> int:
        """How many there are."""
        return len(self.bands) + self.everywhere + self.running

    def padded(self, heads: int) -> HeadLayout:
        """With idle heads, which see only their own position, up to this number."""
        return HeadLayout(self.bands + (1,) * (heads - self.heads), self.everywhere, self.running)

    def slots(self, form: HeadForm) -> list[int]:
        """The heads that have this form."""
        if form.running:
            first = len(self.bands) + self.everywhere
            return list(range(first, first + self.running))
        if not form.band:
            return list(range(len(self.bands), len(self.bands) + self.everywhere))
        return [i for i, band in enumerate(self.bands) if band == form.band]


def head_size(layers: list[LayerPlan]) -> int:
    """The smallest head size with an entry for every product that a score is made of."""
    most = max([len(pairs) for layer in layers for _, pairs in layer.heads] or [1])
    return next(size for size in HEAD_SIZES if size >= most)


def matrices(
    layer: LayerPlan, layout: HeadLayout, width: int, size: int, hidden: int, place: Place
) -> dict[str, np.ndarray]:
    """The weights of a layer by name."""
    out = {
        "qkv.weight": np.zeros((width, 3 * width)),
        "qkv.bias": np.zeros(3 * width),
        "out.weight": np.zeros((width, width)),
        "up.weight": np.zeros((width, hidden)),
        "up.bias": np.zeros(hidden),
        "down.weight": np.zeros((hidden, width)),
        "down.bias": np.zeros(width),
    }

    def put(total: Sum, matrix: str, column: int, scale: float = 1.0) -> None:
        for weight, op in total.terms:
            out[f"{matrix}.weight"][place(op), column] += scale * weight
        out[f"{matrix}.bias"][column] += scale * total.constant

    free = {form: layout.slots(form) for form, _, _ in layer.split(size)}
    taken: set[int] = set()
    for form, pairs, brings in layer.split(size):
        head = next(slot for slot in free[form] if slot not in taken)
        taken.add(head)
        for i, (query, key) in enumerate(pairs):
            put(query, "qkv", head * size + i, form.scale)
            put(key, "qkv", width + head * size + i)
        for i, (value, target) in enumerate(brings):
            put(value, "qkv", 2 * width + head * size + i)
            out["out.weight"][head * size + i, target] += 1.0
    for i, unit in enumerate(layer.units):
        put(unit.z, "up", i)
        for target, weight in unit.adds:
            out["down.weight"][i, target] += weight
    for target, constant in layer.constants.items():
        out["down.bias"][target] += constant
    return out


# --- bits ----------------------------------------------------------------------------------------------------
MOST_BITS = 53.0  # of a float64
STEP_BITS = 6.0  # a threshold's half-step is 1/4: an error must stay far below 1
LEAD_BITS = -5.0  # the best score leads by 2^13: an error of 2^5 changes nothing


@dataclass(frozen=True)
class Reach:
    """The largest absolute value of every entry of the state, and which entries may hold a mean."""

    largest: Array  # [D]
    mean: Array  # [D], boolean


def bits(config: ModelConfig, weights: dict[str, Array], reach: Reach) -> float:
    """The most bits that any sum in any layer needs."""
    names = sorted({name.rsplit(".", 2)[0] for name in weights if name.endswith("qkv.weight")})
    return max(_layer_bits(config, {n: weights[f"{name}.{n}"] for n in _PARTS}, reach) for name in names)


_PARTS = ("qkv.weight", "qkv.bias", "up.weight", "up.bias", "down.weight", "down.bias")


def _layer_bits(config: ModelConfig, layer: dict[str, Array], reach: Reach) -> float:
    width, size = config.width, config.head_size
    qkv = _columns(layer["qkv.weight"], layer["qkv.bias"], reach)
    most = max(column.bits for column in qkv)
    for head in range(config.heads):
        at = range(head * size, (head + 1) * size)
        products = [(qkv[i], qkv[width + i]) for i in at]
        total = sum(query.largest * key.largest for query, key in products)
        rounded = any(query.rounded or key.rounded for query, key in products)
        finest = min((q.finest * k.finest for q, k in products if q.largest and k.largest), default=1.0)
        most = max(most, _needed(total, finest, LEAD_BITS if rounded else None))
    units = _columns(layer["up.weight"], layer["up.bias"], reach)
    for target in np.flatnonzero(np.abs(layer["down.weight"]).sum(0)):
        used = np.flatnonzero(layer["down.weight"][:, target])
        column = layer["down.weight"][used, target]
        total = sum(abs(w) * units[i].largest for i, w in zip(used, column, strict=True))
        rounded = any(units[i].rounded for i in used)
        steps = _lowest_bit(column)
        finest = min(units[i].finest * step for i, step in zip(used, steps, strict=True))
        most = max(most, _needed(float(total), float(finest), STEP_BITS if rounded else None))
    return most


@dataclass(frozen=True)
class _Column:
    """One weighted sum: the largest it can be, the finest step of its terms, whether a mean is in it."""

    largest: float
    finest: float
    rounded: bool

    @property
    def bits(self) -> float:
        return 0.0 if self.rounded else _needed(self.largest, self.finest, None)


def _columns(matrix: Array, bias: Array, reach: Reach) -> list[_Column]:
    largest = np.abs(matrix).T @ reach.largest + np.abs(bias)
    rounded = (np.abs(matrix).T @ reach.mean.astype(float)) > 0
    finest = _lowest_bit(np.concatenate([matrix, bias[None]])).min(axis=0)
    return [
        _Column(*entry) for entry in zip(largest.tolist(), finest.tolist(), rounded.tolist(), strict=True)
    ]


def _lowest_bit(weights: Array) -> Array:
    """The largest power of two that each weight is a whole multiple of; far above 1 for a weight of 0."""
    mantissa, exponent = np.frexp(weights)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    return np.where(whole == 0, 2.0**60, (whole & -whole) * 2.0 ** (exponent - 53))


def _needed(total: float, finest: float, spare: float | None) -> float:
    """Bits of an exact sum or, with `spare`, of one whose rounding error must stay that far below 1."""
    return math.log2(max(total, 1.0) / finest) if spare is None else math.log2(max(total, 1.0)) + spare


# --- schedule ------------------------------------------------------------------------------------------------
# What happens in which layer, and where in the state each number stands.
#
# Slots are counted through a section (the layers before the loop, or the block): attention of layer i is slot 2i, its
# feed-forward part slot 2i + 1. Everything is done as early as it can be; the variables change in the last slot, all
# at once. A number that is needed no more is taken out of the state by the next feed-forward part, and its place
# is given to another.


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
