"""The block that the model loops: pre-norm decoder layers, one after the other.

    h = h + attention(norm1(h));   h = h + mlp(norm2(h))        per layer

This is the file to change for another feed-forward part, norm or attention. Every part is a submodule that can be
replaced, and any module from [B, L, D] to [B, L, D] can stand in the place of the whole block (`net.block = …`).

Shapes: B rows, L positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from looped.model.attention import CausalAttention
from looped.model.config import ModelConfig

# By the name in a configuration; GPT-2's GELU is the one by the hyperbolic tangent.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": partial(nn.GELU, "tanh"), "relu": nn.ReLU}


class Block(nn.Module):
    """The layers of one loop step. Input injection before it and the final norm after it belong to the model."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Apply every layer in turn."""
        for layer in self.layers:
            h = layer(h)
        return h


class DecoderLayer(nn.Module):
    """GPT-2's layer: a norm before each part, a residual connection around it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.norm1 = norm(config)
        self.attention = CausalAttention(config)
        self.norm2 = norm(config)
        self.mlp = FeedForward(config)

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Attention over positions, then the feed-forward part at each of them."""
        h = h + self.attention(self.norm1(h))
        return h + self.mlp(self.norm2(h))  # type: ignore[no-any-return]


class FeedForward(nn.Module):
    """Two matrices with an activation between them, at every position by itself."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.expansion * config.width
        self.up = nn.Linear(config.width, inner)
        self.activation = ACTIVATIONS[config.activation]()
        self.down = nn.Linear(inner, config.width)

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """The part's output, without the residual."""
        return self.down(self.activation(self.up(h)))  # type: ignore[no-any-return]


class ScaleShift(nn.Module):
    """A norm's scale and shift without the norm: what models with norm="none" have in its place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, h: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """h · weight + bias."""
        return torch.addcmul(self.bias, h, self.weight)


def norm(config: ModelConfig) -> nn.Module:
    """The norm that a configuration asks for."""
    return nn.LayerNorm(config.width) if config.norm == "layer" else ScaleShift(config.width)
