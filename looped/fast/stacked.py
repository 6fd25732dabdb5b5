"""The looped Transformer of several seeds, weights stacked on a leading axis: see `looped.model.looped` for one.

Shapes: S seeds, B rows, L positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from looped.fast import attention, kernels, layer_ops
from looped.fast.packing import Packing
from looped.model import positions
from looped.model.config import ModelConfig
from looped.model.halting import Head
from looped.model.seeds import SeedModel
from looped.model.weights import Layout

# Fields of `Prepared`, and of the Universal Transformer's.
MATRICES = ("readout", "readout_bias", "stack", "first", "encoder_stack", "cross_stack")


@dataclass(frozen=True)
class Prepared:
    """Weights ready for the loop.

    Matrices are in the precision that products run in. What is added to the state, and the state itself, stays in
    fp32 or better: an input of scale .02 added to a state of scale 1 would lose most of its digits in bf16.
    """

    embed: Float[Tensor, "S V D"]
    scale: Float[Tensor, "S 1 1 D"]  # of the final norm
    shift: Float[Tensor, "S 1 1 D"]
    readout: Float[Tensor, "S D V"]
    readout_bias: Float[Tensor, "S 1 V"]
    stack: layer_ops.Layer  # the block's layers, as one stack
    first: layer_ops.Layer | None = None  # a stack that is applied once, before the loop
    head: Head = ()  # that says when to stop
    table: Float[Tensor, "S M D"] | None = None  # of learned positions
    layers: tuple[layer_ops.Layer, ...] = field(init=False)  # the block's, one by one
    before: tuple[layer_ops.Layer, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Here and not when they are asked for: views made where no gradients are recorded would pass none on.
        object.__setattr__(self, "layers", layer_ops.unstack(self.stack))
        object.__setattr__(self, "before", () if self.first is None else layer_ops.unstack(self.first))

    def given(self) -> dict[str, Any]:
        """What it was made of, by field: tensors, tuples of tensors, or None."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    def tensors(self) -> list[Tensor]:
        """Every tensor, in the order of the fields."""
        return [tensor for tensor in tree_leaves(list(self.given().values())) if tensor is not None]

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """The same structure around other tensors, in the order of `tensors`."""
        left = iter(tensors)
        return self._changed(lambda _name, _old: next(left))

    def in_precision(self, dtype: torch.dtype) -> Self:
        """Matrices and their biases in `dtype`, the rest in that or fp32, whichever is finer; each in one piece."""
        fine = torch.promote_types(dtype, torch.float32)
        return self._changed(lambda name, old: _whole(old, dtype if name in MATRICES else fine))

    def _changed(self, change: Callable[[str, Tensor], Tensor]) -> Self:
        """The same structure with each tensor of each named field changed, in the order of the fields."""
        made: dict[str, Any] = {}
        for name, own in self.given().items():
            if isinstance(own, tuple):  # a named one stays one
                made[name] = getattr(own, "_make", tuple)(change(name, tensor) for tensor in own)
            else:
                made[name] = None if own is None else change(name, own)
        return replace(self, **made)

    def looped(self) -> list[tuple[Any, Sequence[Any]]]:
        """The stacks that are applied again and again, each with its layers one by one."""
        return [(self.stack, self.layers)]


