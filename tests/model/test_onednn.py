"""Products of a CPU by another library, against what they mean."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from looped.fast import onednn
from looped.fast.folding import TiedLinear


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products by oneDNN too."""
    monkeypatch.setattr(onednn, "SMALLEST", 1)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_a_product_of_stacks(seeds: int, bias: bool, turned: bool) -> None:
    x, weight = drawn(seeds, 19, 7), drawn(seeds, 7, 11)
    if turned:
        x, weight = drawn(seeds, 7, 19).mT, drawn(seeds, 11, 7).mT
    added = drawn(seeds, 1, 11) if bias else None
    assert onednn.suits(x, weight)
    found = onednn.multiply(x, weight, added)
    torch.testing.assert_close(found, x @ weight + (0 if added is None else added))
    assert found.is_contiguous()


@pytest.mark.usefixtures("of_any_size")
def test_what_torch_multiplies_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = drawn(1, 4, 4), drawn(1, 4, 4)
    assert onednn.suits(x, weight)
    assert not onednn.suits(x.double(), weight.double())
    assert not onednn.suits(x.bfloat16(), weight.bfloat16())
    assert not onednn.suits(x.to("meta"), weight.to("meta"))
    monkeypatch.setattr(onednn, "SMALLEST", 4 * 4 * 4 + 1)
    assert not onednn.suits(x, weight)
    monkeypatch.setattr(onednn, "SMALLEST", 4 * 4 * 4)
    monkeypatch.setattr(onednn, "available", lambda: False)
    assert not onednn.suits(x, weight)
    assert torch.equal(onednn.multiply(x, weight), torch.bmm(x, weight))


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize(("given", "made"), [(6, 14), (14, 6)])
def test_gradients_of_a_product(given: int, made: int) -> None:
    x, weight, bias = drawn(2, 9, given), drawn(2, given, made), drawn(2, 1, made)
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    flow = drawn(2, 9, made)
    wanted = torch.autograd.grad(torch.baddbmm(bias, x, weight), leaves, flow)
    sums = [torch.ones_like(weight), torch.ones_like(bias)]  # of steps before
    out: Tensor = TiedLinear.apply(x, weight.detach().requires_grad_(), bias, *sums)  # type: ignore[no-untyped-call]
    (by_x,) = torch.autograd.grad(out, x, flow)
    for found, right in zip((by_x, sums[0] - 1, sums[1] - 1), wanted, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
