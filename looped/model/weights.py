"""A model's weights: one flat row of numbers per seed, and named views into it.

Every weight of S seeds lives in one tensor `flat` of shape [S, P]. The optimiser, the weight average and the gradient
norm of a seed are then one pass over a row each, and a checkpoint is one row without the seed axis, by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from looped.errors import InputError
from looped.model.config import ModelConfig

ALIGN = 64  # every weight starts at a multiple of so many numbers: kernels of products load it in one go


@dataclass(frozen=True)
class Slot:
    """Where one named weight lives in a row, and how it starts."""

    name: str
    shape: tuple[int, ...]
    start: int
    std: float  # initial standard deviation
    mean: float = 0.0
    uniform: bool = False  # drawn evenly from mean ± √3·std, not from a normal distribution

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


class Layout:
    """The places of all weights of a configuration in a row of `size` numbers."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        slots: list[Slot] = []
        at = 0
        for name, shape, std, mean, *uniform in _weights(config):
            slots.append(Slot(name, shape, at, std, mean, any(uniform)))
            at += -(-math.prod(shape) // ALIGN) * ALIGN
        self.slots: dict[str, Slot] = {slot.name: slot for slot in slots}
        self.size: int = at

    @property
    def parameters(self) -> int:
        """Trainable numbers of one seed, padding left out."""
        return sum(slot.size for slot in self.slots.values())

    def views(self, flat: Float[Tensor, "S P"]) -> dict[str, Tensor]:
        """Every weight by name, [S, *shape], as views."""
        return {
            slot.name: flat[:, slot.start : slot.start + slot.size].view(flat.shape[0], *slot.shape)
            for slot in self.slots.values()
        }

    def stacks(self, flat: Float[Tensor, "S P"]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
        """The weights that exist once, by name, and for every stack of equal layers theirs, [layers, S, *shape].

        Views, too. A stack is a handful of tensors, however deep it is, and the gradient comes back in one piece.
        """
        single: dict[str, Tensor] = {}
        stacked: dict[str, dict[str, Tensor]] = {}
        for stack, slot, part in self._parts(flat):
            own = part if part.shape[2] == slot.size else part[..., : slot.size]  # the rest is padding
            tensor = own.view(*part.shape[:2], *slot.shape).transpose(0, 1)
            if stack:
                stacked.setdefault(stack, {})[slot.name.split(".", 2)[2]] = tensor
            else:
                single[slot.name] = tensor[0]
        return single, stacked

    def padding(self, flat: Float[Tensor, "S P"]) -> list[Tensor]:
        """What lies behind weights and belongs to none: views, one for all layers of a stack."""
        return [part[..., slot.size :] for _, slot, part in self._parts(flat) if part.shape[2] > slot.size]

    def _parts(self, flat: Float[Tensor, "S P"]) -> Iterator[tuple[str, Slot, Float[Tensor, "S layers N"]]]:
        """Every weight with the padding behind it, those of a stack's layers together: its stack, if any, and slot."""
        runs = _runs(self.slots)
        ends = [*(slots[0].start for _, slots in runs), self.size][1:]
        sizes = [end - slots[0].start for (_, slots), end in zip(runs, ends, strict=True)]
        for (stack, slots), whole in zip(runs, torch.split(flat, sizes, dim=1), strict=True):
            first = [slot for slot in slots if slot.name.startswith(f"{stack}.0.")] if stack else slots
            each = whole.view(whole.shape[0], len(slots) // len(first), -1)
            starts = [*(slot.start - first[0].start for slot in first), each.shape[2]]
            parts = torch.split(each, [end - start for start, end in pairwise(starts)], dim=2)
            yield from ((stack, slot, part) for slot, part in zip(first, parts, strict=True))

    def initialise(self, seeds: list[int], device: torch.device | str = "cpu") -> Float[Tensor, "S P"]:
        """Fresh weights for each seed, drawn on the CPU so that a seed means the same on every device."""
        flat = torch.zeros(len(seeds), self.size)
        for row, seed in enumerate(seeds):
            generator = torch.Generator().manual_seed(seed)
            for slot in self.slots.values():
                here = flat[row, slot.start : slot.start + slot.size]
                if slot.uniform:
                    bound = math.sqrt(3) * slot.std
                    here.uniform_(slot.mean - bound, slot.mean + bound, generator=generator)
                elif slot.std:
                    here.normal_(slot.mean, slot.std, generator=generator)
                else:
                    here.fill_(slot.mean)
        return flat.to(device)

    def to_dict(self, row: Float[Tensor, "P"]) -> dict[str, Tensor]:
        """One seed's weights by name, each its own contiguous copy: what a checkpoint holds."""
        return {name: view[0].detach().cpu().clone() for name, view in self.views(row[None]).items()}

    def from_dict(self, weights: Mapping[str, Tensor]) -> Float[Tensor, "P"]:
        """The inverse of `to_dict`; raises if a weight is missing, foreign or of another shape."""
        if weights.keys() != self.slots.keys():
            odd = sorted(weights.keys() ^ self.slots.keys())[:3]
            raise InputError(
                f"these are weights of another model: {', '.join(odd)} do not match the configuration"
            )
        row = torch.zeros(self.size)
        for name, slot in self.slots.items():
            if tuple(weights[name].shape) != slot.shape:
                raise InputError(
                    f"weight {name} has shape {tuple(weights[name].shape)}, expected {slot.shape}"
                )
            row[slot.start : slot.start + slot.size] = weights[name].to(torch.float32).flatten()
        return row


def _runs(slots: Mapping[str, Slot]) -> list[tuple[str, list[Slot]]]:
    """Slots that follow each other: those of a stack of layers together under its name, any other alone under none."""
    runs: list[tuple[str, list[Slot]]] = []
    for slot in slots.values():
        stack, _, rest = slot.name.partition(".")
        named = stack if rest[:1].isdigit() else ""
        if named and runs and runs[-1][0] == named:
            runs[-1][1].append(slot)
        else:
            runs.append((named, [slot]))
    return runs


def check_shapes(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises unless a file's tensors have the names and shapes of a model's weights."""
    layers = config.before + config.layers
    if layers > len(shapes):  # before a layout of that many layers is made
        raise InputError(f"it says it has {layers} layers, but holds {len(shapes)} tensors")
    expected = {name: slot.shape for name, slot in Layout(config).slots.items()}
    odd = sorted(name for name in shapes.keys() | expected.keys() if shapes.get(name) != expected.get(name))
    if odd:
        raise InputError(f"its weights do not fit its configuration, {ascii(odd[0][:40])[1:-1]} first")


def check_numbers(weights: Mapping[str, Tensor], kind: torch.dtype = torch.float32) -> None:
    """Raises unless a file's tensors are finite numbers of the type that its weights are kept in."""
    for name, tensor in weights.items():
        if tensor.dtype != kind or not bool(tensor.isfinite().all()):
            why = "" if tensor.dtype != kind else ": the run has diverged, train it again with a smaller lr"
            raise InputError(
                f"its {name} must hold finite numbers of type {str(kind).removeprefix('torch.')}{why}"
            )


Start = tuple[str, tuple[int, ...], float, float] | tuple[str, tuple[int, ...], float, float, bool]


def _weights(config: ModelConfig) -> Iterator[Start]:
    """Name, shape, initial deviation and mean of every weight, and whether it is drawn evenly."""
    d = config.width
    yield from _read_in(config)
    if config.positions in ("learned", "randomised", "start"):
        rows = 1 if config.positions == "start" else config.max_positions
        yield "position", (rows, d), config.init_std, 0.0
    loop = "layers" if config.kind == "decoder" else "decoder"
    for stack, layers in (("before", config.before), (loop, config.layers)):
        for i in range(layers):
            yield from _layer(config, f"{stack}.{i}.")
    yield from _norm("norm", d)
    yield from _read_out(config)
    if config.halting != "none":
        yield from _head(config, "halt")
    if config.kind == "universal":
        yield from _universal(config)


def _read_in(config: ModelConfig) -> Iterator[Start]:
    """The token embedding, as `config.initialisation` names it.

    gpt2       N(0, embedding_std), no bias
    linear     torch's default for Linear(vocab → width) with a bias on one-hot tokens: all uniform in ±1/√vocab.
               The authors' code does this for all tasks but unique set; an embedded token has a deviation of .33
    embedding  torch's default for Embedding: N(0, 1), no bias; the authors' for unique set
    """
    shape = (config.vocab, config.width)
    if config.initialisation == "linear":
        std = 1 / math.sqrt(3 * config.vocab)
        yield "embed", shape, std, 0.0, True
        yield "embed.bias", (config.width,), std, 0.0, True
    else:
        yield "embed", shape, config.embedding_std if config.initialisation == "gpt2" else 1.0, 0.0


def _read_out(config: ModelConfig) -> Iterator[Start]:
    """The scores of tokens: as GPT-2 starts them, or torch's default for Linear(width → vocab), ±1/√width."""
    shape = (config.width, config.vocab)
    if config.initialisation == "gpt2":
        yield from _matrix("readout", *shape, config.init_std)
    else:
        std = 1 / math.sqrt(3 * config.width)
        yield "readout.weight", shape, std, 0.0, True
        yield "readout.bias", shape[1:], std, 0.0, True


def _head(config: ModelConfig, name: str) -> Iterator[Start]:
    yield f"{name}.weight", (config.width,), config.init_std, 0.0
    yield f"{name}.bias", (1,), 0.0, config.halt_start


def _universal(config: ModelConfig) -> Iterator[Start]:
    """What an encoder and a decoder's look at it have beside the decoder."""
    d, std = config.width, config.init_std
    for i in range(config.layers):
        yield from _layer(config, f"encoder.{i}.")
    for i in range(config.layers):
        at = f"decoder.{i}."
        yield from _norm(at + "norm3", d)
        yield from _matrix(at + "query", d, d, std)
        yield from _matrix(at + "keyvalue", d, 2 * d, std)
        yield from _matrix(at + "cross", d, d, std / math.sqrt(2 * config.layers))
    yield from _norm("memory", d)
    if config.halting == "act":
        yield from _head(config, "listener")


def _layer(config: ModelConfig, at: str) -> Iterator[Start]:
    d, inner, std = config.width, config.expansion * config.width, config.init_std
    residual_std = std / math.sqrt(2 * config.layers)
    yield from _norm(at + "norm1", d)
    yield from _matrix(at + "qkv", d, 3 * d, std)
    yield from _matrix(at + "out", d, d, residual_std)
    yield from _norm(at + "norm2", d)
    yield from _matrix(at + "up", d, inner, std)
    yield from _matrix(at + "down", inner, d, residual_std)


def _norm(name: str, width: int) -> Iterator[Start]:
    yield f"{name}.scale", (width,), 0.0, 1.0
    yield f"{name}.shift", (width,), 0.0, 0.0


def _matrix(name: str, rows: int, columns: int, std: float) -> Iterator[Start]:
    yield f"{name}.weight", (rows, columns), std, 0.0
    yield f"{name}.bias", (columns,), 0.0, 0.0
