"""Layers as matrices, and how many bits their sums need. Knows what a unit or a head can do; no program.

All entries of the state are integers, except for means. A sum of integers times weights is exact as long as the
largest it can become, in units of the finest step its terms have, fits the 53 bits of a float64. What is made of a
mean carries a rounding error instead, which must stay far below what would change a result: half a step of a
threshold, or the lead that the best score has over the next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from looped.compiler.graph import RUNNING, Array, HeadForm
from looped.compiler.lower import Brought, Computed, LayerOp, Sum
from looped.model.config import ModelConfig

Scores = tuple[Sum, ...]  # query, key, query, key, …
Place = Callable[[LayerOp], int]
Ops = Container[LayerOp]
HEAD_SIZES = (4, 16, 64)  # powers of 4: a score is divided by their root, which must not round


@dataclass
class LayerPlan:
    """One layer: heads with what they bring where, units, and constants added to places."""

    heads: dict[tuple[HeadForm, Scores], list[tuple[Sum, int]]] = field(default_factory=dict)
    units: list[tuple[Sum, int, float]] = field(default_factory=list)  # relu of a sum, its place, its weight
    constants: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def split(self, size: int) -> list[tuple[HeadForm, Scores, list[tuple[Sum, int]]]]:
        """Heads that bring at most `size` values each."""
        return [
            (form, scores, brings[i : i + size])
            for (form, scores), brings in self.heads.items()
            for i in range(0, len(brings), size)
        ]

    def add(self, value: Sum, low: float, place: int, sign: float) -> None:
        """Add a number that is at least `low` to a place, or take it away."""
        self.units.append((value.plus(-low), place, sign))
        self.constants[place] += sign * low


def layer_plans(section: Section, place: Place, fresh: bool) -> list[LayerPlan]:
    """The layers of a section; `fresh` if its variables' places are still empty."""
    layers = [LayerPlan() for _ in range(section.layers)]
    direct = {commit.direct: commit.target for commit in section.commits}
    for op, slot in section.slots.items():
        layer, target = layers[slot // 2], place(direct.get(op, op))
        if isinstance(op, Brought):
            layer.heads.setdefault((op.form, op.parts[:-1]), []).append((op.parts[-1], target))
        elif isinstance(op, Computed):
            layer.units += [(z, target, weight) for z, weight in op.units]
            layer.constants[target] += op.base
    for op, slot in section.cleared.items():
        layers[slot // 2].add(Sum(((1.0, op),)), op.domain.low, place(op), -1.0)
    for commit in section.commits:
        variable, low = commit.target, commit.target.domain.low
        if commit.direct is None:
            layers[-1].add(commit.value, low, place(variable), 1.0)
        if not fresh:
            layers[-1].add(Sum(((1.0, variable),)), low, place(variable), -1.0)
    return layers


@dataclass(frozen=True)
class HeadLayout:
    """Which heads of a section's layers have which band: banded ones, those that see all, running ones."""

    bands: tuple[int, ...]
    everywhere: int
    running: int

    @classmethod
    def of(cls, layers: list[LayerPlan], size: int) -> HeadLayout:
        """As many of each as the layer that needs most."""
        most: Counter[int] = Counter()
        for layer in layers:
            most |= Counter(form.band for form, _, _ in layer.split(size))
        running, everywhere = most.pop(RUNNING, 0), most.pop(0, 0)
        return cls(tuple(sorted(most.elements())), everywhere, running)

    @property
    def each(self) -> list[int]:
        """The band of every head in order."""
        return [*self.bands, *[0] * self.everywhere, *[RUNNING] * self.running]

    def padded(self, heads: int) -> HeadLayout:
        """With idle heads, which see only their own position, up to this number."""
        return replace(self, bands=self.bands + (1,) * (heads - len(self.each)))


def head_size(layers: list[LayerPlan]) -> int:
    """The smallest head size with an entry for every product that a score is made of."""
    most = max([len(scores) // 2 for layer in layers for _, scores in layer.heads] or [1])
    return next(size for size in HEAD_SIZES if size >= most)


def matrices(
    layer: LayerPlan, layout: HeadLayout, width: int, size: int, hidden: int, place: Place
) -> dict[str, np.ndarray]:
    """The weights of a layer by name."""
    shapes = {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "up": (width, hidden),
        "down": (hidden, width),
    }
    out: dict[str, np.ndarray] = {f"{name}.weight": np.zeros(shape) for name, shape in shapes.items()}
    out |= {f"{name}.bias": np.zeros(shapes[name][1]) for name in ("qkv", "up", "down")}

    def put(total: Sum, matrix: str, column: int, scale: float = 1.0) -> None:
        for weight, op in total.terms:
            out[f"{matrix}.weight"][place(op), column] += scale * weight
        out[f"{matrix}.bias"][column] += scale * total.constant

    free = list(enumerate(layout.each))
    for form, scores, brings in layer.split(size):
        slot = next(slot for slot in free if slot[1] == form.band)
        free.remove(slot)
        first = slot[0] * size
        for i, (query, key) in enumerate(zip(scores[::2], scores[1::2], strict=True)):
            put(query, "qkv", first + i, form.scale)
            put(key, "qkv", width + first + i)
        for i, (value, target) in enumerate(brings):
            put(value, "qkv", 2 * width + first + i)
            out["out.weight"][first + i, target] += 1.0
    for i, (z, target, weight) in enumerate(layer.units):
        put(z, "up", i)
        out["down.weight"][i, target] += weight
    for target, constant in layer.constants.items():
        out["down.bias"][target] += constant
    return out


# --- bits ----------------------------------------------------------------------------------------------------
MOST_BITS = 53.0  # of a float64
STEP_BITS = 6.0  # a threshold's half-step is 1/4: an error must stay far below 1
LEAD_BITS = -5.0  # the best score leads by 2^13: an error of 2^5 changes nothing
NO_STEP = 2.0**60  # of a weight of 0, which asks for no bits


@dataclass(frozen=True)
class Reach:
    """Of several numbers: the largest size, the finest step, and which may hold a mean and its rounding error."""

    largest: Array
    finest: Array
    mean: Array

    def through(self, matrix: Array, bias: Array) -> Reach:
        """The same of weighted sums of these numbers."""
        rows, columns = np.nonzero(matrix)
        finest = _lowest_bit(bias)
        np.minimum.at(finest, columns, self.finest[rows] * _lowest_bit(matrix[rows, columns]))
        sizes = np.abs(matrix).T
        return Reach(sizes @ self.largest + np.abs(bias), finest, (sizes @ self.mean).astype(bool))

    def bits(self, spare: float) -> float:
        """The most bits of an exact sum, or of one whose rounding error must stay that far below 1."""
        largest = np.log2(np.maximum(self.largest, 1.0))
        return float(np.where(self.mean, largest + spare, largest - np.log2(self.finest)).max())


def bits(config: ModelConfig, weights: dict[str, Array], reach: Reach) -> float:
    """The most bits that any sum in any layer needs."""
    names = sorted(name.removesuffix("qkv.weight") for name in weights if name.endswith("qkv.weight"))
    return max(_layer_bits(config, weights, name, reach) for name in names)


def _layer_bits(config: ModelConfig, weights: dict[str, Array], name: str, reach: Reach) -> float:
    qkv = reach.through(weights[f"{name}qkv.weight"], weights[f"{name}qkv.bias"])
    heads = (config.heads, config.head_size)
    query, key = (
        Reach(*(part[at : at + config.width].reshape(heads) for part in (qkv.largest, qkv.finest, qkv.mean)))
        for at in (0, config.width)
    )
    products, steps = query.largest * key.largest, query.finest * key.finest
    finest = np.where(products > 0, steps, np.inf).min(1)
    finest, mean = np.where(products.any(1), finest, 1.0), np.any(query.mean | key.mean, axis=1)
    scores = Reach(products.sum(1), finest, mean)
    units = reach.through(weights[f"{name}up.weight"], weights[f"{name}up.bias"])
    added = units.through(weights[f"{name}down.weight"], np.zeros(config.width))
    return max(qkv.bits(-np.inf), scores.bits(LEAD_BITS), added.bits(STEP_BITS))


def _lowest_bit(weights: Array) -> Array:
    """The largest power of two that each weight is a whole multiple of; far above 1 for a weight of 0."""
    mantissa, exponent = np.frexp(weights)
    whole = np.abs(mantissa * 2.0**53).astype(np.int64)
    return np.where(whole == 0, NO_STEP, (whole & -whole) * 2.0 ** (exponent - 53))


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
    goal_ops = [op for _, value in goals for op in value.ops]
    uses, order = Counter(goal_ops), dict.fromkeys(given)
    for op in [*goal_ops, *kept]:
        _visit(op, uses, order)
    section = Section([Commit(target, value, _direct(value, given, uses, kept)) for target, value in goals])
    _assign_slots(section, [op for op in order if op not in given])
    return section


def _visit(op: LayerOp, uses: Counter[LayerOp], order: dict[LayerOp, None]) -> None:
    """Append what an op needs, then the op, each once; count the uses of each."""
    if op in order:
        return
    for inner in op.needs:
        _visit(inner, uses, order)
    uses.update(set(op.needs))
    order[op] = None


def _direct(value: Sum, given: set[LayerOp], uses: Counter[LayerOp], kept: Ops) -> LayerOp | None:
    match value:
        case Sum(((1, Computed() as op),), 0) if op not in given and op not in kept and uses[op] == 1:
            return op
    return None


def _assign_slots(section: Section, order: list[LayerOp]) -> None:
    def ready(ops: list[LayerOp]) -> int:
        return max([section.slots.get(op, -1) for op in ops], default=-1)

    for op in order:
        section.slots[op] = op.slot_after(ready(op.needs))
    earliest = list(section.slots.values())
    earliest += [ready(commit.value.ops) + 1 for commit in section.commits if commit.direct is None]
    if earliest:
        section.last = max(earliest) + (max(earliest) % 2 == 0)
    section.slots |= {commit.direct: section.last for commit in section.commits if commit.direct is not None}


def allocate(section: Section, order_from: int, stays: set[LayerOp]) -> int:
    """Give a place to every number that does not stay, from `order_from` on; return the first place not used."""
    last_use: dict[LayerOp, int] = defaultdict(lambda: -1)
    for op, slot in section.slots.items():
        last_use |= {inner: max(last_use[inner], slot) for inner in op.needs}
    last_use |= {op: section.last for commit in section.commits for op in commit.value.ops}
    direct = {commit.direct for commit in section.commits}
    free: list[tuple[int, int]] = []  # (place, slot from which on it is free)
    end = order_from
    for op in sorted(section.slots, key=lambda s: section.slots[s]):
        if op in stays or op in direct:
            continue
        born = section.slots[op]
        found = next((entry for entry in free if entry[1] < born), None)
        if found is None:
            place, end = end, end + 1
        else:
            place = found[0]
            free.remove(found)
        used = last_use[op]
        section.places[op] = place
        section.cleared[op] = used if used % 2 else used + 1
        free.append((place, section.cleared[op]))
    return end
