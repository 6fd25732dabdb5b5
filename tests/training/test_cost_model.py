"""The cost model against what was measured, against what is allocated, and against itself."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields, replace

import pytest
import torch

from looped.errors import InputError
from looped.fast.engine import Engine
from looped.fast.fused import FusedLoop
from looped.fast.packing import Packing
from looped.serial import override
from looped.training import cost, curriculum, recipes
from looped.training.config import TrainConfig
from looped.training.cost import DEVICES, RATES, Rates, Way
from looped.training.recipes import make


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
PACKED = ("padding_loss=own",)

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


def fitted(by: Way, left_out: Measured | None = None) -> Rates:
    """The rates that come nearest to the measured steps of one way."""
    steps = [one for one in STEPS if one.by == by and one != left_out]
    works = [cost.of_stage(one.config, one.config.max_length, by) for one in steps]
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


def predicted_ms(one: Measured, rates: Rates) -> float:
    """Milliseconds a gradient step and seed."""
    step = cost.of_stage(one.config, one.config.max_length, one.by)
    return rates.seconds(one.seeds, step) * 1e3 / one.seeds


@pytest.mark.parametrize("by", ["fused", "stepwise", "cpu"])
def test_the_rates_are_those_that_come_nearest_to_the_measured_steps(by: Way) -> None:
    assert astuple(RATES[by]) == pytest.approx(astuple(fitted(by)), rel=1e-4)


@pytest.mark.parametrize("one", STEPS, ids=lambda one: f"{one.by} {one.task} {one.seeds}")
def test_every_measured_step_is_met(one: Measured) -> None:
    assert predicted_ms(one, RATES[one.by]) == pytest.approx(one.ms, rel=0.10)


@pytest.mark.parametrize(
    "left_out", [one for one in STEPS if (one.by, one.seeds) == ("fused", 5)], ids=lambda one: one.task
)
def test_a_step_that_the_fit_has_not_seen_is_met_too(left_out: Measured) -> None:
    assert predicted_ms(left_out, fitted(left_out.by, left_out)) == pytest.approx(left_out.ms, rel=0.25)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.task)
def test_every_measured_run_is_met(run: MeasuredRun) -> None:
    assert cost.estimate(run.config, DEVICES["h200"]).seconds == pytest.approx(run.seconds, rel=0.25)


@pytest.mark.parametrize("padding_loss", ["batch", "own"])
def test_the_tape_is_what_the_fused_loop_allocates(tiny, padding_loss: str) -> None:
    sizes = {"layers": 2, "width": 32}
    config = tiny("addition", seeds=(0, 1, 2), max_length=5, batch=8, model=sizes, padding_loss=padding_loss)
    engine = Engine(config)
    stage = engine.stage(5)
    assert stage.plan is not None
    assert Packing(stage.computed).even == (padding_loss == "batch")
    loop = FusedLoop(
        engine.model, 3, stage.plan, Packing(stage.computed), torch.empty(0, dtype=torch.bfloat16)
    )
    buffers = [getattr(tape, f.name) for tape in loop.tapes for f in fields(tape)] + [
        loop.normal,
        loop.normal_rstd,
    ]
    assert sum(buffer.nbytes for buffer in buffers) == cost.of_stage(config, 5, "fused").tape


def saved_bytes(engine: Engine) -> int:
    """What autograd and the loop keep during one gradient step, at most."""
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        engine.step()
    return sum(kept.values())


def test_autograd_keeps_about_as_much() -> None:
    config = override(
        make("copy", "fop-loop-adaptive", "quick", (0, 1)), ["max_length=6", "start_length=6", "model.bands="]
    )
    assert saved_bytes(Engine(config)) == pytest.approx(cost.of_stage(config, 6, "cpu").tape, rel=0.25)


def test_recomputing_trades_memory_for_operations() -> None:
    plain = make("copy", "fop-loop-adaptive", "fast", (0,))
    kept = cost.of_stage(plain, 19, "stepwise")
    again = cost.of_stage(override(plain, ["checkpointing=true"]), 19, "stepwise")
    cut = cost.of_stage(override(plain, ["backprop=5"]), 19, "stepwise")
    assert again.tape < kept.tape / 5
    assert again.flops == pytest.approx(kept.flops * 4 / 3)
    assert cut.flops < again.flops
    assert cost.way(plain, False, 19) == "fused"
    assert cost.way(override(plain, ["checkpointing=true"]), False, 19) == "stepwise"
    assert cost.way(plain, False, 100) == "stepwise", "rows of 204 positions are too long for the kernels"


def test_operations_are_twice_the_products(tiny) -> None:
    """Counted by torch itself, forward, at one stage of one seed."""
    from torch.utils.flop_counter import FlopCounterMode

    config = tiny("copy", seeds=(0,), max_length=4, start_length=4, batch=8, model={"width": 64, "layers": 2})
    engine = Engine(config)
    with FlopCounterMode(display=False) as counter:
        engine.step()
    assert cost.of_stage(config, 4, "cpu").flops == pytest.approx(counter.get_total_flops(), rel=0.10)


def test_long_curricula_are_read_off_a_few_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    config = override(make("copy", "fop-loop-adaptive", "fast", (0,)), ["max_length=60", "interval=10"])
    few = cost.estimate(config, DEVICES["h200"])
    monkeypatch.setattr(cost, "MOST_STAGES", 60)
    every = cost.estimate(config, DEVICES["h200"])
    assert few.seconds == pytest.approx(every.seconds, rel=0.01)
    assert few.flops == pytest.approx(every.flops, rel=0.01)


def test_a_run_is_the_sum_of_its_gradient_steps(tiny) -> None:
    config = tiny("copy", steps=25, interval=10, max_length=4)
    fixed = cost.device("tflops=1")
    steps = [
        cost.of_stage(config, curriculum.max_length(config, step), "fused").flops
        for step in range(config.steps)
    ]
    found = cost.estimate(config, fixed)
    assert found.flops == pytest.approx(sum(steps))
    assert found.seconds == pytest.approx(sum(steps) / 1e12)


def test_what_does_not_fit_is_said() -> None:
    config = override(
        make("copy", "fop-loop-adaptive", "fast", (0,)), ["max_length=1000", "start_length=1000", "batch=64"]
    )
    assert not cost.estimate(config, DEVICES["h200"]).fits
    recomputed = cost.estimate(override(config, ["checkpointing=true"]), DEVICES["h200"])
    assert recomputed.fits
    assert recomputed.row_size == 2004
    assert recomputed.loop_steps == 1000


def test_in_a_graph_independent_draws_have_seats_to_spare() -> None:
    paper = make("parity", "fop-loop-adaptive", "paper", (0,))
    capacity = sum(curriculum.row_capacity(paper, 20))
    assert cost.of_stage(paper, 20, "fused").positions == capacity * 22 < 0.8 * 64 * 20 * 22
    assert cost.of_stage(paper, 20, "cpu").positions < 0.6 * 64 * 20 * 22


@pytest.mark.parametrize(
    "name", ["", "a100", "tflops", "tflops=", "tflops=x", "tflops=0", "tflops=-1", "tflops=nan"]
)
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="the devices are h200, cpu and tflops=NUMBER"):
        cost.device(name)
