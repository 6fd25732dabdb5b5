"""From the weights to what the loop multiplies with, and back from its gradients to theirs.

A norm's scale and shift are folded into the matrix behind it, once per gradient step:

    norm → linear      (n·γ + β)·W + b  =  n·(γW) + (βW + b)

`model.fold` and autograd are the definition. For a deep model on CUDA they are a fifth of a gradient step: products
and sums pass over all weights. `Folding` is one pass forth, which reads fp32 and writes the precision of the loop, and
one pass back, which writes every gradient where it belongs.

A weight is used once per loop step, so its gradient is a sum over the steps. In fp32 autograd keeps that sum. In bf16
a running sum would lose digits, so the matrix product itself adds into an fp32 buffer (`TiedLinear`). So do products by
oneDNN, which autograd does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from looped.fast import kernels, layer_ops, onednn
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
    """x·W, or x·W + b, whose backward adds the gradients of W and b into given fp32 buffers."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_sum: Tensor,
        bias_sum: Tensor | None,
    ) -> Tensor:
        """The product."""
        ctx.save_for_backward(x, weight)
        ctx.sums = weight_sum, bias_sum
        return onednn.multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        """The gradient of x; those of W and b go into the buffers."""
        (grad,) = grads
        x, weight = ctx.saved_tensors
        weight_sum, bias_sum = ctx.sums
        if onednn.suits(x.mT, grad):
            wide = x.shape[2] > grad.shape[2]  # then (gᵀ·x)ᵀ in place of xᵀ·g: a fifth faster
            weight_sum += onednn.multiply(grad.mT, x).mT if wide else onednn.multiply(x.mT, grad)
        elif x.dtype == weight_sum.dtype:
            weight_sum.baddbmm_(x.mT, grad)
        elif x.is_cuda:  # the product adds in fp32 by itself
            torch.baddbmm(weight_sum, x.transpose(1, 2), grad, out_dtype=torch.float32, out=weight_sum)
        else:
            weight_sum += torch.bmm(x.transpose(1, 2), grad)  # summed in fp32 inside, rounded once a step
        if bias_sum is not None:
            bias_sum += grad.sum(1, keepdim=True, dtype=torch.float32)
        return onednn.multiply(grad, weight.mT), None, None, None, None


class GradientStore:
    """Gives the loop its weights and hands back their summed gradients."""

    def __init__(self, accumulate: bool) -> None:
        self.accumulate = accumulate
        # By one layer's matrix: the stacks of it and of its bias, and which layer of them it is.
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
        for stack, layers in weights.looped():
            pairs = list(zip(stack[::2], stack[1::2], strict=True))
            for i, layer in enumerate(layers):
                self._of |= {id(own): (pair, i) for own, pair in zip(layer[::2], pairs, strict=True)}
        return weights

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """x·W + b, gradients of W and b going where this store keeps them."""
        tied = torch.is_grad_enabled() and id(weight) in self._of
        if not (tied and (self.accumulate or onednn.suits(x, weight))):
            return layer_ops.linear(x, weight, bias)
        pair, i = self._of[id(weight)]
        sums = [self._sum(stack)[i] for stack in pair]
        out: Tensor = TiedLinear.apply(x, weight, bias, *sums)  # type: ignore[no-untyped-call]
        return out

    def _sum(self, stack: Tensor) -> Tensor:
        if id(stack) not in self._sums:
            # A tall matrix's products by oneDNN come turned (`TiedLinear`), and sums are quick in one layout only.
            turned = not self.accumulate and stack.shape[-2] > stack.shape[-1]
            shape = stack.mT.shape if turned else stack.shape
            zeros = torch.zeros(shape, dtype=torch.float32, device=stack.device)
            self._sums[id(stack)] = zeros.mT if turned else zeros
        return self._sums[id(stack)]

    def close(self, weights: Prepared) -> list[Tensor]:
        """The fp32 gradients of every tensor, in the order of `Prepared.tensors`."""
        found = self._sums
        self._of, self._sums = {}, {}
        return [_total(found.get(id(w)), w.grad, w) for w in weights.tensors()]


def _total(gathered: Tensor | None, grad: Tensor | None, weight: Tensor) -> Tensor:
    """A weight's fp32 gradient: what its products gathered, and what autograd has of the others."""
    if gathered is None:
        return (torch.zeros_like(weight) if grad is None else grad).float()
    return gathered if grad is None else gathered + grad


# --- the same for a module of unknown insides ----------------------------------------------------------------
# Left to `torch.vmap` and autocast, each loop step casts every matrix anew, adds its bias in fp32 (so that all that
# follows is fp32), and sends a gradient back through those casts. `Products` takes over the calls of `F.linear` with a
# trained matrix, whatever module makes them, and computes them as autocast does for a single seed: one product in the
# loop's precision, its bias added in the same pass, a layer norm right before it folded in. Any other use of a weight
# is left to autograd. Shapes: S seeds, N positions of all rows, I and O numbers before and after a product.

