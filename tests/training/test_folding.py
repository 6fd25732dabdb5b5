"""Folding by hand against `model.fold` and autograd: the same weights for the loop, the same flat gradient.

Each runs on the plain twins of the kernels (`tests/fast_reference.py`) and on the kernels themselves (`tests/ways.py`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from ways import CUDA, cases_and_ways, device_of, ops_of

from looped.fast import StackedTransformer, build, folding, kernels
from looped.fast.engine import Engine
from looped.model import ModelConfig

SMALL = ModelConfig(vocab=7, layers=2, heads=4, width=32)
CASES = {
    "ordinary": SMALL,
    "nothing fits a tile": replace(SMALL, width=20, expansion=3, vocab=11),
    "wider than a tile": replace(SMALL, layers=1, width=264),
    "read-in with a bias": replace(SMALL, initialisation="linear"),
    "deep": replace(SMALL, layers=17),
    "start position and mark": replace(SMALL, positions="start", halting="eoq"),
    "learned positions": replace(SMALL, positions="learned", max_positions=9),
    "layers before the loop": replace(SMALL, before=3),
    "universal": replace(SMALL, kind="universal", halting="act", injection=False),
}


def given(case: str, seeds: int, device: str) -> tuple[StackedTransformer, Tensor]:
    """A model and weights of which none is 0 or 1, so that none can be forgotten unseen."""
    model = build(CASES[case])
    generator = torch.Generator().manual_seed(1)
    flat = model.layout.initialise(list(range(seeds)))
    return model, (flat + 0.3 * torch.randn(flat.shape, generator=generator)).to(device)


def some_gradients(tensors: list[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(t.shape, generator=generator).to(t.device) for t in tensors]


def assert_near(got: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(got, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(
    ("case", "way"), cases_and_ways(CASES, quick=("ordinary", "nothing fits a tile", "read-in with a bias"))
)
def test_by_hand_equals_autograd(case: str, seeds: int, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "interpreted" and seeds > 1 and case in ("wider than a tile", "deep", "universal"):
        pytest.skip("takes a minute")
    monkeypatch.setattr(folding.Folding, "ops", ops_of(way))
    model, flat = given(case, seeds, device_of(way))
    leaf = flat.clone().requires_grad_()
    right = model.fold(leaf).tensors()
    by_hand = folding.Folding(model, flat, torch.float32)
    for mine, other in zip(by_hand.folded.tensors(), right, strict=True):
        assert_near(mine, other.detach())
    grads = some_gradients(right)
    (expected,) = torch.autograd.grad(right, [leaf], grads)
    with monkeypatch.context() as patch:  # what nobody writes to shows
        patch.setattr(torch, "empty_like", lambda like: torch.full_like(like, float("nan")))
        got = by_hand.back(grads)
    for name, mine in model.layout.views(got).items():
        assert_near(mine, model.layout.views(expected)[name])
    assert all(not gap.any() for gap in model.layout.padding(got))


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_products_in_bf16_get_what_a_cast_gives(device: str) -> None:
    model, flat = given("deep", 3, device)
    folded = folding.Folding(model, flat, torch.bfloat16).folded
    ready = folded.in_precision(torch.bfloat16)
    assert all(mine is matrix for mine, matrix in zip(ready.stack[::2], folded.stack[::2], strict=True))
    for mine, right in zip(ready.tensors(), model.prepare(flat, torch.bfloat16).tensors(), strict=True):
        assert mine.dtype == right.dtype
        torch.testing.assert_close(mine, right, rtol=2**-7, atol=1e-4)  # a sum may round to the next number


@pytest.mark.parametrize("case", CASES)
def test_padding_and_weights_are_all_there_is(case: str) -> None:
    layout = build(CASES[case]).layout
    flat = torch.zeros(2, layout.size)
    for view in [*layout.views(flat).values(), *layout.padding(flat)]:
        view += 1
    assert bool((flat == 1).all())


def test_only_the_gpu_goes_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "available", lambda: True)
    assert not folding.suits(torch.zeros(1, 64), torch.float32)
    with FakeTensorMode():  # there need not be a GPU for a tensor without values to be on one
        flat = torch.empty(1, 64, device="cuda")
    assert folding.suits(flat, torch.float32)
    assert folding.suits(flat, torch.bfloat16)
    assert not folding.suits(flat, torch.float64)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("method", ["fop-loop-adaptive", "ntp"])
def test_training_is_the_same_both_ways(
    method: str, device: str, tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for by_hand in (False, True):
        monkeypatch.setattr(folding, "suits", lambda *_, way=by_hand: way)
        engine = Engine(tiny("copy", method, model={"layers": 3}), device, precision=torch.float32)
        losses.append(torch.stack([engine.step().loss.clone() for _ in range(20)]))
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-3, atol=1e-5)
