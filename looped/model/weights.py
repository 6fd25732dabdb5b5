"""A model's weights: one flat row of numbers per seed, and named views into it.

Every weight of S seeds lives in one tensor `flat` of shape [S, P]. The optimiser, the weight average and the gradient
norm of a seed are then one pass over a row each, and a checkpoint is one row without the seed axis, by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from jaxtyping import Float
from torch import Tensor

from looped.errors import InputError
from looped.model.config import ModelConfig

ALIGN = 64  # every weight starts at a multiple of so many numbers: kernels of products load it in one go


@dataclass(frozen=True)
class Slot:
    """One named weight: how it starts, and where it lives in a row."""

    name: str
    shape: tuple[int, ...]
    std: float = 0.0  # initial standard deviation
    mean: float = 0.0
    uniform: bool = False  # drawn evenly from mean ± √3·std, not from a normal distribution
    start: int = 0

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def room(self) -> int:
        """The same with the padding behind it, which belongs to no weight."""
        return -(-self.size // ALIGN) * ALIGN


class Layout:
    """The places of all weights of a configuration in a row of `size` numbers."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.slots: dict[str, Slot] = {}
        self.size = 0
        for slot in _weights(config):
            self.slots[slot.name] = replace(slot, start=self.size)
            self.size += slot.room

    @property
    def parameters(self) -> int:
        """Trainable numbers of one seed, padding left out."""
        return sum(slot.size for slot in self.slots.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight by name."""
        return {slot.name: slot.shape for slot in self.slots.values()}

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
            own = part if slot.room == slot.size else part[..., : slot.size]
            tensor = own.view(*part.shape[:2], *slot.shape).transpose(0, 1)
            if stack == slot.name:
                single[stack] = tensor[0]
            else:
                stacked.setdefault(stack, {})[slot.name.split(".", 2)[2]] = tensor
        return single, stacked

    def padding(self, flat: Float[Tensor, "S P"]) -> list[Tensor]:
        """What lies behind weights and belongs to none: views, one for all layers of a stack."""
        return [part[..., slot.size :] for _, slot, part in self._parts(flat) if slot.room > slot.size]

    def _parts(self, flat: Float[Tensor, "S P"]) -> Iterator[tuple[str, Slot, Float[Tensor, "S layers N"]]]:
        """Every weight with the padding behind it, a stack's layers together: stack (or own name), slot, view."""
        runs = [(stack, list(slots)) for stack, slots in groupby(self.slots.values(), _stack_of)]
        wholes = torch.split(flat, [sum(slot.room for slot in slots) for _, slots in runs], dim=1)
        for (stack, slots), whole in zip(runs, wholes, strict=True):
            first = [slot for slot in slots if slot.name == stack or slot.name.startswith(f"{stack}.0.")]
            each = whole.view(whole.shape[0], len(slots) // len(first), -1)
            parts = torch.split(each, [slot.room for slot in first], dim=2)
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
        check_fit({name: tuple(tensor.shape) for name, tensor in weights.items()}, self.shapes)
        row = torch.zeros(self.size)
        for name, slot in self.slots.items():
            row[slot.start : slot.start + slot.size] = weights[name].to(torch.float32).flatten()
        return row


def _stack_of(slot: Slot) -> str:
    """`layers` for `layers.0.qkv.weight`, and the whole name for a weight that is in no stack of layers."""
    stack, _, rest = slot.name.partition(".")
    return stack if rest[:1].isdigit() else slot.name


Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(config: ModelConfig, shapes: Shapes, wanted: Callable[[], Shapes] | None = None) -> None:
    """Raises unless a file's tensors have the names and shapes of a model's weights, or those that are `wanted`."""
    layers = config.before + config.layers
    if layers > len(shapes):  # before a layout, or a module, of that many layers is made
        raise InputError(f"it says it has {layers} layers, but holds {len(shapes)} tensors")
    check_fit(shapes, wanted() if wanted else Layout(config).shapes)


def check_fit(shapes: Shapes, wanted: Shapes) -> None:
    """Raises unless tensors have the names and shapes that are wanted."""
    for name in sorted(shapes.keys() | wanted.keys()):
        if shapes.get(name) != wanted.get(name):
            odd = f"{name[:60]!a} is of shape {shapes.get(name)}, not {wanted.get(name)}"
            raise InputError(f"its weights do not fit its configuration: {odd}")


def check_numbers(weights: Mapping[str, Tensor], kind: torch.dtype | None = torch.float32) -> None:
    """Raises unless a file's tensors are finite numbers of the type that its weights are kept in; of any, without."""
    for name, tensor in weights.items():
        wanted = kind or tensor.dtype
        if tensor.dtype != wanted or not bool(tensor.isfinite().all()):
            why = "" if tensor.dtype != wanted else ": the run has diverged, train it again with a smaller lr"
            named = str(wanted).removeprefix("torch.")
            raise InputError(f"its {name} must hold finite numbers of type {named}{why}")


# --- how weights start ---------------------------------------------------------------------------------------


def _weights(config: ModelConfig) -> Iterator[Slot]:
    """Every weight in the order of a row, without its place."""
    d = config.width
    yield from _read_in(config)
    if config.position_rows:
        yield Slot("position", (config.position_rows, d), config.init_std)
    loop = "layers" if config.kind == "decoder" else "decoder"
    for stack, layers in (("before", config.before), (loop, config.layers)):
        for i in range(layers):
            yield from _layer(config, f"{stack}.{i}.")
    yield from _norm("norm", d)
    # As GPT-2 starts it, or as torch's Linear(width → vocab) does: all uniform in ±1/√width.
    gpt2 = config.initialisation == "gpt2"
    std = config.init_std if gpt2 else 1 / math.sqrt(3 * d)
    yield from _matrix("readout", d, config.vocab, std, uniform=not gpt2)
    if config.halting != "none":
        yield from _head(config, "halt")
    if config.kind == "universal":
        yield from _universal(config)


def _read_in(config: ModelConfig) -> Iterator[Slot]:
    """The token embedding, as `config.initialisation` names it.

    gpt2       N(0, embedding_std), no bias
    linear     torch's default for Linear(vocab → width) with a bias on one-hot tokens: all uniform in ±1/√vocab.
               The authors' code does this for all tasks but unique set; an embedded token has a deviation of .33
    embedding  torch's default for Embedding: N(0, 1), no bias; the authors' for unique set
    """
    shape = (config.vocab, config.width)
    if config.initialisation == "linear":
        std = 1 / math.sqrt(3 * config.vocab)
        yield Slot("embed", shape, std, uniform=True)
        yield Slot("embed.bias", shape[1:], std, uniform=True)
    else:
        yield Slot("embed", shape, config.embedding_std if config.initialisation == "gpt2" else 1.0)


def _head(config: ModelConfig, name: str) -> Iterator[Slot]:
    yield Slot(f"{name}.weight", (config.width,), config.init_std)
    yield Slot(f"{name}.bias", (1,), mean=config.halt_start)


def _universal(config: ModelConfig) -> Iterator[Slot]:
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


def _layer(config: ModelConfig, at: str) -> Iterator[Slot]:
    d, inner, std = config.width, config.expansion * config.width, config.init_std
    residual_std = std / math.sqrt(2 * config.layers)
    yield from _norm(at + "norm1", d)
    yield from _matrix(at + "qkv", d, 3 * d, std)
    yield from _matrix(at + "out", d, d, residual_std)
    yield from _norm(at + "norm2", d)
    yield from _matrix(at + "up", d, inner, std)
    yield from _matrix(at + "down", inner, d, residual_std)


def _norm(name: str, width: int) -> Iterator[Slot]:
    yield Slot(f"{name}.scale", (width,), mean=1.0)
    yield Slot(f"{name}.shift", (width,))


def _matrix(name: str, rows: int, columns: int, std: float, uniform: bool = False) -> Iterator[Slot]:
    yield Slot(f"{name}.weight", (rows, columns), std, uniform=uniform)
    yield Slot(f"{name}.bias", (columns,), std if uniform else 0.0, uniform=uniform)
