"""Any block with its seeds stacked: the plain engine's gradient steps, and plainly where stacking would change them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from looped import registry
from looped.errors import InputError
from looped.fast import modules, onednn
from looped.fast.engine import Engine
from looped.fast.modules import ModuleEngine
from looped.model.block import Block
from looped.model.config import ModelConfig
from looped.training.curriculum import Stage
from looped.training.engine import TrainingEngine
from looped.training.plain import PlainEngine
from looped.training.trainer import make_engine

BLOCKS = Path(__file__).parents[2] / "docs" / "my_blocks.py"

STEPS = 8


class Gated(nn.Module):
    """A block of nobody's: no attention, a frozen weight, a buffer, a weight that is never used."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mix = nn.Linear(2 * config.width, config.width)
        self.frozen = nn.Parameter(torch.randn(config.width), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.full((config.width,), 0.5))

    def forward(self, h: Tensor) -> Tensor:
        before = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], dim=1)
        return h + torch.tanh(self.mix(torch.cat([h, before], dim=-1))) * self.scale + self.frozen


class Dropping(Block):
    def forward(self, h: Tensor) -> Tensor:
        return super().forward(torch.nn.functional.dropout(h, 0.5))


class Branching(Block):
    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) if float(h.detach().sum()) > 0 else h


class Counting(Block):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, h: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(h)


class HiddenConstant(Block):
    """Each seed draws a constant that is neither parameter nor buffer: stacked, all would have the first seed's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.hidden = torch.randn(config.width)

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h + self.hidden)


class Products(nn.Module):
    """Linear layers in every way: after a norm, two of them, none, changed in place, shared, masked, of a constant."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d = config.width
        self.norm, self.bare = nn.LayerNorm(d), nn.LayerNorm(d, elementwise_affine=False)
        self.one, self.two, self.three = nn.Linear(d, d), nn.Linear(d, d, bias=False), nn.Linear(d, d)
        self.mask = nn.Parameter(torch.rand(d, d))
        self.frozen = nn.Linear(d, d).requires_grad_(False)
        nn.init.normal_(self.norm.weight), nn.init.normal_(self.norm.bias)

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm(h)
        y = self.one(x) + self.two(x) + x
        changed = self.norm(h)
        changed += 0.5
        seen = self.norm(h)
        torch.nn.functional.relu(seen, inplace=True)
        y = y + self.two(changed) + self.three(seen) + self.three(self.bare(h))
        y = y + torch.nn.functional.linear(y, self.three.weight * self.mask, self.one.bias)
        return h + self.one(torch.ones(h.shape[-1])) + self.frozen(torch.tanh(y))


CASES: dict[str, dict[str, object]] = {
    "stratified": {},
    "iid": {"lengths": "iid"},
    "own ends": {"padding_loss": "own"},
    "noise": {"noise": 0.2},
    "noise, iid": {"noise": 0.2, "lengths": "iid"},
    "extra steps": {"extra": 3},
    "average": {"ema": 0.9},
    "two rates": {"lr": (1e-3, 3e-3)},
    "randomised": {"model": {"positions": "randomised", "max_positions": 30}},
    "limited growth, noise, own ends": {"growth_clip": 1.2, "noise": 0.2, "padding_loss": "own"},
    "cut gradients, iid": {"backprop": 2, "lengths": "iid"},
    "randomly cut gradients": {"backprop": 2, "window": "random"},
    "mark, limited growth": {"model": {"halting": "eoq"}, "halt_cost": 0.1, "growth_clip": 1.2},
    "linear start": {"model": {"initialisation": "linear"}},
    "layers before and relay": {"model": {"before": 1, "relay": 3}},
}


