"""The cost model against what was measured, against what is allocated, and against itself."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from looped.errors import InputError
from looped.fast.engine import Engine
from looped.fast.fused import FusedLoop
from looped.serial import override
from looped.training import cost, curriculum, rates, work
from looped.training.rates import DEVICES, STEPS, Measured
from looped.training.recipes import make


def predicted_ms(one: Measured) -> float:
    """Milliseconds a gradient step and seed."""
    step = work.of_stage(one.config, one.config.max_length, one.by)
    return rates.fitted(one.by).seconds(one.seeds, step) * 1e3 / one.seeds


@pytest.mark.parametrize("one", STEPS, ids=lambda one: f"{one.by} {one.task} {one.seeds}")
def test_every_measured_step_is_met(one: Measured) -> None:
    assert predicted_ms(one) == pytest.approx(one.ms, rel=0.10)


@pytest.mark.parametrize(
    "left_out", [one for one in STEPS if (one.by, one.seeds) == ("fused", 5)], ids=lambda one: one.task
)
def test_a_step_that_the_fit_has_not_seen_is_met_too(
    left_out: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "STEPS", [one for one in STEPS if one != left_out])
    rates.fitted.cache_clear()
    try:
        assert predicted_ms(left_out) == pytest.approx(left_out.ms, rel=0.25)
    finally:
        rates.fitted.cache_clear()


@pytest.mark.parametrize("run", cost.RUNS, ids=lambda run: run.task)
def test_every_measured_run_is_met(run: cost.MeasuredRun) -> None:
    assert cost.estimate(run.config, DEVICES["h200"]).seconds == pytest.approx(run.seconds, rel=0.25)


@pytest.mark.parametrize("trailing", ["batch", "own"])
def test_the_tape_is_what_the_fused_loop_allocates(tiny, trailing: str) -> None:
    sizes = {"layers": 2, "width": 32}
    config = tiny("addition", seeds=(0, 1, 2), max_length=5, batch=8, model=sizes, trailing=trailing)
    engine = Engine(config)
    stage = engine.stage(5)
    assert stage.plan is not None
    assert stage.packing.even == (trailing == "batch")
    loop = FusedLoop(engine.model, 3, stage.plan, stage.packing, torch.empty(0, dtype=torch.bfloat16))
    buffers = [getattr(tape, f.name) for tape in loop.tapes for f in fields(tape)] + [
        loop.normal,
        loop.normal_rstd,
    ]
    assert sum(buffer.nbytes for buffer in buffers) == work.of_stage(config, 5, "fused").tape


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
    assert saved_bytes(Engine(config)) == pytest.approx(work.of_stage(config, 6, "cpu").tape, rel=0.25)


def test_recomputing_trades_memory_for_operations() -> None:
    plain = make("copy", "fop-loop-adaptive", "fast", (0,))
    kept = work.of_stage(plain, 19, "stepwise")
    again = work.of_stage(override(plain, ["checkpointing=true"]), 19, "stepwise")
    cut = work.of_stage(override(plain, ["backprop=5"]), 19, "stepwise")
    assert again.tape < kept.tape / 5
    assert again.flops == pytest.approx(kept.flops * 4 / 3)
    assert cut.flops < again.flops
    assert work.way(plain, False, 19) == "fused"
    assert work.way(override(plain, ["checkpointing=true"]), False, 19) == "stepwise"
    assert work.way(plain, False, 100) == "stepwise", "rows of 204 positions are too long for the kernels"


def test_operations_are_twice_the_products(tiny) -> None:
    """Counted by torch itself, forward, at one stage of one seed."""
    from torch.utils.flop_counter import FlopCounterMode

    config = tiny("copy", seeds=(0,), max_length=4, start_length=4, batch=8, model={"width": 64, "layers": 2})
    engine = Engine(config)
    with FlopCounterMode(display=False) as counter:
        engine.step()
    assert work.of_stage(config, 4, "cpu").flops == pytest.approx(counter.get_total_flops(), rel=0.10)


def test_long_curricula_are_read_off_a_few_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    config = override(make("copy", "fop-loop-adaptive", "fast", (0,)), ["max_length=60", "interval=10"])
    few = cost.estimate(config, DEVICES["h200"])
    monkeypatch.setattr(cost, "MOST_STAGES", 60)
    every = cost.estimate(config, DEVICES["h200"])
    assert few.seconds == pytest.approx(every.seconds, rel=0.01)
    assert few.flops == pytest.approx(every.flops, rel=0.01)


def test_a_run_is_the_sum_of_its_gradient_steps(tiny) -> None:
    config = tiny("copy", steps=25, interval=10, max_length=4)
    fixed = rates.device("tflops=1")
    steps = [
        work.of_stage(config, curriculum.max_length(config, step), "fused").flops
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
    assert work.of_stage(paper, 20, "fused").positions == capacity * 22 < 0.8 * 64 * 20 * 22
    assert work.of_stage(paper, 20, "cpu").positions < 0.6 * 64 * 20 * 22


@pytest.mark.parametrize(
    "name", ["", "a100", "tflops", "tflops=", "tflops=x", "tflops=0", "tflops=-1", "tflops=nan"]
)
def test_unknown_devices_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="the devices are h200, cpu and tflops=NUMBER"):
        rates.device(name)
