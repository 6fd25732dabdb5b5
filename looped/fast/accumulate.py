"""Where the gradients of the loop's weights are gathered.

A weight is used once per loop step, so its gradient is a sum over the steps. In fp32 autograd keeps that sum. In bf16
a running sum would lose digits, so the matrix product itself adds into an fp32 buffer (`TiedLinear`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from looped.fast import layer_ops
from looped.fast.stacked import Prepared


class TiedLinear(torch.autograd.Function):
    """x·W + b whose backward adds the gradients of W and b into given fp32 buffers."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, weight_sum: Tensor, bias_sum: Tensor
    ) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, weight)
        ctx.sums = weight_sum, bias_sum
        return torch.baddbmm(bias, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        """The gradient of x; those of W and b go into the buffers."""
        (grad,) = grads
        x, weight = ctx.saved_tensors
        weight_sum, bias_sum = ctx.sums
        if x.is_cuda:  # the product adds in fp32 by itself
            torch.baddbmm(weight_sum, x.transpose(1, 2), grad, out_dtype=torch.float32, out=weight_sum)
        else:
            weight_sum += torch.bmm(x.transpose(1, 2), grad)  # summed in fp32 inside, rounded once a step
        bias_sum += grad.sum(1, keepdim=True, dtype=torch.float32)
        return torch.bmm(grad, weight.transpose(1, 2)), None, None, None, None


class GradientStore:
    """Gives the loop its weights and hands back their summed gradients."""

    def __init__(self, accumulate: bool) -> None:
        self.accumulate = accumulate
        # by one layer's matrix: the stacks of it and of its bias, and which layer of them it is
        self._of: dict[int, tuple[tuple[Tensor, Tensor], int]] = {}
        self._sums: dict[int, Tensor] = {}  # by a stack; made when a product first needs it

    def open(self, folded: Prepared, precision: torch.dtype) -> Prepared:
        """The weights as leaves of their own, in the loop's precision."""
        leaves = [
            tensor.detach().contiguous().requires_grad_()
            for tensor in folded.in_precision(precision).tensors()
        ]
        weights = folded.with_tensors(leaves)
        self._of, self._sums = {}, {}
        if self.accumulate:
            for pair, layers in zip(weights.pairs(), weights.each_pair(), strict=True):
                self._of |= {id(matrix): (pair, i) for i, (matrix, _) in enumerate(layers)}
        return weights

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x·W + b, gradients of W and b going where this store keeps them."""
        if id(weight) not in self._of or not torch.is_grad_enabled():
            return layer_ops.linear(x, weight, bias)
        pair, i = self._of[id(weight)]
        sums = [self._sum(stack)[i] for stack in pair]
        out: Tensor = TiedLinear.apply(x, weight, bias, *sums)  # type: ignore[no-untyped-call]
        return out

    def _sum(self, stack: Tensor) -> Tensor:
        if id(stack) not in self._sums:
            self._sums[id(stack)] = torch.zeros_like(stack, dtype=torch.float32)
        return self._sums[id(stack)]

    def close(self, weights: Prepared) -> list[Tensor]:
        """The fp32 gradients of every tensor, in the order of `Prepared.tensors`."""
        found = self._sums
        self._of, self._sums = {}, {}
        return [
            found.get(id(w), w.grad if w.grad is not None else torch.zeros_like(w)).float()
            for w in weights.tensors()
        ]
