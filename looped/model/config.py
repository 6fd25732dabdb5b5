"""The shape of a model. Knows nothing of training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args, get_origin, get_type_hints

from looped.errors import InputError
from looped.model.halting import Halting

FARTHEST = 1 << 24  # positions of a table, or of a band
# The least and the most that a field may be; larger values are typing errors.
BOUNDS = {
    "vocab": (1, 1 << 20), "layers": (1, 10_000), "heads": (1, 1 << 20), "width": (1, 1 << 20),
    "expansion": (1, 1 << 10), "max_positions": (1, FARTHEST), "before": (0, 10_000),
    "embedding_std": (0, 100), "init_std": (0, 100),
}  # fmt: skip

PositionKind = Literal["none", "start", "rotary", "alibi", "learned", "randomised"]


@dataclass(frozen=True)
class ModelConfig:
    """A looped decoder: `layers` distinct layers, applied again and again."""

    OLD_VALUES = (("halting", "mark", "eoq"),)

    vocab: int  # tokens it reads and writes
    layers: int = 2  # layers of the block
    heads: int = 8  # attention heads of a layer
    width: int = 256  # size of the state at a position
    expansion: int = 4  # feed-forward width, in multiples of `width`
    injection: bool = True  # add the embedded input to the state before every step, not only before the first
    bands: tuple[int, ...] = ()  # positions that each of the first heads sees, with its own; others see all
    sharpen: bool = False  # scale the scores of heads that see all by the logarithm of how much they see
    positions: PositionKind = "none"  # how a position is told apart from another, apart from the causal mask
    max_positions: int = 2048  # rows of a learned table, or the range randomised positions are drawn from
    embedding_std: float = 0.02  # initial scale of the token embedding, GPT-2's
    init_std: float = 0.02  # initial scale of every other matrix, GPT-2's
    initialisation: Literal["gpt2", "linear", "embedding"] = "gpt2"  # how read-in and read-out start
    # What a program compiled into weights asks for (`looped.compiler`); every default is the paper's block.
    norm: Literal["layer", "none"] = "layer"  # normalise before every matrix and after every step, or nowhere
    activation: Literal["gelu", "relu"] = "gelu"  # of the feed-forward part
    precision: Literal["float32", "float64"] = "float32"  # what the loop computes in unless told otherwise
    running: int = 0  # of the last heads: each takes the value of the best key so far, whatever the query
    before: int = 0  # layers applied once to the embedded input, before the loop
    before_bands: tuple[int, ...] = ()  # `bands` of those layers
    before_running: int = 0  # `running` of those layers
    relay: int = 0  # first entries of the state that every position takes from its row's last, before a step
    halt: int | None = None  # entry of the last position's state that is 1 when the answer is there, else 0
    # Learned halting (`looped.model.halting`) and the encoder-decoder that came with it.
    kind: Literal["decoder", "universal"] = "decoder"  # looped, or a Universal Transformer
    halting: Halting = "none"  # a head that says when to stop: adaptive computation time, PonderNet, or ours
    halt_bias: float | None = None  # where that head starts; none: at 1 (act, as published) or -2 (ponder)

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise InputError(f"unknown {name} {getattr(self, name)!r}; there are {', '.join(known)}")
        check_bounds(self, BOUNDS, "a model's ")
        for bands, running in ((self.bands, self.running), (self.before_bands, self.before_running)):
            free = self.heads - len(bands)
            refuse(
                (free < 0 or not all(1 <= band <= FARTHEST for band in bands),
                 f"bands must be at most {self.heads} widths from 1 to {FARTHEST:,}, not {str(bands)[:60]}"),
                (not 0 <= running <= free,
                 f"running heads must be between 0 and the {free} without a band, not {running}"),
            )  # fmt: skip
        refuse(
            (self.width % self.heads,
             f"a model's width must be a multiple of its heads: {self.width} is not one of {self.heads}"),
            (not 0 <= self.relay <= self.width, f"relay must be from 0 to the width {self.width}, not {self.relay}"),
            (self.halt is not None and not 0 <= self.halt < self.width,
             f"halt must name an entry of the state, 0 to {self.width - 1}, not {self.halt}"),
            (self.kind == "universal" and (self.halting == "none" or not self.ordinary or self.bands),
             "a universal model is an ordinary one without bands, and has a halting head"),
            (self.halting != "none" and self.halt is not None,
             "a model says that it is done by an entry of its state or by a head, not both"),
            (self.initialisation != "gpt2" and (self.kind == "universal" or self.embedding_std != 0.02),
             f"universal models and embedding_std need initialisation=gpt2, not {self.initialisation}"),
            (self.positions == "rotary" and self.head_size % 2,
             f"rotary positions need an even head size, not {self.head_size}"),
        )  # fmt: skip

    @property
    def head_size(self) -> int:
        """State entries that belong to one head."""
        return self.width // self.heads

    @property
    def position_rows(self) -> int:
        """Rows of the table of trained positions; 0 without one."""
        rows = {"start": 1, "learned": self.max_positions, "randomised": self.max_positions}
        return rows.get(self.positions, 0)

    @property
    def ordinary(self) -> bool:
        """Whether a step is the paper's block, which is all that the hand-written kernels know."""
        extras = self.running or self.before or self.relay
        return self.norm == "layer" and self.activation == "gelu" and not extras

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
        """The layers before the loop."""
        return replace(self, layers=self.before, bands=self.before_bands, running=self.before_running)

    @property
    def head_bands(self) -> tuple[int, ...]:
        """The band of every head, 0 for a head that sees everything before it."""
        return self.bands + (0,) * (self.heads - len(self.bands))


# The values that each field of words may have; any other is an error.
CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(hint) for name, hint in get_type_hints(ModelConfig).items() if get_origin(hint) is Literal
}


def check_bounds(config: object, bounds: Mapping[str, tuple[float, float]], whose: str = "") -> None:
    """Raise if a field lies outside its bounds: the least and the most that it may be."""
    for name, (least, most) in bounds.items():
        value = getattr(config, name)
        if value > most:
            raise InputError(f"{whose}{name} must be at most {most:,}, not {value:,}")
        if not value >= least:  # so that what is no number is refused
            limit = f"must be at least {least}, not" if least else "must not be negative, but is"
            raise InputError(f"{whose}{name} {limit} {value}")


def refuse(*rules: tuple[object, str]) -> None:
    """Raise the sentence of the first rule that is broken."""
    for broken, sentence in rules:
        if broken:
            raise InputError(sentence)
