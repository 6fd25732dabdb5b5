"""The plain module: equal to the stacked decoder, and an ordinary `torch.nn.Module` in every other way."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import looped.zoo as zoo
from looped import batches, runs, tasks
from looped.errors import InputError
from looped.fast import StackedTransformer
from looped.model import Block, LoopedTransformer, ModelConfig
from looped.model.looped import checkpoint_weights, load_checkpoint_weights
from looped.model.weights import Layout

BASE = ModelConfig(vocab=7, layers=2, heads=4, width=32)
CASES: dict[str, dict[str, object]] = {
    "the paper's block": {},
    "one layer": {"layers": 1},
    "no injection": {"injection": False},
    "bands": {"bands": (2, 3, 5)},
    "all banded": {"bands": (2, 2, 1, 1)},
    "sharpened": {"bands": (2,), "sharpen": True},
    "sharpened, all global": {"sharpen": True},
    "start": {"positions": "start"},
    "rotary": {"positions": "rotary"},
    "rotary and bands": {"positions": "rotary", "bands": (3,)},
    "alibi": {"positions": "alibi"},
    "alibi and bands": {"positions": "alibi", "bands": (2, 4)},
    "learned": {"positions": "learned", "max_positions": 40},
    "randomised": {"positions": "randomised", "max_positions": 40},
    "running heads": {"running": 2, "bands": (2,)},
    "running heads, turned": {"running": 1, "positions": "rotary"},
    "only running heads": {"running": 4},
    "no norm": {"norm": "none", "precision": "float64"},  # in fp32 the growing scores differ by more
    "relu": {"activation": "relu"},
    "layers before": {"before": 2, "before_bands": (3,), "before_running": 1},
    "relay": {"relay": 5},
    "halt entry": {"halt": 3},
    "wide": {"expansion": 2},
    "torch's linear start": {"initialisation": "linear"},
    "torch's embedding start": {"initialisation": "embedding"},
    "eoq": {"halting": "eoq"},
    "act": {"halting": "act"},
    "ponder": {"halting": "ponder"},
    "double precision": {"precision": "float64", "norm": "none", "activation": "relu"},
}


def pair(config: ModelConfig) -> tuple[LoopedTransformer, StackedTransformer, torch.Tensor]:
    """Both models with the same weights, none of which is 0 or 1."""
    stacked = StackedTransformer(config)
    flat = stacked.layout.initialise([3])
    flat = flat + 0.15 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(11))
    net = LoopedTransformer(config)
    load_checkpoint_weights(net, stacked.layout.to_dict(flat[0]))
    return net, stacked, flat


@pytest.mark.parametrize("size", [13, 80])
@pytest.mark.parametrize("case", CASES)
def test_scores_of_every_step_equal_the_stacked_model(case: str, size: int) -> None:
    config = replace(BASE, **CASES[case])  # type: ignore[arg-type]
    size = min(size, 40) if "max_positions" in CASES[case] else size
    net, stacked, flat = pair(config)
    tokens = torch.randint(config.vocab, (3, size), generator=torch.Generator().manual_seed(0))
    counted = torch.arange(size).expand(3, -1) >= size // 2
    with torch.no_grad():
        weights = stacked.prepare(flat)
        gate = stacked.gate(weights, counted[None])
        expected = [stacked.readout(weights, h)[0] for h in stacked.unroll(weights, tokens[None], 4, gate)]
        found = [net.readout(h) for h in net.unroll(tokens, 4, counted)]
    for ours, theirs in zip(found, expected, strict=True):
        largest = max(1.0, float(theirs.abs().max()))  # without norms scores grow
        torch.testing.assert_close(ours, theirs, atol=1e-5 * largest, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_the_stacked_model(case: str) -> None:
    config = replace(BASE, **CASES[case])  # type: ignore[arg-type]
    net, stacked, flat = pair(config)
    tokens = torch.randint(config.vocab, (3, 11), generator=torch.Generator().manual_seed(0))
    flat.requires_grad_()
    weights = stacked.prepare(flat)
    *_, last = stacked.unroll(weights, tokens[None], 3)
    stacked.readout(weights, last).log_softmax(-1)[..., 0].mean().backward()
    *_, last = net.unroll(tokens, 3)
    net.readout(last).log_softmax(-1)[..., 0].mean().backward()
    assert flat.grad is not None
    expected = stacked.layout.to_dict(flat.grad[0])
    for parameter in net.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    for name, ours in checkpoint_weights(net).items():
        torch.testing.assert_close(
            ours, expected[name], atol=2e-6, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", zoo.names())
def test_every_shipped_model_gives_the_same_scores(name: str) -> None:
    trained = runs.load_seed(zoo.path(name))
    config = trained.config.model
    stacked, net = StackedTransformer(config), LoopedTransformer(config)
    load_checkpoint_weights(net, Layout(config).to_dict(trained.row))
    task = tasks.get(trained.config.task)
    problems = task.sample(torch.tensor([8, 5]), torch.Generator().manual_seed(0), max_length=8)
    tokens = batches.lay_out(problems, task.vocab, task.row_size(8)).tokens
    with torch.no_grad():
        weights = stacked.prepare(trained.row[None])
        for h, other in zip(net.unroll(tokens, 5), stacked.unroll(weights, tokens[None], 5), strict=True):
            torch.testing.assert_close(
                net.readout(h), stacked.readout(weights, other)[0], atol=1e-4, rtol=1e-5
            )


@pytest.mark.parametrize(
    "case", ["the paper's block", "torch's linear start", "eoq", "layers before", "start"]
)
def test_a_seed_gives_the_weights_that_training_starts_from(case: str) -> None:
    config = replace(BASE, **CASES[case])  # type: ignore[arg-type]
    layout = Layout(config)
    expected = layout.to_dict(layout.initialise([5])[0])
    found = checkpoint_weights(LoopedTransformer.from_seed(config, 5))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_from_seed_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    LoopedTransformer.from_seed(BASE, 1)
    assert torch.equal(before, torch.get_rng_state())


def test_weights_survive_the_way_through_a_checkpoint() -> None:
    net, other = LoopedTransformer.from_seed(BASE, 1), LoopedTransformer.from_seed(BASE, 2)
    load_checkpoint_weights(other, checkpoint_weights(net))
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_a_checkpoint_of_another_model_is_refused() -> None:
    other = LoopedTransformer.from_seed(replace(BASE, width=16), 1)
    with pytest.raises(InputError, match="is of shape"):
        load_checkpoint_weights(LoopedTransformer(BASE), checkpoint_weights(other))


class Doubling(nn.Module):
    """Not a block of ours."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(config.width))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * self.scale


