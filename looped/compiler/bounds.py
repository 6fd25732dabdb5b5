"""How many bits the sums of a compiled model need: from its weights, and from what each entry of its state can hold.

All entries are integers, except for means. A sum of integers times weights is exact as long as the largest it can
become, in units of the finest step its terms have, fits the 53 bits of a float64. What is made of a mean carries a
rounding error instead, which must stay far below what would change a result: half a step of a threshold, or the
lead that the best score has over the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from looped.compiler.nodes import Array
from looped.model.config import ModelConfig

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