@pytest.mark.parametrize("block", [None, Gated])
@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_equal_the_plain_engine(tiny, case: str, block: type[nn.Module] | None) -> None:
    config = tiny(**CASES[case])
    assert modules.trial(config, block=block) is None
    plain, stacked = PlainEngine(config, block=block), ModuleEngine(config, block=block)
    for _ in range(STEPS):
        expected, found = plain.step(), stacked.step()
        torch.testing.assert_close(found.loss, expected.loss, atol=2e-5, rtol=2e-5)
        torch.testing.assert_close(found.norm, expected.norm, atol=2e-4, rtol=2e-3)
        torch.testing.assert_close(found.accuracy, expected.accuracy)
    assert float((plain.weights - stacked.weights).abs().mean()) < 2e-5
    for before, after in zip(plain.generators, stacked.generators, strict=True):
        assert torch.equal(before.get_state(), after.get_state())


@pytest.mark.parametrize("smallest", [onednn.SMALLEST, 1])
@pytest.mark.parametrize("block", [None, Gated, Products])
@pytest.mark.parametrize(
    "case", ["iid", "own ends", "mark, limited growth", "layers before and relay", "randomly cut gradients"]
)
def test_weights_made_ready_once_change_nothing(
    tiny, case: str, block: type[nn.Module] | None, smallest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "SMALLEST", smallest)  # by either library
    config = tiny(**CASES[case])
    plain, stacked = PlainEngine(config, block=block), ModuleEngine(config, block=block)
    stacked.products = True  # in fp32, where the two can be compared closely
    for _ in range(3):
        stage = plain.stage(config.max_length)
        for expected, found in zip(plain.gradients(stage), stacked.gradients(stage), strict=True):
            torch.testing.assert_close(found, expected, atol=2e-6, rtol=2e-4)


@pytest.mark.parametrize(
    ("products", "width", "libraries", "ready"),
    [
        ("fp32", modules.WIDE, 2, True),
        ("fp32", modules.WIDE, 1, False),
        ("fp32", 64, 2, False),
        ("bf16", 64, 1, True),
    ],
)
def test_where_weights_are_made_ready_on_a_cpu(
    tiny, products: str, width: int, libraries: int, ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "available", lambda: libraries == 2)
    assert ModuleEngine(tiny(products=products, model={"width": width})).products == ready


@pytest.mark.parametrize("block", [None, Gated, Products])
def test_gradients_of_bf16_products_are_summed_in_fp32(tiny, block: type[nn.Module] | None) -> None:
    config = tiny(model={"width": 64, "heads": 2})
    engines = [
        kind(replace(config, products=products), block=block)  # type: ignore[arg-type]
        for kind, products in ((PlainEngine, "fp32"), (PlainEngine, "bf16"), (ModuleEngine, "bf16"))
    ]
    exact, plain, stacked = (engine.gradients(engine.stage(config.max_length))[1] for engine in engines)
    assert stacked.dtype == torch.float32
    off, as_plain = ((grad - exact).norm() / exact.norm() for grad in (stacked, plain))
    assert 0 < off < 1.2 * as_plain


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Dropping, "random"),
        (Branching, "stacked, the block fails"),
        (Counting, "changes its buffers"),
        (HiddenConstant, "not the plain engine"),
    ],
)
def test_what_stacking_would_change_is_trained_plainly(tiny, block, reason: str, capsys) -> None:
    config = tiny()
    assert reason in str(modules.trial(config, block=block))
    engine = make_engine(config, block=block)
    assert type(engine) is PlainEngine
    assert "a seed at a time" in capsys.readouterr().err


def test_what_it_does_not_know_is_named(tiny) -> None:
    assert "checkpointing" in str(modules.trial(tiny(checkpointing=True), block=Gated))


def test_a_block_of_several_seeds_is_stacked_and_of_one_seed_plain(tiny, capsys) -> None:
    assert type(make_engine(tiny(), block=Gated)) is ModuleEngine
    assert "with its seeds stacked" in capsys.readouterr().err
    assert type(make_engine(replace(tiny(), seeds=(3,)), block=Gated)) is PlainEngine
    assert type(make_engine(tiny(), block=Gated, backend="plain")) is PlainEngine


