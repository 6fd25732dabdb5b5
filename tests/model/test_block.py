"""A layer's pieces: the smooth step by a sigmoid is the library's by a hyperbolic tangent."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from looped.fast import layer_ops

POINTS = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-1e6, -1e-30, 0.0, 1e-30, 1e6])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_smooth_step_and_its_slope(dtype: torch.dtype) -> None:
    x = POINTS.to(dtype).requires_grad_()
    wanted, found = F.gelu(x, approximate="tanh"), layer_ops.gelu(x)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    slopes = [torch.autograd.grad(y, x, torch.full_like(x, 3.0))[0] for y in (found, wanted)]
    torch.testing.assert_close(*slopes, rtol=1e-6, atol=1e-5)


def test_without_gradients_it_is_the_same_and_leaves_its_input_alone() -> None:
    x = POINTS.clone()
    assert torch.equal(layer_ops.gelu(x), layer_ops.gelu(POINTS.clone().requires_grad_()).detach())
    assert torch.equal(x, POINTS)
