"""Where a run's weights start: drawn anew, or the task's program compiled into weights and shaken a little.

    random           each seed its own draw
    compiled         the program's weights, the same for every seed
    compiled:1e-3    each of them times 1 + 1e-3·ε, with a normal ε of the seed's own; what is 0 stays 0

Knows tasks by name, programs and models; nothing of what is done with the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from looped import tasks
from looped.errors import InputError
from looped.model.config import ModelConfig
from looped.model.weights import Layout

if TYPE_CHECKING:
    from looped.compiler.compiled import Compiled

RANDOM, COMPILED = "random", "compiled"


@dataclass(frozen=True)
class Start:
    """What a text such as `compiled:1e-3` says."""

    compiled: bool = False
    noise: float = 0.0  # of each weight, as a share of it


def parse(text: str) -> Start:
    """The start that a text names; raises a sentence for any other."""
    name, colon, level = text.partition(":")
    if name == RANDOM and not colon:
        return Start()
    try:
        noise = float(level) if colon else 0.0
    except ValueError:
        noise = math.nan
    if name != COMPILED or not 0 <= noise < math.inf:
        raise InputError(f"weights start from random, compiled or compiled:NOISE, not from {text[:40]!r}")
    return Start(True, noise)


def architecture(task: str) -> ModelConfig:
    """The model that a task's program is compiled into."""
    return _compiled(task).config


def loops(task: str) -> str:
    """Loop steps that are enough for a task's program, as a rule of `methods.Loops`: T(n), or one more for addition."""
    from looped.rasp import programs  # here: most runs need no program

    program = programs.get(task)
    question = program.example.split()
    more = program.total(program.sizes(program.row(question).tolist())) - tasks.get(task).steps_of(question)
    return f"T+{more}" if more > 0 else "T"


def check(text: str, task: str, model: ModelConfig) -> None:
    """Raises if a model of this shape cannot start from what a text names."""
    if not parse(text).compiled:
        return
    own = architecture(task)
    if Layout(model).slots != Layout(own).slots:
        raise InputError(
            f"init={text} needs the shape of the compiled {task}: width {own.width}, "
            f"{own.heads} heads; leave the model as `--init compiled` sets it"
        )


def weights(
    text: str, task: str, model: ModelConfig, seeds: list[int], device: torch.device | str = "cpu"
) -> Float[Tensor, "S P"]:
    """The first weights of every seed, drawn on the CPU so that a seed means the same on every device."""
    start = parse(text)
    if not start.compiled:
        return Layout(model).initialise(seeds, device)
    check(text, task, model)
    rows = _compiled(task).row.repeat(len(seeds), 1)
    for row, seed in zip(rows, seeds, strict=True) if start.noise else ():
        drawn = torch.randn(row.shape, generator=torch.Generator().manual_seed(seed))
        row.mul_(1 + start.noise * drawn)
    return rows.to(device)


@cache
def _compiled(task: str) -> Compiled:
    from looped.compiler.compiled import compile_program  # here: most runs need no compiler
    from looped.rasp import programs

    return compile_program(programs.get(task))
