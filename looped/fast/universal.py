"""The Universal Transformer (Dehghani et al., 2019): an encoder and a decoder, each one block applied again and again.

    encoder   e ← norm(block(e + P(place) + P(step)))                      over the question, seeing all of it
    decoder   d ← norm(block(d + P(place) + P(step), looking at e))        over the answer so far, token by token

P are sine waves. There is no injection: the state starts as the embedded token. As published, every position halts on
its own by adaptive computation time, first in the encoder and then in the decoder, which looks at the encoder's
output; a position that has halted is copied. With PonderNet's halting node both step together, the decoder looking at
the encoder's present state, and the node reads the encoder alone: when to stop is known before the first answer token.

Copy of `1 0 1`: the row `1 0 1 > 1 0 1 #` is both inputs. The encoder sees `1 0 1 >`, the decoder starts at `>`:

    places    0 1 2 3            for the encoder
                    0 1 2 3 4    for the decoder, which is asked for `1 0 1 # #`

Where paper and released code differ, layers normalise before they compute, as the code does, and the state is
normalised after every step, as the paper's is; the output is the weighted mean of the states, as in Graves' ACT.
Shapes: S seeds, B rows, L positions, D width, V vocabulary, N = S·B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.fast import layer_ops
from looped.fast.layer_ops import Layer, unstack
from looped.fast.stacked import Prepared, StackedTransformer, head_of
from looped.model import halting
from looped.model.halting import Act, Head

Step = Callable[..., Tensor]  # one of the model's two steps, or the same recomputed backward


class Cross(NamedTuple):
    """What a decoder layer looks at the encoder with."""

    query: Tensor
    query_bias: Tensor
    keyvalue: Tensor
    keyvalue_bias: Tensor
    out: Tensor
    out_bias: Tensor


CROSS: layer_ops.Behind = (("query", "norm3"), ("keyvalue", None), ("cross", None))  # in the order of `Cross`


@dataclass(frozen=True)
class PreparedUniversal(Prepared):
    """The decoder's weights where the looped decoder has its own, and the encoder's beside them."""

    encoder_stack: Layer | None = None
    cross_stack: Cross | None = None
    memory: tuple[Tensor, ...] = ()  # scale and shift of the encoder's norm
    listener: Head = ()  # the encoder's halting head, where it has one of its own

    encoder: tuple[Layer, ...] = field(init=False)
    cross: tuple[Cross, ...] = field(init=False)  # a decoder layer's look at the encoder

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.encoder_stack is not None
        assert self.cross_stack is not None
        object.__setattr__(self, "encoder", unstack(self.encoder_stack))
        object.__setattr__(self, "cross", unstack(self.cross_stack))

    def looped(self) -> list[tuple[Any, Sequence[Any]]]:
        """The stacks that are applied again and again, each with its layers one by one."""
        return [*super().looped(), (self.encoder_stack, self.encoder), (self.cross_stack, self.cross)]


@dataclass(frozen=True)
class Said:
    """What a pass over rows gives: scores after every step that can be read, and how it halted."""

    logits: list[Float[Tensor, "S B L V"]]  # one (adaptive computation time), or one a step (PonderNet)
    wants: list[Float[Tensor, "S B"]]  # how much each row wants to halt, after every step (PonderNet)
    encoder: Act | None = None
    decoder: Act | None = None


class StackedUniversal(StackedTransformer):
    """A configuration of kind `universal` and its verbs; as everywhere, the weights are passed in."""

    def fold(self, flat: Float[Tensor, "S P"], fold: layer_ops.Fold = layer_ops.fold) -> PreparedUniversal:
        """The weights with norms folded in, as `StackedTransformer.fold` has them. Differentiable."""
        weights, stacks = self.layout.stacks(flat)
        return PreparedUniversal(
            embed=weights["embed"],
            stack=Layer(*fold(stacks["decoder"], layer_ops.LAYER)),
            scale=weights["norm.scale"][:, None, None],
            shift=weights["norm.shift"][:, None, None],
            readout=weights["readout.weight"],
            readout_bias=weights["readout.bias"][:, None],
            head=head_of(weights, "halt"),
            encoder_stack=Layer(*fold(stacks["encoder"], layer_ops.LAYER)),
            cross_stack=Cross(*fold(stacks["decoder"], CROSS)),
            memory=(weights["memory.scale"][:, None, None], weights["memory.shift"][:, None, None]),
            listener=head_of(weights, "listener") if self.config.halting == "act" else (),
        )

    # --- the two steps -------------------------------------------------------------------------------------
    def encode_step(
        self, weights: PreparedUniversal, u: Float[Tensor, "S B L D"], seen: Bool[Tensor, "N 1 1 L"]
    ) -> Float[Tensor, "S B L D"]:
        """One pass of the encoder's block over `u`, every position looking at those that are seen."""
        h = u
        for layer in weights.encoder:
            h = self._layer(layer, h, self._among(seen))
        scale, shift = weights.memory
        return torch.addcmul(shift, self.normalise(h), scale)

    def decode_step(
        self,
        weights: PreparedUniversal,
        u: Float[Tensor, "S B L D"],
        memory: Float[Tensor, "S B L D"],
        seen: Bool[Tensor, "N 1 1 L"],
        past: Bool[Tensor, "N 1 L L"],
    ) -> Float[Tensor, "S B L D"]:
        """One pass of the decoder's block: at itself and what came before, at the encoder, then each by itself."""
        h = u
        for layer, cross in zip(weights.layers, weights.cross, strict=True):
            h = layer_ops.mix(layer, h, self._among(past), self.linear, self.normalise)
            h = h + self._look(cross, h, memory, seen)
            h = layer_ops.feed(layer, h, self.linear, self.normalise, self.activate)
        return torch.addcmul(weights.shift, self.normalise(h), weights.scale)

    def _among(self, seen: Tensor) -> layer_ops.Attend:
        """Self-attention at the positions that are seen."""
        return lambda qkv: self._mix(qkv.chunk(3, dim=-1), seen)

    def _look(self, cross: Cross, h: Tensor, memory: Tensor, seen: Tensor) -> Tensor:
        q = layer_ops.product(self.linear, self.normalise(h), cross.query, cross.query_bias)
        kv = layer_ops.product(self.linear, memory, cross.keyvalue, cross.keyvalue_bias)
        mixed = self._mix((q.flatten(0, 1), *kv.flatten(0, 1).chunk(2, dim=-1)), seen)
        return layer_ops.product(self.linear, mixed.view_as(h), cross.out, cross.out_bias)

    def _mix(self, qkv: Sequence[Tensor], seen: Tensor) -> Tensor:
        """Attention of every head, at the keys that are seen."""
        n, size, d = qkv[0].shape
        shape = (n, size, self.config.heads, self.config.head_size)
        q, k, v = (x.reshape(shape).transpose(1, 2) for x in qkv)
        scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(self.config.head_size)
        mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(v.dtype) @ v
        return mixed.transpose(1, 2).reshape(n, size, d)

    # --- both in order -------------------------------------------------------------------------------------
    def answer(
        self,
        weights: PreparedUniversal,
        tokens: Int[Tensor, "S B L"],
        counted: Bool[Tensor, "S B L"],
        most: int,
        encode: Step | None = None,
        decode: Step | None = None,
    ) -> Said:
        """Reads the questions of next-token rows and scores every token of their answers, in at most `most` steps.

        `counted` is true from the end-of-question token on. `encode` and `decode` stand in for the two steps.
        """
        encode, decode = encode or self.encode_step, decode or self.decode_step
        s, b, size = tokens.shape
        question, place = split(counted)
        at = torch.arange(size, device=tokens.device)
        causal = (at[:, None] >= at) & counted[..., None, :]
        past = (causal | (at[:, None] == at)).view(s * b, 1, size, size)
        seen = question.view(s * b, 1, 1, size)
        in_row, in_answer = sine(at, self.config.width), sine(place, self.config.width)
        clock = sine(torch.arange(1, most + 1, device=tokens.device), self.config.width)
        x = self.embed(weights, tokens)
        if (
            self.config.halting == "act"
        ):  # the encoder to its end, then the decoder; positions halt one by one
            reader, writer = halting.act_start(x), halting.act_start(x)
            for t, tick in enumerate(clock, 1):
                e = encode(weights, reader.state + in_row + tick, seen)
                p = halting.logits(weights.listener, e).sigmoid()
                reader = halting.act_step(reader, e, p, last=t == most)
            for t, tick in enumerate(clock, 1):
                d = decode(weights, writer.state + in_answer + tick, reader.output, seen, past)
                p = halting.logits(weights.head, d).sigmoid()
                writer = halting.act_step(writer, d, p, last=t == most)
            return Said([self.readout(weights, writer.output)], [], reader, writer)
        wants: list[Tensor] = []  # PonderNet: both a step at a time; a row halts as a whole
        states: list[Tensor] = []
        e, d = x, x
        for tick in clock:
            e = encode(weights, e + in_row + tick, seen)
            d = decode(weights, d + in_answer + tick, e, seen, past)
            wants.append(halting.pooled(halting.logits(weights.head, e), question))
            states.append(d)
        return Said(read_all(self, weights, states), wants)


def read_all(
    model: StackedTransformer, weights: Prepared, states: list[Float[Tensor, "S B L D"]]
) -> list[Float[Tensor, "S B L V"]]:
    """The scores of many states in one product, so that the gradient of its matrix is summed inside, not in bf16."""
    return list(model.readout(weights, torch.cat(states, dim=1)).chunk(len(states), dim=1))


def split(counted: Bool[Tensor, "S B L"]) -> tuple[Bool[Tensor, "S B L"], Int[Tensor, "S B L"]]:
    """Which positions are the question, its end token included, and every position's place in the answer."""
    place = (counted.long().cumsum(-1) - 1).clamp(min=0)
    return ~counted | (counted & (counted.long().cumsum(-1) == 1)), place


def sine(at: Int[Tensor, "*P"], width: int) -> Float[Tensor, "*P D"]:
    """Sine and cosine waves of the numbers `at`, from wavelength 2π up to 10,000 times that."""
    half = -(-width // 2)
    rate = torch.exp(torch.arange(half, device=at.device) * (-math.log(10_000.0) / max(half - 1, 1)))
    angle = at[..., None] * rate
    return torch.cat([angle.sin(), angle.cos()], dim=-1)[..., :width]
