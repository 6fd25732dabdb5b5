"""A compiled model: its weights as one row, its card, and its file. Knows models and files, not how it was made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped import __version__, checkpoints, serial
from looped.checkpoints import Metadata, Shapes
from looped.compiler.assemble import LONGEST, MOST_WIDTH, Assembled, assemble
from looped.compiler.refusal import refuse
from looped.model.config import ModelConfig
from looped.model.loop import LoopedTransformer, Prepared
from looped.model.weights import Layout, check_numbers, check_shapes
from looped.rasp.program import Program
from looped.rasp.rules import function_place

KIND = "looped-compiled-1"


@dataclass(frozen=True)
class Card:
    """What a compiled model says of itself."""

    program: str  # name of the n-RASP-L program
    max_length: int  # positions of the longest row on which it is exact
    precision: str  # what it computes in
    bits: float  # of the 53 of a float64 that its largest sum needs on such a row, as its weights tell
    before: int  # layers that prepare, applied once
    layers: int  # layers of a step, the read-out folded in
    heads: int
    width: int
    parameters: int  # all numbers but the table of positions
    nonzero: int  # of those
    variables: tuple[tuple[str, int], ...]  # the program's variables, and where in the state each stands
    others: tuple[tuple[str, int], ...]  # the same of flags, clock, token and index


@dataclass(frozen=True)
class Compiled:
    """A program in weights."""

    config: ModelConfig
    row: Float[Tensor, "P"]
    card: Card

    @property
    def model(self) -> LoopedTransformer:
        """The looped decoder that runs it."""
        return LoopedTransformer(self.config)

    def prepare(self, device: torch.device | str = "cpu") -> Prepared:
        """The weights ready for the loop."""
        with torch.no_grad():
            return self.model.prepare(self.row[None].to(device))

    def decode(self, h: Float[Tensor, "S B L D"]) -> dict[str, Int[Tensor, "S B L"]]:
        """The program's variables in a state."""
        return {name: h[..., place].round().long() for name, place in self.card.variables}

    def save(self, path: Path) -> None:
        """Writes weights, configuration and card as one checkpoint."""
        metadata = {
            "config": json.dumps(serial.to_json(self.config), sort_keys=True),
            "card": json.dumps(asdict(self.card), sort_keys=True),
            "looped": __version__,
        }
        checkpoints.save(path, KIND, Layout(self.config).to_dict(self.row), metadata)


def compile_program(program: Program, longest: int = LONGEST, most_width: int = MOST_WIDTH) -> Compiled:
    """Turns a legal n-RASP-L program into weights for rows of up to `longest` positions."""
    made = assemble(program, longest, most_width)
    layout = Layout(made.config)
    tensors = {name: torch.full(slot.shape, slot.mean) for name, slot in layout.slots.items()}
    for name, value in made.weights.items():
        tensors[name] = torch.from_numpy(value).float()
        if bool((tensors[name].double().numpy() != value).any()):
            refuse(
                "row-length",
                f"a weight of {name} does not fit a file's float32",
                function_place(program.prepare),
            )
    return Compiled(made.config, layout.from_dict(tensors), _card(program, made, tensors))


def _card(program: Program, made: Assembled, tensors: dict[str, Tensor]) -> Card:
    counted = {name: tensor for name, tensor in tensors.items() if name != "position" and "norm" not in name}
    config = made.config
    return Card(
        program.name,
        config.max_positions,
        config.precision,
        round(made.bits, 1),
        config.before,
        config.layers,
        config.heads,
        config.width,
        sum(tensor.numel() for tensor in counted.values()),
        sum(int((tensor != 0).sum()) for tensor in counted.values()),
        tuple(made.variables.items()),
        tuple(made.others.items()),
    )


def load(path: Path) -> Compiled:
    """A compiled model's file, verified."""

    def check(metadata: Metadata, shapes: Shapes) -> None:
        check_shapes(_config_in(metadata), shapes)
        _card_in(metadata)

    metadata, tensors = checkpoints.load(path, KIND, check, check_numbers)
    config = _config_in(metadata)
    return Compiled(config, Layout(config).from_dict(tensors), _card_in(metadata))


def _card_in(metadata: Metadata) -> Card:
    return serial.from_json(Card, serial.parse(metadata.get("card", ""), "its card"), "its card")


def _config_in(metadata: Metadata) -> ModelConfig:
    text = metadata.get("config", "")
    return serial.from_json(ModelConfig, serial.parse(text, "its configuration"), "its configuration")
