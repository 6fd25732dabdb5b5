"""The n-RASP-L program of a question, in the same grid as the network: every variable at every step.

    copy 1 0 in a row of 8      seq      output
    step 0                      10#####  …          prepare
    step 1                      ·10####
    step 2                      ··10###             done: T(2) = 2

`output` is what the program would answer if it were read out there. Numpy alone; knows nothing of the web.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from looped.rasp import programs
from looped.rasp.program import Program, read_out, unroll
from looped.rasp.sequence import unwrap

OUTPUT = "output"


@dataclass(frozen=True)
class Variable:
    """One variable of a program over all steps."""

    name: str
    tokens: bool  # its values are ids of tokens, -1 for none; else plain numbers
    values: np.ndarray  # int16 [steps + 1, L]


@dataclass(frozen=True)
class Grid:
    """A run of a program, variable by variable; row 0 is the preparation."""

    steps: int
    variables: tuple[Variable, ...]


def run(name: str, question: Sequence[str], size: int) -> Grid:
    """Run a task's program on a question laid out in a row of `size` positions."""
    program = programs.get(name)
    row = program.row(question, size)
    kept: dict[str, list[np.ndarray]] = {OUTPUT: []}
    number = 0
    for number, _, state in unroll(program, row, program.sizes(row.tolist())):  # noqa: B007
        kept[OUTPUT].append(unwrap(read_out(program, state, row)))
        for variable, value in state.items():
            kept.setdefault(variable, []).append(unwrap(value))
    return Grid(number, tuple(_variable(program, name, values) for name, values in kept.items()))


def _variable(program: Program, name: str, values: list[np.ndarray]) -> Variable:
    stacked = np.stack([np.broadcast_to(value, values[0].shape) for value in values])
    return Variable(name, name == OUTPUT or name in program.tokens, stacked.astype(np.int16))
