"""The problems, one file each; `get` finds one by name. A new task is a new file and one line in `TASKS`."""

from __future__ import annotations

from looped.errors import InputError
from looped.tasks.addition import Addition
from looped.tasks.base import LONGEST, Paper, Problems, Task
from looped.tasks.binary_sum import BinarySum
from looped.tasks.copy import Copy
from looped.tasks.multiplication import Multiplication
from looped.tasks.parity import Parity
from looped.tasks.unique_set import UniqueSet

__all__ = ["LONGEST", "TASKS", "Paper", "Problems", "Task", "get"]

TASKS: dict[str, Task] = {
    "parity": Parity(),
    "copy": Copy(),
    "addition": Addition(),
    "binary_sum": BinarySum(),
    "multiplication": Multiplication(),
    "unique_set": UniqueSet(),
}


def get(name: str) -> Task:
    """The task of this name; `binary-sum` will do for `binary_sum`."""
    try:
        return TASKS[name.strip().replace("-", "_")]
    except KeyError:
        raise InputError(f"unknown task {name[:40]!r}; the tasks are {', '.join(TASKS)}") from None
