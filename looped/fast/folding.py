"""From the flat weights to what the loop multiplies with, and back from its gradients to the flat gradient.

`model.fold` and autograd are the definition. For a deep model on CUDA they are a fifth of a gradient step: each of the
products, sums and casts is a pass over all weights of its own, and so is putting the pieces together. By hand it is
one pass forth, which reads fp32 and writes the loop's precision, and one pass back, which writes every gradient where
it belongs.

A weight is used once per loop step, so its gradient is a sum over the steps. In fp32 autograd keeps that sum. In bf16
a running sum would lose digits, so the matrix product itself adds into an fp32 buffer (`TiedLinear`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped.fast import kernels, layer_ops
from looped.fast.stacked import Prepared, StackedTransformer

Back = Callable[[list[Tensor]], Tensor]  # gradients of `Prepared.tensors` to that of the flat weights


def fold(
    model: StackedTransformer, flat: Float[Tensor, "S P"], precision: torch.dtype
) -> tuple[Prepared, Back]:
    """The folded weights and the way back from their gradients, by hand where that can be taken."""
    if suits(flat, precision):
        by_hand = Folding(model, flat, precision)
        return by_hand.folded, by_hand.back
    leaf = flat.detach().requires_grad_()
    folded = model.fold(leaf)
    return folded, lambda grads: torch.autograd.grad(folded.tensors(), [leaf], grads)[0]


def suits(flat: Tensor, precision: torch.dtype) -> bool:
    """Whether the kernels know these weights: any model's, on CUDA, unless its products run in float64."""
    known = flat.dtype == torch.float32 and precision in (torch.float32, torch.bfloat16)
    return flat.is_cuda and known and kernels.available()


class Folding:
    """One use of the weights: `model.fold` says what lies where, once for the weights and once for their gradient."""

    ops: Any = kernels  # a test puts in what they mean

    def __init__(self, model: StackedTransformer, flat: Float[Tensor, "S P"], precision: torch.dtype) -> None:
        self.model, self.flat, self.precision = model, flat, precision
        self._stacks: list[tuple[Mapping[str, Tensor], list[Tensor]]] = []  # weights, and what came of them
        self.folded = model.fold(flat, self._fold)

    def _fold(self, weights: Mapping[str, Tensor], behind: layer_ops.Behind) -> list[Tensor]:
        """As `layer_ops.fold`, but in the loop's precision and in one piece."""
        tensors: list[Tensor] = []
        for matrix, norm in behind:
            pair = layer_ops.plain_pair(weights, matrix)
            made = [torch.empty(t.shape, dtype=self.precision, device=t.device) for t in pair]
            self.ops.fold(*pair, layer_ops.norm_of(weights, norm), *made)
            tensors += made
        self._stacks.append((weights, tensors))
        return tensors

    def back(self, grads: list[Tensor]) -> Float[Tensor, "S P"]:
        """The fp32 gradient of the flat weights, given those of the folded ones' `tensors`."""
        out = torch.empty_like(self.flat)
        for gap in self.model.layout.padding(out):
            gap.zero_()
        folded = self.folded.tensors()
        given = {id(tensor): grad for tensor, grad in zip(folded, grads, strict=True)}
        stacks = iter(self._stacks)

        def unfold(places: Mapping[str, Tensor], behind: layer_ops.Behind) -> list[Tensor]:
            weights, tensors = next(stacks)
            left = (given[id(tensor)] for tensor in tensors)
            for matrix, norm in behind:
                weight, _ = layer_ops.plain_pair(weights, matrix)
                self.ops.fold_backward(
                    weight, layer_ops.norm_of(weights, norm), next(left), next(left),
                    *layer_ops.plain_pair(places, matrix), layer_ops.norm_of(places, norm),
                )  # fmt: skip
            return tensors

        for place, tensor, grad in zip(self.model.fold(out, unfold).tensors(), folded, grads, strict=True):
            if place is not tensor:  # of no stack: used as it is, so its gradient is its own
                place.copy_(grad)
        views = self.model.layout.views(out)
        if "embed.bias" in views:  # folded into the embedding: both have its gradient
            views["embed"].copy_(grads[0])
            views["embed.bias"].copy_(grads[0].sum(1))
        return out


# --- gradients, gathered over the loop's steps -------------------------------------------------------------


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
