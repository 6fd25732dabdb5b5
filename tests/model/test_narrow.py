"""The layer in one kernel against the layer in parts, and who may use it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from ways import KERNELS, NEEDS_GPU, device_of

from looped.fast import StackedTransformer, attention, kernels, layer_ops

MakeModel = Callable[..., tuple[StackedTransformer, torch.Tensor]]
NARROW = {"width": 32, "heads": 4, "bands": (2, 2, 2, 2)}


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.parametrize("changes", [NARROW, {"width": 16, "heads": 2, "bands": (2, 2)}], ids=["32", "16"])
@pytest.mark.parametrize(
    ("rows", "size"), [(3, 37), (1, 1), (2, 64), pytest.param(5, 1000, marks=pytest.mark.slow)]
)
def test_one_kernel_gives_what_the_parts_give(
    make_model: MakeModel, changes: dict[str, object], rows: int, size: int, way: str
) -> None:
    device = device_of(way)
    model, flat = make_model(seeds=3, **changes)
    layer = model.prepare(flat.to(device)).layers[0]
    generator = torch.Generator().manual_seed(1)
    state = torch.randn(3, rows, size, model.config.width, generator=generator).to(device)
    parts = layer_ops.apply_layer(layer, state, partial(attention.attend, model.config))
    with torch.inference_mode():
        assert kernels.suits_narrow(model.config, layer, state) == (way == "cuda")
        torch.testing.assert_close(
            kernels.narrow_layer(model.config, layer, state), parts, atol=2e-5, rtol=2e-5
        )


@NEEDS_GPU
def test_many_steps_end_where_the_parts_end(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model, flat = make_model(seeds=2, **NARROW)
    weights = model.prepare(flat.cuda())
    tokens = torch.randint(0, model.config.vocab, (2, 4, 200), device="cuda")
    with torch.inference_mode():
        *_, whole = model.unroll(weights, tokens, 50)
        monkeypatch.setattr(kernels, "suits_narrow", lambda *_: False)
        *_, parts = model.unroll(weights, tokens, 50)
    assert not torch.equal(whole, parts), "two different ways"
    # Random weights amplify rounding from step to step; a wrong kernel would agree nowhere.
    assert (whole - parts).abs().median() < 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 64, "heads": 4, "bands": (2, 2, 2, 2)},
        {**NARROW, "bands": (2, 2)},
        {**NARROW, "bands": (2, 2, 2, 3)},
        {**NARROW, "positions": "rotary"},
        {**NARROW, "norm": "none"},
    ],
    ids=["wide", "global heads", "a wider band", "rotary", "no norm"],
)
def test_other_blocks_go_the_usual_way(
    make_model: MakeModel, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looped.fast.kernels.attention.triton", object())
    model, flat = make_model(**changes)
    layer = model.prepare(flat).layers[0]
    pretends = _OnCuda(torch.zeros(2, 1, 4, model.config.width))
    with torch.inference_mode():
        assert not kernels.suits_narrow(model.config, layer, pretends)


def test_a_cpu_and_a_training_go_the_usual_way(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looped.fast.kernels.attention.triton", object())
    model, flat = make_model(**NARROW)
    layer = model.prepare(flat).layers[0]
    state = torch.zeros(2, 1, 4, 32)
    with torch.no_grad():
        assert not kernels.suits_narrow(model.config, layer, state), "it is on the CPU"
        assert kernels.suits_narrow(model.config, layer, _OnCuda(state))
        assert not kernels.suits_narrow(model.config, layer, _OnCuda(state.double()))
    assert not kernels.suits_narrow(model.config, layer, _OnCuda(state)), "somebody may ask for gradients"


class _OnCuda(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]