class FakeGraph:
    """A CUDA graph for a machine without: the captured body has run once, so a replay is left out the first time."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        self.generators.append(generator)

    def replay(self) -> None:
        """Nothing: see above."""


@pytest.mark.parametrize("kind", [Engine, ModuleEngine])
def test_the_run_before_a_recording_is_undone(tiny, kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "current_stream", torch.cuda.Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "graph", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    config = tiny(ema=0.9)
    recorded, eager = kind(config, graphs=True), kind(config, graphs=False)
    assert torch.equal(recorded.step().loss, eager.step().loss)
    assert torch.equal(recorded.weights, eager.weights)
    assert recorded.moments.average is not None
    assert torch.equal(recorded.moments.average, eager.moments.average)
    assert recorded._graph.generators == recorded.generators
    for one, other in zip(recorded.generators, eager.generators, strict=True):
        assert torch.equal(one.get_state(), other.get_state())


@pytest.mark.parametrize("block", [Block, None, Products])
@pytest.mark.parametrize("case", CASES)
def test_a_recorded_step_asks_the_host_for_nothing(tiny, case: str, block: type[nn.Module] | None) -> None:
    """A graph cannot be captured otherwise; on tensors without values, whatever asks for one raises."""
    # Block: by the fast engine; None: the same as any other block.
    make = Engine if block is Block else partial(ModuleEngine, block=block)
    engine = make(tiny(products="bf16", **CASES[case]), graphs=True)
    engine.products = True  # as on CUDA
    stage = engine.stage(engine.config.max_length)
    assert stage.plan is not None
    before, weights = engine.gradients(stage), engine.weights.clone()  # keeps what follows from shapes alone
    with FakeTensorMode(allow_non_fake_inputs=True):
        readings = TrainingEngine._carry_out(engine, stage)
    assert readings.loss.shape == before[0].shape
    assert torch.equal(engine.weights, weights), "nothing was computed"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lengths", ["stratified", "iid"])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_recorded_step_is_the_step(tiny, lengths: str, noise: float) -> None:
    config = tiny(lengths=lengths, products="fp32", noise=noise)
    assert ModuleEngine(config, "cuda", block=Gated).graphs == (noise == 0)
    recorded = ModuleEngine(config, "cuda", block=Gated, graphs=True)
    eager = ModuleEngine(config, "cuda", block=Gated, graphs=False)
    if lengths == "iid":  # a recorded step reserves loop steps for each row
        eager.stage = recorded.stage  # type: ignore[method-assign]
    for _ in range(STEPS):
        torch.testing.assert_close(recorded.step().loss, eager.step().loss, atol=1e-4, rtol=1e-4)


def test_a_fast_engine_with_another_gradient_does_not_train(tiny, monkeypatch, capsys) -> None:
    right = Engine.gradients

    def wrong(self: Engine, stage: Stage) -> tuple[Tensor, ...]:
        loss, grad, *rest = right(self, stage)
        return loss, grad * 1.01, *rest

    config = tiny()
    assert type(make_engine(config)) is Engine
    monkeypatch.setattr(Engine, "gradients", wrong)
    assert isinstance(make_engine(config), PlainEngine)
    assert "not the plain engine's (off by 0.01 of its size" in capsys.readouterr().err
    with pytest.raises(InputError, match="off by"):
        make_engine(config, backend="fast")


def test_a_trial_leaves_the_fast_engine_as_it_was(tiny) -> None:
    tried, fresh = make_engine(tiny(noise=0.1)), Engine(tiny(noise=0.1))
    for _ in range(3):
        assert torch.equal(tried.step().loss, fresh.step().loss)
    assert torch.equal(tried.weights, fresh.weights)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[
                pytest.mark.gpu,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
            ],
        ),
    ],
)
@pytest.mark.parametrize("products", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["SwiGLU", "StickBreaking", "Shifted"])
def test_the_guides_blocks_can_be_stacked(tiny, name: str, products: str, device: str) -> None:
    config = tiny(products=products, model={"width": 64, "heads": 2})
    block = registry.find("block", registry.resolve("block", f"{BLOCKS}:{name}"))
    assert modules.trial(config, device, block) is None
