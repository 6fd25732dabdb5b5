"""Layers as matrices. Knows where everything stands and what a unit or a head can do; no program.

A threshold is two units of a feed-forward part: relu(2z - 2t + 1.5) - relu(2z - 2t + 0.5) is 0 up to t - ¾ and 1
from t - ¼ on, exactly, for every z that is an integer or within a quarter of one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from looped.compiler.nodes import HeadForm
from looped.compiler.schedule import Section
from looped.compiler.solids import Brought, Mux, Solid, Steps, Sum

Pairs = tuple[tuple[Sum, Sum], ...]
Place = Callable[[Solid], int]
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
    for solid, slot in section.slots.items():
        layer = layers[slot // 2]
        if isinstance(solid, Brought):
            layer.heads.setdefault((solid.form, solid.pairs), []).append((solid.value, place(solid)))
        else:
            target = place(direct[solid].target) if solid in direct else place(solid)
            _compute(layer, solid, target)
    for solid, slot in section.cleared.items():
        _clear(layers[slot // 2], solid, place(solid))
    for commit in section.commits:
        last = layers[-1]
        if commit.direct is None:
            low = commit.target.domain.low
            last.units.append(Unit(commit.value.plus(Sum((), -low)), ((place(commit.target), 1.0),)))
            last.constants[place(commit.target)] += low  # type: ignore[assignment]
        if not fresh:
            _clear(last, commit.target, place(commit.target))
    return layers


def _clear(layer: LayerPlan, solid: Solid, place: int) -> None:
    low = solid.domain.low
    layer.units.append(Unit(Sum(((1.0, solid),), -low), ((place, -1.0),)))
    layer.constants[place] -= low  # type: ignore[assignment]


def _compute(layer: LayerPlan, solid: Solid, target: int) -> None:
    if isinstance(solid, Steps):
        far, near = solid.ramp
        slope = 1.0 / (far - near)
        for threshold, jump in solid.jumps:
            for offset, sign in ((far, 1.0), (near, -1.0)):
                shifted = Sum().plus(solid.z, slope).plus(Sum((), slope * (offset - threshold)))
                layer.units.append(Unit(shifted, ((target, sign * jump),)))
        layer.constants[target] += solid.base  # type: ignore[assignment]
        return
    assert isinstance(solid, Mux)
    for way in solid.ways:
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
        for weight, solid in total.terms:
            out[f"{matrix}.weight"][place(solid), column] += scale * weight
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
