"""Several seeds of a model behind one interface, on states [S, B, L, D]: what evaluation, solve and the explorer ask.

`SeedModel` and `SeedWeights` are that interface. The stacked decoder of `looped.fast` has it, and so has `ModuleStack`,
which runs ordinary modules one after the other, whatever their block is.

Shapes: S seeds, B rows, L positions, D width, V vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.model.config import ModelConfig
from looped.model.halting import Gate, Head
from looped.model.looped import LoopedTransformer, inject

Tokens = Int[Tensor, "S B L"]
States = Float[Tensor, "S B L D"]


class SeedWeights(Protocol):
    """The weights of some seeds."""

    @property
    def embed(self) -> Tensor:
        """[S, V, D] the token embedding, which tells the number of seeds and the device."""

    @property
    def head(self) -> Head:
        """The halting head, if there is one."""

    def tensors(self) -> list[Tensor]:
        """Every weight."""


class SeedModel(ABC):
    """A model of several seeds in four verbs; `weights` are what the same kind of model prepared."""

    config: ModelConfig

    @abstractmethod
    def embed(self, weights: Any, tokens: Tokens, at: Int[Tensor, "B L"] | None = None) -> States:
        """The input as a state; `at` overrides the position numbers."""

    @abstractmethod
    def step(self, weights: Any, u: States, caches: list[Any] | None = None) -> States:
        """The block and the final norm; `caches` keep what earlier positions left for later ones."""

    @abstractmethod
    def readout(self, weights: Any, h: States) -> Float[Tensor, "S B L V"]:
        """Scores of every token at every position."""

    def inject(self, h: Tensor | None, x: Tensor) -> Tensor:
        """What a step is applied to."""
        return inject(self.config, h, x)

    def gate(self, weights: Any, counted: Bool[Tensor, "#S B L"] | None = None) -> Gate:
        """What follows rows through the loop and applies a halting head: see `halting.Gate`."""
        return Gate(self.config.halting, weights.head, counted)

    def unroll(self, weights: Any, tokens: Tokens, steps: int, gate: Gate | None = None) -> Iterator[Tensor]:
        """What can be read after step 1, 2, …, `steps`: the state, unless a halting head says otherwise."""
        seen = x = self.embed(weights, tokens)
        gate = gate or self.gate(weights)
        h: Tensor | None = None
        for _ in range(steps):
            if not gate.finished:
                seen, h = gate.after(self.step(weights, self.inject(h, x)))
            yield seen


class ModuleWeights:
    """Modules of one configuration as the weights of some seeds."""

    def __init__(self, nets: Sequence[LoopedTransformer]) -> None:
        self.nets = [net.eval() for net in nets]
        self.embed = torch.stack([net.token_embedding.weight.detach() for net in nets])
        heads = zip(*(net.head for net in nets), strict=True)
        self.head: Head = tuple(torch.cat(parts).detach() for parts in heads)

    def tensors(self) -> list[Tensor]:
        """Every weight."""
        return [parameter for net in self.nets for parameter in net.parameters()]


class ModuleStack(SeedModel):
    """Runs the modules of some seeds one after the other and stacks what they give."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def embed(self, weights: ModuleWeights, tokens: Tokens, at: Int[Tensor, "B L"] | None = None) -> States:
        """The input as a state."""
        return _each(weights, tokens, lambda net, ids: net.embed(ids, at))

    def step(self, weights: ModuleWeights, u: States, caches: list[Any] | None = None) -> States:
        """The block and the final norm.

        A block of unknown insides has no keys and values to keep: its cache is what it was given before, and the
        step computes the earlier positions again.
        """
        size = u.shape[2]
        if caches is not None:
            u = caches[0] = u if caches[0] is None else torch.cat([caches[0], u], dim=2)
        return _each(weights, u, lambda net, state: net.step(state))[:, :, -size:]

    def readout(self, weights: ModuleWeights, h: States) -> Float[Tensor, "S B L V"]:
        """Scores of every token at every position."""
        return _each(weights, h, lambda net, state: net.readout(state))


def _each(weights: ModuleWeights, given: Tensor, run: Callable[..., Tensor]) -> Tensor:
    """What every seed's module makes of its own part."""
    return torch.stack([run(net, part) for net, part in zip(weights.nets, given, strict=True)])