class StackedTransformer(SeedModel):
    """A configuration and its three verbs; the weights are passed in, so that nothing here has state."""

    def __init__(self, config: ModelConfig, linear: layer_ops.Linear = layer_ops.linear) -> None:
        self.config = config
        self.layout = Layout(config)
        self.linear = linear
        self.normalise = layer_ops.normalise if config.norm == "layer" else nn.Identity()
        self.activate = layer_ops.gelu if config.activation == "gelu" else torch.relu

    def prepare(self, flat: Float[Tensor, "S P"], dtype: torch.dtype | None = None) -> Prepared:
        """Folds and casts the weights once, for any number of steps, to the model's precision. Differentiable."""
        return self.fold(flat).in_precision(dtype or getattr(torch, self.config.precision))

    def fold(self, flat: Float[Tensor, "S P"], fold: layer_ops.Fold = layer_ops.fold) -> Prepared:
        """The weights with norms folded in, in their own precision and wherever they lie. Differentiable.

        `fold` is called for every stack in turn; what is in no stack is a view into `flat`, except an embedding with
        a bias, which is the sum of the two.
        """
        weights, stacks = self.layout.stacks(flat)
        embed = weights["embed"]
        if "embed.bias" in weights:
            embed = embed + weights["embed.bias"][:, None]  # each position has one token, so one bias
        return Prepared(
            embed,
            weights["norm.scale"][:, None, None],
            weights["norm.shift"][:, None, None],
            weights["readout.weight"],
            weights["readout.bias"][:, None],
            layer_ops.Layer(*fold(stacks["layers"], layer_ops.LAYER)),
            layer_ops.Layer(*fold(stacks["before"], layer_ops.LAYER)) if "before" in stacks else None,
            head_of(weights, "halt") if self.config.halting != "none" else (),
            weights.get("position"),
        )

    def embed(
        self,
        weights: Prepared,
        tokens: Int[Tensor, "S B L"],
        at: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "S B L D"]:
        """The input as the state's language; `at` overrides the position numbers."""
        s, b, size = tokens.shape
        names = torch.arange(self.config.vocab, device=tokens.device)
        one_hot = (tokens[..., None] == names).to(weights.embed.dtype).view(s, b * size, -1)
        x = torch.bmm(one_hot, weights.embed).view(s, b, size, -1)
        if weights.table is not None:
            if at is None:
                at = positions.places(self.config, b, size, tokens.device)
            x = x + positions.embed(self.config, weights.table, at)
        for layer in weights.before:
            x = self._layer(layer, x, partial(attention.attend, self.config.first))
        return x

    def step(
        self,
        weights: Prepared,
        u: Float[Tensor, "S B L D"],
        caches: list[attention.Cache | None] | None = None,
        packing: Packing | None = None,
    ) -> Float[Tensor, "S B L D"]:
        """The block and the final norm on `u`, the state with the input already added (see `inject`).

        `caches` holds each layer's keys and values of earlier positions and is updated in place. With a `packing`, `u`
        is [S, 1, R, D]: rows of different sizes one after the other.
        """
        h = u
        plain = caches is None and packing is None and self.linear is layer_ops.linear
        narrow = plain and kernels.suits_narrow(self.config, weights.layers[0], h)
        if plain and not narrow and suits_fused(self.config, weights.layers[0], u):
            return fused_step(kernels, self.config, weights.layers, weights.scale, weights.shift, u)
        for i, layer in enumerate(weights.layers):
            if narrow:
                h = kernels.narrow_layer(self.config, layer, h)
            else:
                h = self._layer(layer, h, self._attend(caches, i, packing))
        return torch.addcmul(weights.shift, self.normalise(h), weights.scale)

    def _layer(self, layer: layer_ops.Layer, h: Tensor, attend: layer_ops.Attend) -> Tensor:
        return layer_ops.apply_layer(layer, h, attend, self.linear, self.normalise, self.activate)

    def _attend(
        self, caches: list[attention.Cache | None] | None, i: int, packing: Packing | None
    ) -> layer_ops.Attend:
        if packing is not None:
            return partial(attention.attend_packed, self.config, packing)
        if caches is None:
            return partial(attention.attend, self.config)

        def after(qkv: Tensor) -> Tensor:
            mixed, caches[i] = attention.attend_after(self.config, qkv, caches[i])
            return mixed

        return after

    def injected_from(self, grad: Tensor) -> Tensor:
        """The gradient of what `inject` took its row from, given that of what it gave: a relay's is the sum of all."""
        if not self.config.relay:
            return grad
        passed = grad.clone()
        passed[..., :-1, : self.config.relay] = 0
        passed[..., -1, : self.config.relay] = grad[..., : self.config.relay].sum(-2)
        return passed

    def readout(self, weights: Prepared, h: Float[Tensor, "S B L D"]) -> Float[Tensor, "S B L V"]:
        """Scores of every token at every position."""
        s, b, size, d = h.shape
        logits = torch.baddbmm(
            weights.readout_bias, h.to(weights.readout.dtype).view(s, b * size, d), weights.readout
        )
        return logits.view(s, b, size, -1)


