"""What a run costs: the work of every stage of its curriculum at a device's rates, and the time that is left.

A gradient step computes, for each seed and in each layer of the block, R positions: the sum over loop steps of the
positions of all rows still in the loop. Each costs 24·width² operations for the paper's block, once forward and twice
backward, and what attention adds.

    time of a step = step + seeds · seed + layers · T · layer + operations / rate + bytes moved / bandwidth

On the H200 `step`, `seed`, `layer` and the bandwidth are fitted to measured steps (tests/training/test_cost_model.py),
and the rate is that of large products: at one width the two cannot be told apart. On a CPU both are fitted.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from looped import methods, tasks
from looped.errors import InputError
from looped.model.weights import Layout
from looped.training import curriculum
from looped.training.config import TrainConfig, replica_runs

MOST_STAGES = 24  # stages that are worked out; further ones lie on straight lines between these
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
    layers = model.layers * ((11 + 3 * model.expansion) * model.width * _size(config, by) + 8)
    state = 4 * model.width + 4
    if not recomputes(config):
        return float(everything * (layers + state))
    return float(everything * state + at_once * (layers + state))


def weights_bytes(config: TrainConfig) -> float:
    """Bytes of all that is as large as the weights: see `Engine`, `Moments`, `GradientStore` and `Watch`."""
    # Weights, two moments, last good, folded, gradients of folded and flat; average.
    fp32 = 7 + bool(config.ema)
    return len(config.seeds) * Layout(config.model).parameters * (4.0 * fp32 + 2)


# --- devices -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """How fast one way of computing is on one device."""

    step_s: float  # a gradient step, whatever it computes
    seed_s: float  # a seed: its data are drawn alone
    layer_s: float  # a layer at a loop step: its kernels are started one by one
    flops: float  # operations a second
    bandwidth: float  # bytes a second; infinite where `flops` is what a whole step reaches

    def seconds(self, seeds: int, step: Work) -> float:
        """The time of one gradient step."""
        started = self.step_s + seeds * self.seed_s + step.layer_steps * self.layer_s
        return started + step.flops / self.flops + step.bytes / self.bandwidth


# One NVIDIA H200 (the whole step in one CUDA graph) and one core of a server's CPU.
RATES: dict[Way, Rates] = {
    "fused": Rates(9.98142e-4, 1.52281e-4, 3.40973e-5, 790e12, 3.85573e12),
    "stepwise": Rates(1.796739e-3, 2.80677e-4, 1.123809e-4, 790e12, 2.215843e12),
    "cpu": Rates(0.0, 0.0, 0.0, 8.665727e10, 5.534786e9),
}


@dataclass(frozen=True)
class Device:
    """Where a run is to be costed."""

    name: str
    cpu: bool
    memory: float  # bytes; infinite if unknown
    stage_s: float  # to prepare a stage: kernels, a graph, its share of evaluations and reports
    origin: str  # where the numbers come from
    rates: Mapping[Way, Rates] = field(default_factory=lambda: RATES)


DEVICES = {
    "h200": Device(
        "h200", False, 139 * 2.0**30, 0.85,
        "fitted to gradient steps measured on one NVIDIA H200, large products taken at 790 TFLOP/s; "
        "0.85 s a stage is what whole runs took beyond their steps",
    ),
    "cpu": Device(
        "cpu", True, math.inf, 0.5,
        "fitted to gradient steps measured on one core of a server's CPU in fp32; other CPUs differ by several times",
    ),
}  # fmt: skip


def device(name: str) -> Device:
    """`h200`, `cpu`, or `tflops=100` for a device of which only the rate of a whole step is known."""
    if name in DEVICES:
        return DEVICES[name]
    kind, _, text = name.partition("=")
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if kind != "tflops" or not 0 < rate < 1e9:
        raise InputError(f"unknown device {name[:40]!r}; the devices are h200, cpu and tflops=NUMBER")
    rates = dict.fromkeys(RATES, Rates(0.0, 0.0, 0.0, rate * 1e12, math.inf))
    return Device(name, False, math.inf, 0.0, f"{rate:g} TFLOP/s assumed for whole gradient steps", rates)


# --- whole runs --------------------------------------------------------------------------------------------


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
    """The cost of a whole run; of a run of replicas theirs, without judging them, and what follows the choice."""
    if config.replicas > 1:
        runs = [estimate(part, on) for part in replica_runs(config)]
        if config.refine:
            later = config.steps - config.selected_at
            refined = replace(config, replicas=1, start_length=config.max_length, steps=later)
            runs.append(estimate(refined, on))
        total = {name: sum(getattr(run, name) for run in runs) for name in ("flops", "seconds")}
        return replace(runs[0], **total, fits=all(run.fits for run in runs))
    first, last = (curriculum.max_length(config, step) for step in (0, config.steps - 1))
    stages = range(first, last + 1)
    chosen = {stages[round(i * (len(stages) - 1) / (MOST_STAGES - 1))] for i in range(MOST_STAGES)}
    known = {n: _step(config, n, on) for n in sorted(chosen)}
    counts = [(config.stage_end(n) if n < last else config.steps) - config.stage_end(n - 1) for n in stages]
    flops, seconds = (
        sum(map(operator.mul, counts, np.interp(stages, list(known), each).tolist()))
        for each in zip(*known.values(), strict=True)
    )
    seconds += on.stage_s * len(stages)
    by = way(config, on.cpu, last)
    final, weights = of_stage(config, last, by), weights_bytes(config)
    return Cost(
        Layout(config.model).parameters, flops, seconds, *known[last], weights, final.tape,
        row_size(config, last), final.layer_steps // config.model.layers, by,
        weights + final.tape <= on.memory,
    )  # fmt: skip


def _step(config: TrainConfig, longest: int, on: Device) -> tuple[float, float]:
    """Operations and seconds of a gradient step at a stage."""
    by = way(config, on.cpu, longest)
    step = of_stage(config, longest, by)
    return step.flops, on.rates[by].seconds(len(config.seeds), step)


class Clock:
    """How long the rest will take: a step costs something whatever it computes, and more as rows grow and loop longer.

    The two rates are fitted to all reports, late ones counting more. While only short problems have been seen they
    cannot be told apart: then the fixed part is taken to be worth `GUESS` of what a step at the full length computes.
    """

    GUESS = 0.25
    TRUST = 0.1  # in the guess, of that in a report
    FADE = 0.9  # what a report counts for at the next one

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self._cost: dict[int, int] = {}  # of a gradient step, by stage
        self._square = torch.zeros(2, 2, dtype=torch.float64)  # of (1, work) over the seconds of a step
        self._sum = torch.zeros(2, dtype=torch.float64)
        self._step_s = 0.0  # of the last report

    def work(self, first: int, last: int) -> float:
        """What the gradient steps from `first` up to `last` compute, in units of its own."""
        total = 0.0
        while first < last:
            longest = curriculum.max_length(self.config, first)
            ends = longest < self.config.max_length
            until = min(last, self.config.stage_end(longest)) if ends else last
            total += self._step(longest) * (until - first)
            first = until
        return total

    def _step(self, longest: int) -> int:
        if longest not in self._cost:
            self._cost[longest] = of_stage(self.config, longest, "cpu").positions
        return self._cost[longest]

    def saw(self, first: int, last: int, seconds: float) -> None:
        """The steps from `first` up to `last` took so long."""
        if last <= first or seconds <= 0:
            return
        steps = last - first
        self._step_s = seconds / steps
        seen = torch.tensor([1.0, self.work(first, last) / steps], dtype=torch.float64) / self._step_s
        self._square = self.FADE * self._square + torch.outer(seen, seen)
        self._sum = self.FADE * self._sum + seen

    def left(self, step: int) -> float:
        """Seconds from `step` to the end; 0 where nothing was seen."""
        if not self._step_s:
            return 0.0
        guess = torch.tensor([1.0, -self.GUESS * self._step(self.config.max_length)], dtype=torch.float64)
        prior = self.TRUST * torch.outer(guess, guess) / self._step_s**2
        fixed, rate = (float(x) for x in torch.linalg.solve(self._square + prior, self._sum))
        if min(fixed, rate) < 0:  # longer problems seem to cost less, or more than all: one rate has to do
            only = int(fixed < 0)
            one = float(self._sum[only] / self._square[only, only])
            fixed, rate = (0.0, one) if only else (one, 0.0)
        return fixed * (self.config.steps - step) + rate * self.work(step, self.config.steps)
