"""Ideas for exactness far past the training lengths, each a block or a recipe; see docs/length.md."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from looped.model import Block
from looped.training.recipes import long

# Loop steps for every token of question and answer: 3n + 2 in addition, where a question has 2n + 1 tokens.
TOKENS = {"parity": "q", "addition": "3q/2"}
HARD = ("uniform", "mixed", "ones", "carry", "no-carry", "few", "distinct")


def shifted(h):
    """The state with a third of its channels taken from the position before."""
    some, rest = h.tensor_split((h.shape[-1] // 3,), dim=-1)
    return torch.cat([F.pad(some, (0, 0, 1, -1)), rest], dim=-1)


class Shift(Block):
    """A third of the channels moves one place at every step, so that moving data need not be learned."""

    def forward(self, h):
        return super().forward(shifted(h))


class CopyGate(Block):
    """A step changes the state as far as a gate opens, h + g·(f(h) - h); the gate starts nearly shut."""

    def __init__(self, config):
        super().__init__(config)
        self.gate = nn.Linear(config.width, config.width)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, -3.0)

    def forward(self, h):
        return h + self.gate(h).sigmoid() * (super().forward(h) - h)


class ShiftGate(CopyGate):
    """Both: where the gate is shut, a third of the channels moves on and the rest stays."""

    def forward(self, h):
        return super().forward(shifted(h))


def local(task, method, seeds):
    """`long` without global heads: half of them see one position back, the others two."""
    config = long(task, method, seeds)
    half = config.model.heads // 2
    bands = (2,) * half + (3,) * (config.model.heads - half)
    return replace(config, model=replace(config.model, bands=bands, sharpen=False))


def tokens(task, method, seeds):
    """`long` with a loop step for every token of question and answer."""
    return replace(long(task, method, seeds), loops=TOKENS.get(task.name, "2q"))


def two_phases(task, method, seeds):
    """`long` on even draws while lengths grow, then on hard input distributions of the same lengths."""
    hard = "+".join(name for name in HARD if name in task.families)
    return replace(long(task, method, seeds), family="uniform", late_family=hard)


def together(task, method, seeds):
    """All three; unique set keeps its global heads, without which it is not learned."""
    base = (long if task.name == "unique_set" else local)(task, method, seeds)
    phases = two_phases(task, method, seeds)
    return replace(
        base, loops=tokens(task, method, seeds).loops, family=phases.family, late_family=phases.late_family
    )
