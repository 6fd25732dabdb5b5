"""The loop written out by hand against autograd: the same loss and the same gradients.

Each runs on the plain twins of the kernels (`tests/fast_reference.py`) and on the kernels themselves (`tests/ways.py`).
"""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from ways import CUDA, NEEDS_GPU, cases_and_ways, device_of, ops_of

from looped.batches import Batch
from looped.fast import fused, kernels
from looped.fast.backprop import backpropagate
from looped.fast.engine import Engine
from looped.fast.folding import GradientStore
from looped.fast.fused import FusedLoop
from looped.fast.packing import Packing
from looped.training.config import TrainConfig
from looped.training.recipes import make

CASES = {
    "copy": ("copy", "fop-loop-adaptive", {}),
    "padded": ("copy", "fop-loop-adaptive", {}),
    "bands and sharpened global heads": ("copy", "fop-loop-adaptive", {"bands": (2, 3), "sharpen": True}),
    "two variants": ("multiplication", "fop-loop-adaptive", {}),
    "no injection": ("parity", "fop-loop-adaptive-wo", {}),
    "fixed loops": ("parity", "fop-loop-fixed", {}),
    "next token": ("copy", "ntp-loop", {}),
    "a mark that halts": ("copy", "fop-loop-adaptive", {"halting": "eoq", "positions": "start"}),
    "learned positions": ("copy", "fop-loop-adaptive", {"positions": "learned", "max_positions": 64}),
}


# Of these the interpreter takes minutes, and nothing is in them that is in none of the others.
LONG_LOOPS = ("copy", "next token", "fixed loops", "learned positions")


def config_of(case: str, way: str = "plain") -> TrainConfig:
    task, method, changes = CASES[case]
    config = make(task, method, "fast", (3, 5))
    small = replace(config.model, width=32, heads=4, layers=2, **changes)
    extra, padding_loss = 2 if case == "copy" else 0, "batch" if case == "padded" else "own"
    length, batch = (2, 4) if way == "interpreted" else (6, 12)
    return replace(
        config, model=small, max_length=length, batch=batch, extra=extra, padding_loss=padding_loss
    )


