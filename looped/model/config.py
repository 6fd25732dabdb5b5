"""The shape of a model. Knows nothing of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from looped.errors import InputError

PositionKind = Literal["none", "rotary", "alibi", "learned", "randomised"]


@dataclass(frozen=True)
class ModelConfig:
    """A looped decoder: `layers` distinct layers, applied again and again."""

    vocab: int  # tokens it reads and writes
    layers: int = 2  # layers of the block
    heads: int = 8  # attention heads of a layer
    width: int = 256  # size of the state at a position
    expansion: int = 4  # feed-forward width, in multiples of `width`
    injection: bool = True  # add the embedded input to the state before every step, not only before the first
    bands: tuple[
        int, ...
    ] = ()  # how many positions (itself included) each of the first heads sees; the rest see all
    sharpen: bool = False  # scale the scores of heads that see all by the logarithm of how much they see
    positions: PositionKind = "none"  # how a position is told apart from another, apart from the causal mask
    max_positions: int = 2048  # rows of a learned table, or the range randomised positions are drawn from
    embedding_std: float = 1.0  # initial scale of the token embedding
    init_std: float = 0.02  # initial scale of every other matrix, GPT-2's

    def __post_init__(self) -> None:
        for name in ("vocab", "layers", "heads", "width", "expansion", "max_positions"):
            if getattr(self, name) < 1:
                raise InputError(f"a model's {name} must be at least 1, not {getattr(self, name)}")
        if self.width % self.heads:
            raise InputError(
                f"a model's width must be a multiple of its heads: {self.width} is not one of {self.heads}"
            )
        if len(self.bands) > self.heads or any(band < 1 for band in self.bands):
            raise InputError(f"bands must be at most {self.heads} widths of at least 1, not {self.bands}")
        if self.positions not in ("none", "rotary", "alibi", "learned", "randomised"):
            raise InputError(
                f"unknown positions {self.positions!r}; there are none, rotary, alibi, learned, randomised"
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise InputError(f"rotary positions need an even head size, not {self.head_size}")

    @property
    def head_size(self) -> int:
        """State entries that belong to one head."""
        return self.width // self.heads

    @property
    def head_bands(self) -> tuple[int, ...]:
        """The band of every head, 0 for a head that sees everything before it."""
        return self.bands + (0,) * (self.heads - len(self.bands))