# Functions that only look at a tensor's shape or kind.
LOOKS = {Tensor.size, Tensor.dim, *(getattr(Tensor, n).__get__ for n in ("shape", "ndim", "dtype", "device"))}


class Products:
    """What the modules of all seeds multiply with in one gradient step, made when it is first needed."""

    def __init__(self, precision: torch.dtype) -> None:
        self.precision = precision
        self._folded: dict[tuple[int, ...], Folded] = {}

    def folded(
        self, weight: Tensor, bias: Tensor | None, scale: Tensor | None, shift: Tensor | None
    ) -> Folded:
        """A matrix, its bias and the norm before them, ready for products."""
        key = tuple(map(id, (weight, bias, scale, shift)))
        if key not in self._folded:
            with torch.autocast(weight.device.type, enabled=False), torch.enable_grad():
                self._folded[key] = Folded(self.precision, weight, bias, scale, shift)
        return self._folded[key]

    def inputs(self) -> list[Tensor]:
        """What a backward pass has to reach, so that all gradients are added up."""
        return [use.matrix for use in self._folded.values()]

    def gradients(self, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """The gradients of the leaves by way of all products, after the backward pass."""
        made = [part for use in self._folded.values() for part in use.made]
        sums = [part for use in self._folded.values() for part in use.sums]
        if not made:
            return [None] * len(leaves)
        return torch.autograd.grad(made, leaves, sums, allow_unused=True)


class Calls(TorchFunctionMode):
    """Takes over what a module does with its trained weights; for inside `torch.vmap`, where they are without S."""

    def __init__(self, products: Products, own: Sequence[Tensor]) -> None:
        super().__init__()
        self._products = products
        self._known = {id(weight) for weight in own}
        # Outputs of norms that nothing but linear layers has taken yet, which may change them in place: an output, the
        # same without scale and shift, scale, shift.
        self._normed: dict[int, tuple[Tensor, ...]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Linear layers and layer norms of trained weights another way, all else as it is."""
        if func is F.linear:
            return self._linear(*args, **(kwargs or {}))
        if func is F.layer_norm:
            return self._layer_norm(*args, **(kwargs or {}))
        if self._normed and func not in LOOKS:
            for given in tree_leaves((args, kwargs)):
                self._normed.pop(id(given), None)
        return func(*args, **(kwargs or {}))

    def _layer_norm(
        self,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if weight is None or bias is None or len(normalized_shape) > 1 or not self._know(weight, bias):
            return F.layer_norm(input, normalized_shape, weight, bias, eps)
        normal = F.layer_norm(input, normalized_shape, eps=eps)
        out = torch.addcmul(bias, normal, weight)
        self._normed[id(out)] = out, normal, weight, bias
        return out

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not (self._know(weight) and (bias is None or self._know(bias))):
            return F.linear(input, weight, bias)
        _, x, scale, shift = self._normed.get(id(input), (None, input, None, None))
        out: Tensor = Product.apply(self._products, x, weight, bias, scale, shift)  # type: ignore[no-untyped-call]
        return out

    def _know(self, *weights: Tensor) -> bool:
        return all(id(weight) in self._known for weight in weights)


class Folded:
    """A matrix [S, I, O] and its bias [S, 1, O], norm folded in, in the loop's precision, and their gradients' sums."""

    def __init__(
        self,
        precision: torch.dtype,
        weight: Tensor,
        bias: Tensor | None,
        scale: Tensor | None,
        shift: Tensor | None,
    ) -> None:
        made, made_bias = weight.mT, None if bias is None else bias[:, None]
        if scale is not None and shift is not None:
            moved = shift[:, None] @ made
            made_bias = moved if made_bias is None else made_bias + moved
            made = scale[..., None] * made
        self.made = [made] if made_bias is None else [made, made_bias]
        self.sums = [torch.zeros(part.shape, dtype=torch.float32, device=part.device) for part in self.made]
        ready = [part.detach().to(precision) for part in self.made]
        self.matrix = ready[0].requires_grad_()
        self.bias = ready[1] if made_bias is not None else None

    def __call__(self, x: Tensor) -> Tensor:
        """x·W + b."""
        flat = x.reshape(len(x), -1, x.shape[-1]).to(self.matrix.dtype)
        sums = self.sums if self.bias is not None else [self.sums[0], None]
        out: Tensor = TiedLinear.apply(flat, self.matrix, self.bias, *sums)  # type: ignore[no-untyped-call]
        return out.view(*x.shape[:-1], out.shape[-1])


class Product(torch.autograd.Function):
    """A linear layer as `torch.vmap` meets it."""

    @staticmethod
    def forward(products: Products, x: Tensor, weight: Tensor, bias: Any, scale: Any, shift: Any) -> Tensor:
        """Never called: weights that are known are stacked."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keeps nothing."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], products: Products, x: Tensor, weight: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        """The products of all seeds."""
        at = in_dims[1]
        x = x.expand(info.batch_size, *x.shape) if at is None else x.movedim(at, 0)
        return products.folded(weight, *rest)(x), 0
