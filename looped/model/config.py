"""The shape of a model. Knows nothing of training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from looped.errors import InputError
from looped.model.halting import Halting

# Upper bounds; larger values are typing errors.
DEEPEST = 10_000  # layers
WIDEST = 1 << 20  # numbers of a state, or tokens
LARGEST_STD = 100  # of initial weights
LARGEST_EXPANSION = 1 << 10
FARTHEST = 1 << 24  # positions of a table, or of a band

PositionKind = Literal["none", "start", "rotary", "alibi", "learned", "randomised"]
NormKind = Literal["layer", "none"]
ActivationKind = Literal["gelu", "relu"]
Precision = Literal["float32", "float64"]
KindOfModel = Literal["decoder", "universal"]
Initialisation = Literal["gpt2", "linear", "embedding"]

# The values that each field of words may have; any other is an error.
CHOICES: dict[str, tuple[str, ...]] = {
    "positions": get_args(PositionKind),
    "norm": get_args(NormKind),
    "activation": get_args(ActivationKind),
    "precision": get_args(Precision),
    "kind": get_args(KindOfModel),
    "initialisation": get_args(Initialisation),
    "halting": get_args(Halting),
}


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
    ] = ()  # positions that each of the first heads sees, its own included; others see all
    sharpen: bool = False  # scale the scores of heads that see all by the logarithm of how much they see
    positions: PositionKind = "none"  # how a position is told apart from another, apart from the causal mask
    max_positions: int = 2048  # rows of a learned table, or the range randomised positions are drawn from
    embedding_std: float = 0.02  # initial scale of the token embedding, GPT-2's
    init_std: float = 0.02  # initial scale of every other matrix, GPT-2's
    initialisation: Initialisation = "gpt2"  # how the read-in and the read-out start (`looped.model.weights`)
    # What a program compiled into weights asks for (`looped.compiler`); every default is the paper's block.
    norm: NormKind = "layer"  # normalise before every matrix and after every step, or nowhere
    activation: ActivationKind = "gelu"  # of the feed-forward part
    precision: Precision = "float32"  # what the loop computes in unless told otherwise
    running: int = 0  # of the last heads: each takes the value of the best key so far, whatever the query
    before: int = 0  # layers applied once to the embedded input, before the loop
    before_bands: tuple[int, ...] = ()  # `bands` of those layers
    before_running: int = 0  # `running` of those layers
    relay: int = 0  # first entries of the state that every position takes from its row's last, before a step
    halt: int | None = None  # entry of the last position's state that is 1 when the answer is there, else 0
    # Learned halting (`looped.model.halting`) and the encoder-decoder that came with it.
    kind: KindOfModel = "decoder"  # the looped decoder, or a Universal Transformer (`looped.fast.universal`)
    halting: Halting = "none"  # a head that says when to stop: adaptive computation time, PonderNet, or ours
    halt_bias: float | None = None  # where that head starts; none: at 1 (act, as published) or -2 (ponder)

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; there are {', '.join(known)}")
        for name in ("vocab", "layers", "heads", "width", "expansion", "max_positions"):
            if getattr(self, name) < 1:
                raise InputError(f"a model's {name} must be at least 1, not {getattr(self, name)}")
        for name, most in (("vocab", WIDEST), ("layers", DEEPEST), ("before", DEEPEST), ("width", WIDEST),
                           ("expansion", LARGEST_EXPANSION), ("max_positions", FARTHEST)):  # fmt: skip
            if getattr(self, name) > most:
                raise InputError(f"a model's {name} must be at most {most:,}, not {getattr(self, name):,}")
        for name in ("embedding_std", "init_std"):
            if not 0 <= getattr(self, name) <= LARGEST_STD:
                raise InputError(f"{name} must be from 0 to {LARGEST_STD}, not {getattr(self, name):g}")
        if self.width % self.heads:
            raise InputError(
                f"a model's width must be a multiple of its heads: {self.width} is not one of {self.heads}"
            )
        for bands, running in ((self.bands, self.running), (self.before_bands, self.before_running)):
            if len(bands) > self.heads or not all(1 <= band <= FARTHEST for band in bands):
                raise InputError(
                    f"bands must be at most {self.heads} widths from 1 to {FARTHEST:,}, not {str(bands)[:60]}"
                )
            if not 0 <= running <= self.heads - len(bands):
                free = self.heads - len(bands)
                raise InputError(
                    f"running heads must be between 0 and the {free} without a band, not {running}"
                )
        if self.before < 0 or not 0 <= self.relay <= self.width:
            raise InputError(f"before and relay must not be negative, nor relay above the width {self.width}")
        if self.halt is not None and not 0 <= self.halt < self.width:
            raise InputError(f"halt must name an entry of the state, 0 to {self.width - 1}, not {self.halt}")
        if self.kind == "universal" and (self.halting == "none" or not self.ordinary or self.bands):
            raise InputError("a universal model is an ordinary one without bands, and has a halting head")
        if self.halting != "none" and self.halt is not None:
            raise InputError("a model says that it is done by an entry of its state or by a head, not both")
        if self.initialisation != "gpt2" and (self.kind == "universal" or self.embedding_std != 0.02):
            raise InputError(
                "universal models and embedding_std need initialisation=gpt2, not " + self.initialisation
            )
        if self.positions == "rotary" and self.head_size % 2:
            raise InputError(f"rotary positions need an even head size, not {self.head_size}")

    @property
    def head_size(self) -> int:
        """State entries that belong to one head."""
        return self.width // self.heads

    @property
    def ordinary(self) -> bool:
        """Whether a step is the paper's block, which is all that the hand-written kernels know."""
        return (
            self.norm == "layer"
            and self.activation == "gelu"
            and not (self.running or self.before or self.relay)
        )

    @property
    def halt_start(self) -> float:
        """The halting head's first bias: σ(1) = .73 a step, or σ(-2) = .12, which leaves room to learn long loops."""
        if self.halt_bias is not None:
            return self.halt_bias
        return 1.0 if self.halting == "act" else -2.0

    @property
    def says_done(self) -> bool:
        """Whether the model itself can say when to stop, which is what the stopping rule `halt` asks."""
        return self.halt is not None or self.halting != "none"

    @property
    def first(self) -> ModelConfig:
        """What the layers before the loop attend with."""
        return replace(self, bands=self.before_bands, running=self.before_running)

    @property
    def head_bands(self) -> tuple[int, ...]:
        """The band of every head, 0 for a head that sees everything before it."""
        return self.bands + (0,) * (self.heads - len(self.bands))
