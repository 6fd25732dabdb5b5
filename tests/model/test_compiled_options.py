"""The options that compiled programs ask for, each against what it means in plain sight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from looped.errors import InputError
from looped.fast import StackedTransformer
from looped.fast.attention import attend_after, weights
from looped.model import ModelConfig
from looped.training.recipes import make

SMALL = ModelConfig(vocab=5, layers=1, heads=4, width=16, injection=False)


def state_after(config: ModelConfig, steps: int = 1) -> torch.Tensor:
    model = StackedTransformer(config)
    flat = model.layout.initialise([0, 1])
    tokens = torch.arange(14).view(1, 2, 7).expand(2, -1, -1) % 5
    *_, h = model.unroll(model.prepare(flat), tokens, steps)
    return h


def test_without_norms_a_doubled_state_grows() -> None:
    model = StackedTransformer(replace(SMALL, norm="none", activation="relu"))
    ready = model.prepare(model.layout.initialise([0]))
    u = torch.randn(1, 1, 3, 16, generator=torch.Generator().manual_seed(0))
    mixed = model.step(ready, u) - u
    assert mixed.abs().max() > 0
    normed = StackedTransformer(SMALL)
    assert torch.allclose(normed.step(ready, u).mean(-1), torch.zeros(1, 1, 3), atol=1e-6)
    assert model.step(ready, u).mean(-1).abs().max() > 1e-3


def test_relu_is_relu() -> None:
    assert StackedTransformer(replace(SMALL, activation="relu")).activate is torch.relu
    changed = state_after(replace(SMALL, activation="relu"))
    assert not torch.allclose(changed, state_after(SMALL))


def test_precision_is_the_default_of_prepare() -> None:
    assert state_after(replace(SMALL, precision="float64")).dtype == torch.float64
    assert state_after(SMALL).dtype == torch.float32


def test_a_running_head_takes_the_best_key_so_far() -> None:
    config = replace(SMALL, running=1)
    qkv = torch.randn(2, 6, 48, generator=torch.Generator().manual_seed(1))
    out, _ = attend_after(config, qkv, None)
    keys, values = qkv[..., 16 + 12], qkv[..., 32 + 12 :]
    for row in range(2):
        for i in range(6):
            best = int(keys[row, : i + 1].argmax())
            assert torch.equal(out[row, i, 12:], values[row, best])
            assert weights(config, qkv)[row, 3, i].argmax() == best
    plain, _ = attend_after(SMALL, qkv, None)
    assert torch.equal(out[..., :12], plain[..., :12])


def test_layers_before_the_loop_run_once() -> None:
    config = replace(SMALL, before=2, before_bands=(2,), before_running=1)
    model = StackedTransformer(config)
    flat = model.layout.initialise([0])
    assert {"before.0.qkv.weight", "before.1.down.bias", "layers.0.qkv.weight"} <= model.layout.slots.keys()
    tokens = torch.tensor([[[1, 2, 3, 4]]])
    ready = model.prepare(flat)
    x = model.embed(ready, tokens)
    alone = StackedTransformer(SMALL)
    bare = alone.prepare(
        flat=alone.layout.from_dict(
            {
                name: view[0]
                for name, view in model.layout.views(flat).items()
                if not name.startswith("before")
            }
        )[None]
    )
    assert not torch.allclose(x, alone.embed(bare, tokens))
    *_, h = model.unroll(ready, tokens, 2)
    assert torch.equal(h, alone.step(bare, alone.step(bare, x)))


def test_the_relay_tells_every_position_what_the_last_one_holds() -> None:
    model = StackedTransformer(replace(SMALL, relay=3))
    h = torch.randn(1, 2, 5, 16)
    told = model.inject(h, torch.zeros_like(h))
    assert torch.equal(told[..., :3], h[:, :, -1:, :3].expand(-1, -1, 5, -1))
    assert torch.equal(told[..., 3:], h[..., 3:])
    assert torch.equal(model.inject(None, h), told)


def test_such_models_are_not_for_the_kernels() -> None:
    assert SMALL.ordinary
    for odd in ({"norm": "none"}, {"activation": "relu"}, {"running": 1}, {"before": 1}, {"relay": 1}):
        assert not replace(SMALL, **odd).ordinary  # type: ignore[arg-type]
    assert make("copy", "fop-loop-adaptive", "quick", (0,)).model.ordinary


@pytest.mark.parametrize(
    ("odd", "sentence"),
    [
        ({"running": 5}, "running heads must be between 0 and the 4 without a band, not 5"),
        ({"before_bands": (0,)}, "bands must be at most 4 widths from 1 to"),
        ({"before": -1}, "before must not be negative"),
        ({"relay": 17}, "relay must be from 0 to the width 16, not 17"),
        ({"halt": 16}, "halt must name an entry of the state, 0 to 15, not 16"),
    ],
)
def test_what_cannot_be_is_refused(odd: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        replace(SMALL, **odd)  # type: ignore[arg-type]
