"""How fast devices are: measured gradient steps, and the rates that explain them.

    time of a step = step + seeds · seed + layers · T · layer + operations / rate + bytes moved / bandwidth

`step`, `seed` and `layer` are times in which a GPU does little but start kernels. On the H200 these three and the
bandwidth are fitted, and the rate is that of large products: at the one width measured, the two cannot be told apart.
On a CPU, rate and bandwidth are fitted. The fit weighs each error in proportion to its step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch

from looped.errors import InputError
from looped.serial import override
from looped.training import recipes, work
from looped.training.config import TrainConfig
from looped.training.work import Way, Work


@dataclass(frozen=True)
class Measured:
    """A gradient step at the last stage of a curriculum of stratified lengths."""

    by: Way
    task: str
    seeds: int
    ms: float  # a gradient step and seed
    changes: tuple[str, ...] = ()  # to the paper's model and lengths

    @property
    def config(self) -> TrainConfig:
        """What was measured."""
        paper = recipes.make(self.task, "fop-loop-adaptive", "paper", tuple(range(self.seeds)))
        return override(paper, ["lengths=stratified", *self.changes])


SMALL = ("max_length=10", "model.width=64", "model.heads=4", "model.bands=2,2,2,2")
PACKED = ("trailing=own",)

# One NVIDIA H200, the whole step in one CUDA graph: fused at commit 244a32c (results/performance.jsonl), stepwise at
# 12e35f8, when the state was still in bf16 (docs/log.md).
# One core of a server's CPU, in seconds of that core: commit 5f6d1b0.
STEPS = (
    Measured("fused", "parity", 5, 0.73, PACKED),
    Measured("fused", "copy", 5, 1.38, PACKED),
    Measured("fused", "addition", 5, 2.52, PACKED),
    Measured("fused", "binary_sum", 5, 1.13, PACKED),
    Measured("fused", "multiplication", 5, 2.90, PACKED),
    Measured("fused", "unique_set", 5, 1.94, PACKED),
    Measured("fused", "copy", 1, 3.20, PACKED),
    Measured("fused", "copy", 2, 2.09, PACKED),
    Measured("fused", "copy", 4, 1.47, PACKED),
    Measured("fused", "copy", 8, 1.19, PACKED),
    Measured("fused", "copy", 16, 1.06, PACKED),
    Measured("fused", "copy", 32, 1.01, PACKED),
    Measured("stepwise", "parity", 5, 1.55),
    Measured("stepwise", "copy", 5, 3.10),
    Measured("stepwise", "addition", 5, 5.61),
    Measured("stepwise", "binary_sum", 5, 2.56),
    Measured("stepwise", "multiplication", 5, 6.35),
    Measured("stepwise", "unique_set", 5, 4.43),
    Measured("stepwise", "copy", 16, 2.30),
    Measured("cpu", "copy", 1, 147.0, SMALL),
    Measured("cpu", "copy", 4, 141.0, SMALL),
    Measured("cpu", "addition", 1, 305.0, SMALL),
    Measured("cpu", "parity", 5, 35.0, SMALL),
    Measured("cpu", "copy", 1, 4058.0),
)
PRODUCTS = 790e12  # operations a second that large bf16 products reach on an H200


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


@dataclass(frozen=True)
class Device:
    """Where a run is to be costed."""

    name: str
    cpu: bool
    memory: float  # bytes; infinite if unknown
    stage_s: float  # to prepare a stage: kernels, a graph, its share of evaluations and reports
    origin: str  # where the numbers come from

    def rates(self, by: Way) -> Rates:
        """The rates of a way of computing here."""
        if self.name in DEVICES:
            return fitted(by)
        return Rates(0.0, 0.0, 0.0, float(self.name.partition("=")[2]) * 1e12, math.inf)


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
    return Device(name, False, math.inf, 0.0, f"{rate:g} TFLOP/s assumed for whole gradient steps")


@cache
def fitted(by: Way) -> Rates:
    """The rates that come nearest to the measured steps of one way."""
    steps = [one for one in STEPS if one.by == by]
    works = [work.of_stage(one.config, one.config.max_length, by) for one in steps]
    took = [one.ms * one.seeds / 1e3 for one in steps]
    if by == "cpu":
        flop, byte = _fit([[w.flops, w.bytes] for w in works], took, took)
        return Rates(0.0, 0.0, 0.0, 1 / flop, 1 / byte)
    rows = [[1.0, one.seeds, w.layer_steps, w.bytes] for one, w in zip(steps, works, strict=True)]
    rest = [seconds - w.flops / PRODUCTS for seconds, w in zip(took, works, strict=True)]
    step, seed, layer, byte = _fit(rows, rest, took)
    return Rates(step, seed, layer, PRODUCTS, 1 / byte)


def _fit(rows: list[list[float]], seconds: list[float], scale: list[float]) -> list[float]:
    """x with rows·x ≈ seconds, errors counted in shares of `scale`."""
    weight = 1 / torch.tensor(scale, dtype=torch.float64)[:, None]
    a, y = torch.tensor(rows, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)[:, None]
    found: list[float] = torch.linalg.lstsq(a * weight, y * weight).solution[:, 0].tolist()
    assert min(found) > 0, "a fit in which something costs less than nothing explains nothing"
    return found