def head_of(weights: dict[str, Tensor], name: str) -> Head:
    """A halting head among a model's weights."""
    return weights[f"{name}.weight"][:, None, None], weights[f"{name}.bias"][:, :, None]


def _whole(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In that precision and in one piece; a cast does both at once, but leaves alone what has the precision already."""
    return tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()


# --- the step in fused kernels: bias, norm, residual and GELU run inside the products' and attention's kernels -----
# The meaning is `layer_ops.apply_layer`, and tests hold both equal. Training keeps what every layer computes on its way
# (`fast/fused.py`); answering needs it for one layer at a time. Shapes: n positions of all rows.


@dataclass(frozen=True)
class Activations:
    """What a layer computes on its way, the inputs of its four products among it."""

    start: Tensor  # [S, n, D] the norm before attention: input of qkv
    start_rstd: Tensor  # [S, n]
    qkv: Tensor  # [S, n, 3D] before its bias
    mixed: Tensor  # [S, n, D] attention's output: input of out
    middle: Tensor  # [S, n, D] the norm before the feed-forward part: input of up
    middle_rstd: Tensor
    pre: Tensor  # [S, n, 4D] before bias and GELU
    inner: Tensor  # [S, n, 4D] input of down


def fused_block(
    ops: Any,
    config: ModelConfig,
    layers: Sequence[layer_ops.Layer],
    packing: Packing,
    h: Float[Tensor, "S n D"],
    each: Sequence[Activations],
    normal: Float[Tensor, "S n D"],
    rstd: Float[Tensor, "S n"],
) -> None:
    """From `h`, which is overwritten and whose norm is in the first layer's `start`, to the last output's norm."""
    for i, (layer, own) in enumerate(zip(layers, each, strict=True)):
        torch.bmm(own.start, layer.qkv, out=own.qkv)
        if packing.longest <= kernels.LONGEST:
            ops.attention_forward(config, packing, own.qkv, layer.qkv_bias, own.mixed)
        else:
            own.mixed.copy_(attention.attend_packed(config, packing, own.qkv + layer.qkv_bias))
        y = torch.bmm(own.mixed, layer.out)
        ops.residual_norm(h, y, layer.out_bias, h, own.middle, own.middle_rstd)
        torch.bmm(own.middle, layer.up, out=own.pre)
        ops.gelu_forward(own.pre, layer.up_bias, own.inner)
        torch.bmm(own.inner, layer.down, out=y)
        last = i + 1 == len(layers)
        into = (normal, rstd) if last else (each[i + 1].start, each[i + 1].start_rstd)
        ops.residual_norm(h, y, layer.down_bias, None if last else h, *into)


def suits_fused(config: ModelConfig, layer: layer_ops.Layer, u: Tensor) -> bool:
    """Whether `fused_step` can take this state: on CUDA, and no gradients are asked for."""
    fits = u.dtype == torch.float32 and layer.qkv.dtype in (torch.float32, torch.bfloat16)
    return u.is_cuda and kernels.knows(config) and fits and not torch.is_grad_enabled()


def fused_step(
    ops: Any,
    config: ModelConfig,
    layers: tuple[layer_ops.Layer, ...],
    scale: Float[Tensor, "S 1 1 D"],
    shift: Float[Tensor, "S 1 1 D"],
    u: Float[Tensor, "S B L D"],
) -> Float[Tensor, "S B L D"]:
    """The block and the final norm."""
    s, b, size, d = u.shape
    n, precision = b * size, layers[0].qkv.dtype
    given, h, normal = u.reshape(s, n, d), u.new_empty(s, n, d), u.new_empty(s, n, d)
    rstd = u.new_empty(s, n)
    narrow = torch.empty(s, n, d, dtype=precision, device=u.device)
    wide = narrow.new_empty(s, n, config.expansion * d)
    # One layer at a time, so that a place serves again as soon as what it held has been used.
    own = Activations(narrow, rstd, narrow.new_empty(s, n, 3 * d), narrow, narrow, rstd, wide, wide)
    packing = Packing.padded(b, size)
    ops.inject_norm(None, given, scale, shift, h, own.start, rstd)
    fused_block(ops, config, layers, packing, h, [own] * len(layers), normal, rstd)
    return torch.addcmul(shift, normal.view(s, b, size, d), scale)