def gradients(
    config: TrainConfig, way: str, precision: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    """Loss and gradients by autograd in fp32, then by hand in the given precision."""
    device = device_of(way)
    engine = Engine(config, device, graphs=False)
    plain = GradientStore(accumulate=False)
    engine.model.linear = plain.linear
    noise = torch.Generator(device).manual_seed(0)
    # Weights that start at 0 would hide a missing bias.
    weights = engine.weights + 0.1 * torch.randn(engine.weights.shape, device=device, generator=noise)
    stage = engine.stage(min(5, config.max_length))
    batch, _ = engine.draw(stage)
    folded = engine.model.prepare(weights)
    assert stage.plan is not None
    leaves = plain.open(folded, torch.float32)
    options = {"growth_clip": config.growth_clip, "halt_cost": 0.1}
    expected = backpropagate(engine.model, leaves, batch, stage.plan, **options)  # padded, whatever may count
    expected_grads = plain.close(leaves)
    leaves = plain.open(folded, precision)
    loop = FusedLoop(
        engine.model, len(config.seeds), stage.plan, Packing(stage.computed), leaves.layers[0].qkv
    )
    loop.ops = ops_of(way)
    got, got_grads = loop.backpropagate(leaves, batch, **options)
    return expected.loss, expected_grads, got.loss, got_grads


@pytest.mark.parametrize(("case", "way"), cases_and_ways(CASES, quick=("no injection", *LONG_LOOPS)))
def test_by_hand_equals_autograd(case: str, way: str) -> None:
    if way == "interpreted" and case in LONG_LOOPS:
        pytest.skip("takes minutes")
    expected_loss, expected, loss, got = gradients(config_of(case, way), way, torch.float32)
    torch.testing.assert_close(loss, expected_loss)
    assert len(expected) == len(got)
    for right, mine in zip(expected, got, strict=True):
        assert right.shape == mine.shape
        assert float((right - mine).norm()) <= 1e-5 * float(right.norm()) + 1e-7


@pytest.mark.parametrize(("case", "way"), cases_and_ways(["a held gradient"], quick=()))
def test_a_gradient_is_held_the_same_both_ways(case: str, way: str) -> None:
    config = replace(config_of("padded" if way == "interpreted" else "copy", way), growth_clip=0.5)
    _, expected, _, got = gradients(config, way, torch.float32)
    for right, mine in zip(expected, got, strict=True):
        assert float((right - mine).norm()) <= 1e-5 * float(right.norm()) + 1e-7
    _, free, _, _ = gradients(replace(config, growth_clip=0.0), way, torch.float32)
    assert any(
        float((one - other).norm()) > 0.01 * float(one.norm()) for one, other in zip(free, got, strict=True)
    )


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_noise_is_the_same_both_ways(device: str) -> None:
    engine = Engine(
        replace(config_of("no injection"), noise=0.3), device, graphs=False, precision=torch.float32
    )
    stage = engine.stage(5)
    batch, _ = engine.draw(stage)
    leaves = GradientStore(accumulate=False).open(engine.model.prepare(engine.weights), torch.float32)
    assert stage.plan is not None
    losses = []
    for way in ("autograd", "by hand"):
        for generator in engine.generators:
            generator.manual_seed(1)
        noise = engine._noise(Packing(stage.computed))
        if way == "autograd":
            losses.append(
                backpropagate(
                    engine.model, leaves, batch, stage.plan, Packing(stage.computed), noise=noise
                ).loss
            )
        else:
            loop = FusedLoop(engine.model, 2, stage.plan, Packing(stage.computed), leaves.layers[0].qkv)
            losses.append(loop.backpropagate(leaves, batch, noise=noise)[0].loss)
    torch.testing.assert_close(losses[0], losses[1])
    quiet = backpropagate(engine.model, leaves, batch, stage.plan).loss
    assert not torch.allclose(losses[0], quiet)


@pytest.mark.parametrize("way", ["plain", CUDA])
def test_bf16_is_close(way: str) -> None:
    expected_loss, expected, loss, got = gradients(config_of("copy"), way, torch.bfloat16)
    torch.testing.assert_close(loss, expected_loss, rtol=0.02, atol=0.0)
    for right, mine in zip(expected, got, strict=True):
        assert mine.dtype == torch.float32
        assert float((right - mine).norm()) <= 0.05 * float(right.norm()) + 1e-4


@NEEDS_GPU
@pytest.mark.parametrize("case", CASES)
def test_graphs_give_what_eager_steps_give(case: str) -> None:
    losses = []
    for graphs in (False, True):
        engine = Engine(config_of(case), "cuda", precision=torch.float32, graphs=graphs)
        losses.append(torch.stack([engine.step().loss.clone() for _ in range(20)]))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "suits"),
    [
        ({}, True),
        ({"width": 512, "heads": 2}, False),  # heads of 256 numbers do not fit the attention kernel's tile
        ({"precision": "float64"}, False),
        ({"positions": "rotary"}, False),
    ],
)
def test_who_goes_this_way(changes: dict[str, object], suits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looped.fast.kernels.attention.available", lambda: True)
    config = config_of("copy")
    config = replace(config, model=replace(config.model, **changes))
    plan = Engine(config).stage(5).plan
    assert fused.suits(config, plan, 20, torch.device("cuda")) == suits
    assert not fused.suits(config, plan, 20, torch.device("cpu"))
    assert not fused.suits(config, plan, kernels.LONGEST + 1, torch.device("cuda"))


@pytest.mark.parametrize(
    "case",
    [
        case if case in ("no injection", "a mark that halts") else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_nothing_waits_for_the_host(case: str) -> None:
    """A graph cannot be captured otherwise; on tensors without values, whatever asks for one raises."""
    engine = Engine(config_of(case))
    stage = engine.stage(5)
    batch, _ = engine.draw(stage)
    assert stage.plan is not None

    def once(flat: torch.Tensor, batch: Batch) -> None:
        weights = GradientStore(accumulate=False).open(engine.model.prepare(flat), torch.float32)
        loop = FusedLoop(engine.model, 2, stage.plan, Packing(stage.computed), weights.layers[0].qkv)
        outcome, grads = loop.backpropagate(weights, batch, halt_cost=0.1)
        assert outcome.loss.shape == (2,)
        assert [g.shape for g in grads] == [w.shape for w in weights.tensors()]

    once(engine.weights, batch)  # makes what follows from the packing alone, and is kept, as warming up does
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        blank = Batch(*(fake.from_tensor(getattr(batch, f.name)) for f in fields(batch)))
        once(fake.from_tensor(engine.weights), blank)
