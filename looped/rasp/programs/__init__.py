"""The shipped programs, each with its algorithm above it. A task's program has the task's name."""

from __future__ import annotations

from looped.errors import InputError
from looped.rasp import lint
from looped.rasp.program import Program
from looped.rasp.programs import chomsky, paper

__all__ = ["CHOMSKY", "PROGRAMS", "find", "get"]

PROGRAMS = {found.name: found for found in paper.PROGRAMS}
CHOMSKY = {found.name: found for found in chomsky.PROGRAMS}


def get(name: str) -> Program:
    """The program of this name, of the paper's tasks or of the Chomsky suite's; `binary-sum` for `binary_sum`."""
    plain = name.strip().replace("-", "_")
    for table in (PROGRAMS, CHOMSKY):
        if plain in table:
            return table[plain]
    raise InputError(
        f"no program is named {name[:40]!r}; there are {', '.join(PROGRAMS)} and the Chomsky suite's"
    )


def find(what: str, name: str | None = None) -> Program:
    """The program of this name, or the one in a file `what.py`, checked; `name` picks one of several."""
    if what.endswith(".py"):
        return lint.load(what, name)
    if name is not None:
        raise InputError(f"--name picks a program of a FILE.py; {what[:40]!r} is one already")
    return get(what)
