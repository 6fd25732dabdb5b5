"""What one gradient step of a stage computes, moves and keeps, counted from the configuration. Knows no device's speed.

A gradient step computes R = Σ over loop steps and rows still in the loop of a row's positions, a seed, in
each of the block's layers: 24·width² operations a position and layer for the paper's block, once forward and twice
backward, and what attention adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from looped import methods, tasks
from looped.model.weights import Layout
from looped.training import curriculum
from looped.training.config import TrainConfig

Way = Literal["fused", "stepwise", "cpu"]  # fused.py on CUDA, backprop.py on CUDA, backprop.py on a CPU
LONGEST_FUSED = 128  # positions of a row that the hand-written kernels take


@dataclass(frozen=True)
class Work:
    """One gradient step of all seeds."""

    positions: int  # R, a seed
    layer_steps: int  # layers × loop steps, which follow one another
    flops: float  # operations of matrices and attention
    bytes: float  # moved between memory and processors, roughly
    tape: float  # bytes kept from forward to backward


def way(config: TrainConfig, cpu: bool, longest: int) -> Way:
    """Which of its ways the engine takes at a stage."""
    if cpu:
        return "cpu"
    fits = config.model.positions not in ("rotary", "alibi") and row_size(config, longest) <= LONGEST_FUSED
    fused = fits and config.model.ordinary and not (recomputes(config) or config.whole)
    return "fused" if fused else "stepwise"


def recomputes(config: TrainConfig) -> bool:
    """Whether backward computes a loop step again instead of keeping what it needs."""
    return config.checkpointing or config.backprop > 0


def row_size(config: TrainConfig, longest: int) -> int:
    """Positions of a row at a stage."""
    return tasks.get(config.task).row_size(longest) + methods.get(config.method).pause


def of_stage(config: TrainConfig, longest: int, by: Way) -> Work:
    """The work at the stage whose maximum length is `longest`."""
    model, seeds = config.model, len(config.seeds)
    split = curriculum.strata(config, longest)
    upper, sizes = split.upper, split.size
    if not config.packs:
        sizes = (max(sizes),) * len(sizes)
    if config.lengths == "iid" and by != "cpu":
        upper = curriculum.row_capacity(config, longest)
    rows = list(zip(sizes, upper, strict=True))
    positions, d, e = sum(size * t for size, t in rows), model.width, model.expansion
    near = sum(size * min(t, config.backprop) for size, t in rows) if config.backprop else positions
    passes = 1 + near / positions * (3 if recomputes(config) else 2)
    pairs = sum(size * t * _seen(config, size) for size, t in rows)
    forward = seeds * model.layers * (positions * 2 * d * d * (4 + 2 * e) + 4 * d * pairs)
    # Reads and writes of the sixteen kernels of a layer and step, in numbers of the width: 20 + 4e forward,
    # 23 + 5e backward, 13 + 3e for the gradients of the weights.
    moved = seeds * positions * model.layers * d * (56 + 12 * e) * _size(config, by)
    tape = seeds * _tape(config, positions, sum(sizes), by)
    return Work(positions, model.layers * upper[0], forward * passes, moved * passes / 3, tape)


def _seen(config: TrainConfig, size: int) -> float:
    """Positions that one looks at in a row, on average over positions and heads."""
    return sum(min(band or size / 2, size / 2) for band in config.model.head_bands) / config.model.heads


def _size(config: TrainConfig, by: Way) -> int:
    """Bytes of a number in a product."""
    narrow = config.products == "bf16" or (config.products == "auto" and by != "cpu")
    return 2 if narrow else 4


def _tape(config: TrainConfig, everything: int, at_once: int, by: Way) -> float:
    """Bytes that one seed keeps from forward to backward.

    The fused way keeps 11 + 3·expansion numbers of the width a position and layer (inputs of four products, gradients
    of their outputs), two reciprocal deviations, and each step's state in fp32. Autograd keeps about as much. Where
    steps are recomputed, only their states are kept, and one step at a time in full: `at_once` positions of
    `everything` over all steps.
    """
    model = config.model
    number = _size(config, by)
    layers = model.layers * ((11 + 3 * model.expansion) * model.width * number + 8)
    state = 4 * model.width + 4
    if not recomputes(config):
        return float(everything * (layers + state))
    return float(everything * state + at_once * (layers + state))


def weights_bytes(config: TrainConfig) -> float:
    """Bytes of all that is as large as the weights: see `Engine`, `Moments`, `GradientStore` and `Watch`."""
    fp32 = 7 + bool(
        config.ema
    )  # weights, two moments, last good, folded, gradients of folded and flat; average
    return len(config.seeds) * Layout(config.model).parameters * (4.0 * fp32 + 2)
