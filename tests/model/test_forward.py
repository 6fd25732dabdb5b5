"""The step with everything riding along against the step in parts.

Each runs on the plain twins of the kernels (`tests/fast_reference.py`) and on the kernels themselves (`tests/ways.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ways import NEEDS_GPU, WAYS, device_of, ops_of

from looped.fast import StackedTransformer, stacked

MakeModel = Callable[..., tuple[StackedTransformer, torch.Tensor]]
CASES = {
    "one layer": {},
    "three layers": {"layers": 3},
    "bands": {"layers": 2, "heads": 4, "bands": (2, 3)},
    "sharpened": {"layers": 2, "sharpen": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [1, 9, 64, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_a_step_gives_what_its_parts_give(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, case: str, size: int, way: str
) -> None:
    if way == "interpreted" and size > 9 and case != "bands":
        pytest.skip("long rows once are enough")
    device = device_of(way)
    model, flat = make_model(seeds=2, width=32, **CASES[case])
    noise = torch.Generator().manual_seed(2)
    flat = flat + 0.1 * torch.randn(
        flat.shape, generator=noise
    )  # weights that start at 0 would hide a missing bias
    weights = model.prepare(flat.to(device))
    state = torch.randn(2, 3, size, 32, generator=noise).to(device)
    before = state.clone()
    with torch.inference_mode():
        got = stacked.fused_step(
            ops_of(way), model.config, weights.layers, weights.scale, weights.shift, state
        )
        monkeypatch.setattr(stacked, "suits_fused", lambda *_: False)
        expected = model.step(weights, state)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)
    assert torch.equal(state, before), "what it is given stays as it is"


@NEEDS_GPU
def test_a_model_on_cuda_takes_it(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    model, flat = make_model(seeds=2, width=64, heads=4, layers=2)
    weights = model.prepare(flat.cuda(), torch.bfloat16)
    tokens = torch.randint(0, model.config.vocab, (2, 4, 30), device="cuda")
    with torch.inference_mode():
        *_, fused = model.unroll(weights, tokens, 5)
        monkeypatch.setattr(stacked, "suits_fused", lambda *_: False)
        *_, parts = model.unroll(weights, tokens, 5)
    assert not torch.equal(fused, parts), "two different ways"
    assert (fused - parts).abs().median() < 0.02


@pytest.mark.parametrize(
    "changes",
    [{"positions": "rotary"}, {"positions": "alibi"}, {"norm": "none"}, {"precision": "float64"}],
    ids=lambda changes: "=".join(next(iter(changes.items()))),
)
def test_who_goes_in_parts(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str]
) -> None:
    class OnCuda:
        is_cuda, dtype = True, torch.float32

    monkeypatch.setattr("looped.fast.kernels.attention.available", lambda: True)
    plainly, flat = make_model(width=32)
    odd, odd_flat = make_model(width=32, **changes)
    with torch.inference_mode():
        assert stacked.suits_fused(plainly.config, plainly.prepare(flat).layers[0], OnCuda())
        assert not stacked.suits_fused(odd.config, odd.prepare(odd_flat).layers[0], OnCuda())
        assert not stacked.suits_fused(plainly.config, plainly.prepare(flat).layers[0], torch.zeros(1))
    assert not stacked.suits_fused(plainly.config, plainly.prepare(flat).layers[0], OnCuda()), (
        "a gradient is wanted"
    )
