"""What a run costs before it is started: operations, memory and time, from its configuration alone.

The work of every stage of the curriculum (`work.py`) at a device's rates (`rates.py`), summed over the run.
Starts nothing on any device.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace

from looped.model.weights import Layout
from looped.training import curriculum, recipes, work
from looped.training.config import TrainConfig
from looped.training.rates import Device
from looped.training.work import Way

MOST_STAGES = 24  # stages that are worked out; further ones lie on straight lines between these


@dataclass(frozen=True)
class MeasuredRun:
    """A whole run on one NVIDIA H200, five seeds side by side, stratified lengths (docs/log.md)."""

    task: str
    steps: int
    interval: int
    seconds: float

    @property
    def config(self) -> TrainConfig:
        """What was run."""
        paper = recipes.make(self.task, "fop-loop-adaptive", "paper", (0, 1, 2, 3, 4))
        return replace(paper, lengths="stratified", steps=self.steps, interval=self.interval)


RUNS = (
    MeasuredRun("parity", 12_000, 240, 65.0),
    MeasuredRun("copy", 12_000, 252, 100.0),
    MeasuredRun("unique_set", 8_000, 200, 98.0),
)


@dataclass(frozen=True)
class Cost:
    """What a run costs on a device; bytes and step at its last stage, all seeds together."""

    parameters: int  # trainable numbers of one seed
    flops: float  # of the whole run
    seconds: float  # of the whole run
    step_flops: float
    step_seconds: float
    weights_bytes: float  # weights, moments, gradients and copies
    tape_bytes: float  # kept from forward to backward
    row_size: int  # positions
    loop_steps: int  # most of a row
    by: Way
    fits: bool  # the device's memory, where known, is enough

    @property
    def memory_bytes(self) -> float:
        """Weights and tape."""
        return self.weights_bytes + self.tape_bytes


def estimate(config: TrainConfig, on: Device) -> Cost:
    """The cost of a whole run."""
    first, last = (curriculum.max_length(config, step) for step in (0, config.steps - 1))
    stages = range(first, last + 1)
    chosen = {stages[round(i * (len(stages) - 1) / (MOST_STAGES - 1))] for i in range(MOST_STAGES)}
    known = {n: _step(config, n, on) for n in sorted(chosen)}
    flops, seconds = 0.0, on.stage_s * len(stages)
    for n in stages:
        count = (config.stage_end(n) if n < last else config.steps) - config.stage_end(n - 1)
        each_flops, each_seconds = _between(known, n)
        flops += count * each_flops
        seconds += count * each_seconds
    by = work.way(config, on.cpu, last)
    final, weights = work.of_stage(config, last, by), work.weights_bytes(config)
    return Cost(
        Layout(config.model).parameters, flops, seconds, *known[last], weights, final.tape,
        work.row_size(config, last), final.layer_steps // config.model.layers, by,
        weights + final.tape <= on.memory,
    )  # fmt: skip


def _step(config: TrainConfig, longest: int, on: Device) -> tuple[float, float]:
    """Operations and seconds of a gradient step at a stage."""
    by = work.way(config, on.cpu, longest)
    step = work.of_stage(config, longest, by)
    return step.flops, on.rates(by).seconds(len(config.seeds), step)


def _between(known: dict[int, tuple[float, float]], n: int) -> tuple[float, float]:
    """The pair at n, on a straight line between the nearest that were worked out."""
    places = list(known)
    i = bisect_right(places, n)
    low, high = places[i - 1], places[min(i, len(places) - 1)]
    share = (n - low) / (high - low) if high > low else 0.0
    (a, b), (c, d) = known[low], known[high]
    return a + share * (c - a), b + share * (d - b)