def test_any_module_can_stand_in_the_place_of_the_block() -> None:
    net = LoopedTransformer.from_seed(BASE, 4, Doubling)
    again = LoopedTransformer.from_seed(BASE, 4, Doubling)
    assert torch.equal(net.block.scale, again.block.scale)
    stock = LoopedTransformer.from_seed(BASE, 4)
    assert torch.equal(net.token_embedding.weight, stock.token_embedding.weight)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    expected = net.norm(net.embed(tokens) * net.block.scale)
    torch.testing.assert_close(next(net.unroll(tokens, 1)), expected)
    with pytest.raises(InputError, match="only the stock block"):
        checkpoint_weights(net)
    stock.block = Doubling(BASE)
    assert stock(tokens, 2).logits.shape == (2, 5, 7)


def test_a_part_of_the_block_can_be_replaced() -> None:
    net = LoopedTransformer.from_seed(BASE, 0)
    assert isinstance(net.block, Block)
    net.block.layers[0].mlp = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 32))  # type: ignore[union-attr]
    net(torch.zeros(1, 4, dtype=torch.long), 2, labels=torch.zeros(1, 4, dtype=torch.long)).loss.backward()
    assert net.block.layers[0].mlp[0].weight.grad is not None  # type: ignore[union-attr, index]


def test_forward_reads_each_row_after_its_own_step() -> None:
    net = LoopedTransformer.from_seed(BASE, 0)
    tokens = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(1))
    out = net(tokens, torch.tensor([3, 1, 2]), return_states=True)
    assert len(out.states) == 3
    for row, step in enumerate((3, 1, 2)):
        torch.testing.assert_close(out.logits[row], net.readout(out.states[step - 1][row]))
    assert out.loss is None


def test_labels_of_minus_100_do_not_count() -> None:
    net = LoopedTransformer.from_seed(BASE, 0)
    tokens = torch.zeros(1, 4, dtype=torch.long)
    labels = torch.tensor([[-100, -100, 1, 2]])
    out = net(tokens, 2, labels=labels)
    expected = nn.functional.cross_entropy(out.logits[0, 2:], labels[0, 2:])
    torch.testing.assert_close(out.loss, expected)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"activation": "swiglu"}, "unknown activation 'swiglu'; there are gelu, relu"),
        ({"norm": "rms"}, "unknown norm 'rms'; there are layer, none"),
        ({"precision": "float16"}, "unknown precision 'float16'"),
        ({"halting": "often"}, "unknown halting 'often'"),
    ],
)
def test_unknown_values_are_errors(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        replace(BASE, **changes)  # type: ignore[arg-type]


def test_a_universal_model_is_refused_in_a_sentence() -> None:
    config = replace(BASE, kind="universal", halting="act")
    with pytest.raises(InputError, match="kind=universal"):
        LoopedTransformer(config)
    with pytest.raises(InputError, match="at least 1"):
        LoopedTransformer(BASE)(torch.zeros(1, 2, dtype=torch.long), 0)


# --- an ordinary module -------------------------------------------------------------------------------------


def test_hooks_see_every_step() -> None:
    net, seen = LoopedTransformer.from_seed(BASE, 0), []
    assert isinstance(net.block, Block)
    net.block.layers[1].register_forward_hook(lambda module, given, out: seen.append(out.shape))
    net(torch.zeros(2, 5, dtype=torch.long), 3)
    assert seen == [(2, 5, 32)] * 3


def test_copies_and_casts_and_state_dicts(tmp_path: Path) -> None:
    net = LoopedTransformer.from_seed(replace(BASE, halting="eoq", positions="start"), 0)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.readout.weight.zero_()
    assert net.readout.weight.any()
    assert net.to(torch.float64)(tokens, 2).logits.dtype == torch.float64
    other = LoopedTransformer(net.config).to(torch.float64)
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(net(tokens, 3).logits, other(tokens, 3).logits)
    assert sum(p.numel() for p in net.parameters()) == Layout(net.config).parameters


def test_the_blocks_of_a_device_without_memory() -> None:
    assert LoopedTransformer(BASE).to("meta").readout.weight.is_meta


@pytest.mark.slow
@pytest.mark.parametrize("case", ["the paper's block", "bands"])
def test_the_block_compiles_as_one_graph(case: str) -> None:
    net = LoopedTransformer.from_seed(replace(BASE, **CASES[case]), 0)  # type: ignore[arg-type]
    h = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(net.block, fullgraph=True)
    torch.testing.assert_close(compiled(h), net.block(h), atol=1e-5, rtol=1e-4)
