"""Names of what a loop computes: read and patched through ordinary hooks, also with a user's block."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import looped
from looped.errors import InputError
from looped.model import LoopedTransformer, ModelConfig
from looped.model.inside import hook_modules, hooked

CONFIG = ModelConfig(vocab=6, layers=2, heads=2, width=16, init_std=0.2, halting="eoq")
TOKENS = torch.tensor([[0, 1, 1, 3, 4], [1, 1, 0, 3, 4]])


def net_of(**changes: object) -> LoopedTransformer:
    return LoopedTransformer.from_seed(ModelConfig(**(vars(CONFIG) | changes)), seed=0)


def test_every_value_has_its_name() -> None:
    states = looped.trace_states(net_of(), TOKENS, steps=3)
    parts = [f"layer.{layer}.{part}" for layer in (0, 1) for part in ("attention", "mlp", "state")]
    assert list(states) == [f"step.{t}.{name}" for t in (1, 2, 3) for name in (*parts, "state", "halt")]
    assert {tuple(value.shape) for name, value in states.items() if "halt" not in name} == {(2, 5, 16)}


def test_values_are_those_of_the_loop() -> None:
    net = net_of()
    states = looped.trace_states(net, TOKENS, steps=3)
    out = net(TOKENS, 3, return_states=True)
    assert out.states is not None
    for t, state in enumerate(out.states, 1):
        assert torch.equal(states[f"step.{t}.state"], state)
    assert torch.equal(states.logits, out.logits)
    given = net.inject(states["step.1.state"], net.embed(TOKENS))
    for layer in (0, 1):
        name = f"step.2.layer.{layer}."
        assert torch.allclose(
            given + states[name + "attention"] + states[name + "mlp"], states[name + "state"]
        )
        given = states[name + "state"]
    assert net.halting_head is not None
    assert torch.equal(states["step.3.halt"], net.halting_head(out.states[2])[..., 0])


def test_a_patch_changes_what_comes_after_it_and_nothing_before() -> None:
    net = net_of()
    plain = looped.trace_states(net, TOKENS, steps=3)
    swapped = looped.trace_states(net, TOKENS, steps=3, patch={"step.2.state": lambda h: h.flip(0)})
    for name, value in plain.items():
        early = name.startswith(("step.1", "step.2.layer"))
        assert torch.equal(value, swapped[name]) == early, name
    assert torch.equal(swapped["step.2.state"], plain["step.2.state"].flip(0))
    assert torch.allclose(swapped["step.2.halt"], plain["step.2.halt"].flip(0)), "read from the patched state"
    zeros = torch.zeros(2, 5, 16)
    silent = looped.trace_states(net, TOKENS, steps=1, patch={"step.1.layer.1.mlp": zeros})
    assert not torch.equal(silent.logits, looped.trace_states(net, TOKENS, steps=1).logits)


@pytest.mark.parametrize(
    ("steps", "patch", "complaint"),
    [
        (0, {}, "at least 1, not 0"),
        (2, {"step.3.state": torch.zeros(2, 5, 16)}, "no step.3.state to patch"),
        (
            2,
            {"step.1.state": torch.zeros(5, 16)},
            r"step.1.state is \[2, 5, 16\], and its patch is \[5, 16\]",
        ),
    ],
)
def test_what_cannot_be_done_is_said(steps: int, patch: dict[str, torch.Tensor], complaint: str) -> None:
    net = net_of()
    with pytest.raises(InputError, match=complaint):
        looped.trace_states(net, TOKENS, steps=steps, patch=patch)
    assert not net.norm._forward_hooks, "hooks are gone, however it ended"


class Plain(nn.Module):
    """A block without layers."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mix = nn.Linear(config.width, config.width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.mix(h).tanh()


class Gated(nn.Module):
    """A layer with one of our parts, which gives two values, and a feed-forward part."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mlp, self.attention = nn.Linear(config.width, config.width), nn.LSTM(config.width, config.width)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.mlp(h) + self.attention(h)[0]


def layered(config: ModelConfig) -> nn.Module:
    block = nn.Module()
    block.layers = nn.ModuleList([Gated(config)])
    block.forward = lambda h: block.layers[0](h)  # type: ignore[method-assign]
    return block


def test_a_users_block_has_the_names_of_what_it_has() -> None:
    config = ModelConfig(vocab=6, layers=1, heads=2, width=16)
    states = looped.trace_states(LoopedTransformer(config, Plain), TOKENS, steps=2)
    assert list(states) == ["step.1.state", "step.2.state"]
    states = looped.trace_states(LoopedTransformer(config, layered), TOKENS, steps=1)
    assert list(states) == ["step.1.layer.0.mlp", "step.1.layer.0.state", "step.1.state"]


def test_hooks_of_ones_own_know_the_step() -> None:
    net, seen = net_of(), []
    with net.block.layers[1].mlp.register_forward_hook(lambda *_: seen.append(net.current_step)):
        net(TOKENS, steps=3)
        two = [net.unroll(TOKENS, 2), net.unroll(TOKENS, 2)]
        for each in (*two, *two):
            next(each)
    assert seen == [1, 2, 3, 1, 1, 2, 2], "walks of the same model do not disturb each other"


def test_hooked_sees_every_loop_and_leaves_nothing() -> None:
    net, names = net_of(halting="none"), []
    with hooked(net, lambda name, value: names.append(name)):
        net(TOKENS, steps=1)
    net(TOKENS, steps=1)
    assert names == [f"step.1.{name}" for name in hook_modules(net)]
