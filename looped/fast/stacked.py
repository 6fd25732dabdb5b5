"""The looped Transformer in three verbs: embed, step, readout.

    x = embed(tokens);  h = 0;  h = step(h, x) again and again;  logits = readout(h)

`step` is the block with the input injected before it and the final norm after it, as in the authors' code. `unroll`
yields the state after each step; a caller that needs only step T stops there. A fixed-depth Transformer is one step.

Shapes: S seeds, B rows, L positions, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.fast import attention, forward, kernels, layer_ops
from looped.fast.packing import Packing
from looped.model import positions
from looped.model.config import ModelConfig
from looped.model.halting import Gate, Head
from looped.model.seeds import unroll
from looped.model.weights import Layout


@dataclass(frozen=True)
class Prepared:
    """Weights ready for the loop.

    Matrices are in the precision that products run in. What is added to the state, and the state itself, stays in
    fp32 or better: an input of scale .02 added to a state of scale 1 would lose most of its digits in bf16.
    """

    embed: Float[Tensor, "S V D"]
    table: Float[Tensor, "S M D"] | None  # of learned positions
    stack: layer_ops.Layer  # the block's layers, as one stack
    scale: Float[Tensor, "S 1 1 D"]  # of the final norm
    shift: Float[Tensor, "S 1 1 D"]
    readout: Float[Tensor, "S D V"]
    readout_bias: Float[Tensor, "S 1 V"]
    first: layer_ops.Layer | None = None  # a stack that is applied once, before the loop
    head: Head = ()  # that says when to stop
    layers: tuple[layer_ops.Layer, ...] = field(init=False)  # the block's, one by one
    before: tuple[layer_ops.Layer, ...] = field(init=False)

    def __post_init__(self) -> None:
        # Here and not when they are asked for: views made where no gradients are recorded would pass none on.
        object.__setattr__(self, "layers", layer_ops.unstack(self.stack))
        object.__setattr__(self, "before", () if self.first is None else layer_ops.unstack(self.first))

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        own = [self.embed, self.scale, self.shift, self.readout, self.readout_bias]
        return [*own, *self._matrices(), *self.head, *([] if self.table is None else [self.table])]

    def _matrices(self) -> list[Tensor]:
        """Of all stacks."""
        stacks = [stack for stack, _ in self._looped()] + ([] if self.first is None else [self.first])
        return [getattr(stack, f.name) for stack in stacks for f in fields(stack)]

    def _looped(self) -> Sequence[tuple[Any, Sequence[Any]]]:
        """What is applied again and again: stacks, and the layers of each."""
        return [(self.stack, self.layers)]

    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Every matrix that the loop multiplies with again and again, and its bias, as stacks."""
        return [pair for stack, _ in self._looped() for pair in stack.pairs()]

    def each_pair(self) -> list[tuple[tuple[Tensor, Tensor], ...]]:
        """The same layer by layer, in the order of `pairs`."""
        return [
            alike
            for _, layers in self._looped()
            for alike in zip(*(each.pairs() for each in layers), strict=True)
        ]

    def rough(self) -> list[Tensor]:
        """What products run on: matrices and their biases."""
        return [self.readout, self.readout_bias, *self._matrices()]

    def in_precision(self, dtype: torch.dtype) -> Prepared:
        """Matrices and their biases in `dtype`, the rest in that or fp32, whichever is finer; each in one piece."""
        fine = torch.promote_types(dtype, torch.float32)
        rough = {id(tensor) for tensor in self.rough()}
        return self.with_tensors([_whole(t, dtype if id(t) in rough else fine) for t in self.tensors()])

    def with_tensors(self, tensors: list[Tensor]) -> Prepared:
        """The same structure around other tensors, in the order of `tensors`."""
        embed, scale, shift, readout, readout_bias, *rest = tensors
        table = None if self.table is None else rest.pop()
        rest, head = rest[: len(rest) - len(self.head)], tuple(rest[len(rest) - len(self.head) :])
        size = len(fields(layer_ops.Layer))
        stack, *first = (layer_ops.Layer(*rest[i : i + size]) for i in range(0, len(rest), size))
        return Prepared(
            embed, table, stack, scale, shift, readout, readout_bias, first[0] if first else None, head
        )


class StackedTransformer:
    """A configuration and its three verbs; the weights are passed in, so that nothing here has state."""

    def __init__(self, config: ModelConfig, linear: layer_ops.Linear = layer_ops.linear) -> None:
        self.config = config
        self.layout = Layout(config)
        self.linear = linear
        self.normalise = layer_ops.normalise if config.norm == "layer" else layer_ops.unchanged
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
            weights.get("position"),
            layer_ops.Layer(*fold(stacks["layers"], layer_ops.LAYER)),
            weights["norm.scale"][:, None, None],
            weights["norm.shift"][:, None, None],
            weights["readout.weight"],
            weights["readout.bias"][:, None],
            layer_ops.Layer(*fold(stacks["before"], layer_ops.LAYER)) if "before" in stacks else None,
            head_of(weights, "halt") if self.config.halting != "none" else (),
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
                positions.check_size(self.config, size)
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
        if plain and not narrow and forward.suits(self.config, weights.layers[0], u):
            return forward.step(kernels, self.config, weights.layers, weights.scale, weights.shift, u)
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

    def inject(self, h: Tensor | None, x: Tensor) -> Tensor:
        """What a step is applied to: the input alone at first, then the state, with the input if it is injected.

        A model with a relay tells every position what the last one, which has seen the whole row, decided.
        """
        u = x if h is None else h + x if self.config.injection else h
        if not self.config.relay:
            return u
        told = u[..., -1:, : self.config.relay].expand(*u.shape[:-1], self.config.relay)
        return torch.cat([told, u[..., self.config.relay :]], dim=-1)

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

    def gate(self, weights: Prepared, counted: Bool[Tensor, "#S B L"] | None = None) -> Gate:
        """Who follows rows through the loop: see `halting.Gate`."""
        return Gate(self.config.halting, weights.head, counted)

    def unroll(
        self, weights: Prepared, tokens: Int[Tensor, "S B L"], steps: int, gate: Gate | None = None
    ) -> Iterator[Tensor]:
        """What can be read after step 1, 2, …, `steps`: the state, unless a halting head says otherwise."""
        return unroll(self, weights, tokens, steps, gate)


def head_of(weights: dict[str, Tensor], name: str) -> Head:
    """A halting head among a model's weights."""
    return weights[f"{name}.weight"][:, None, None], weights[f"{name}.bias"][:, :, None]


def _whole(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In that precision and in one piece; a cast does both at once, but leaves alone what has the precision already."""
    return tensor.to(dtype, memory_format=torch.contiguous_format).contiguous()
