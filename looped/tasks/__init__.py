"""The problems; `get` finds one by name, ours or other people's (`looped.registry`)."""

from __future__ import annotations

from looped import registry
from looped.tasks.arithmetic import Addition, Multiplication
from looped.tasks.base import LONGEST, Paper, Problems, Task
from looped.tasks.strings import BinarySum, Copy, Parity, UniqueSet
from looped.tasks.suites import chomsky

__all__ = ["EVERY", "LONGEST", "SUITES", "TASKS", "Paper", "Problems", "Task", "get"]

TASKS: dict[str, Task] = {
    "parity": Parity(),
    "copy": Copy(),
    "addition": Addition(),
    "binary_sum": BinarySum(),
    "multiplication": Multiplication(),
    "unique_set": UniqueSet(),
}
# Other people's benchmarks: found by name like ours, listed by `looped tasks --suite NAME`.
SUITES: dict[str, dict[str, Task]] = {"chomsky": chomsky.TASKS}
EVERY = TASKS | {name: task for suite in SUITES.values() for name, task in suite.items()}


def _accept(found: object) -> Task | None:
    """The task that an object is or a class makes; None for anything else."""
    task: Task | None = registry.object_of(Task)(found)
    if task is not None and not hasattr(task, "vocab"):
        raise TypeError("it has no symbols")
    return task


registry.declare(
    "task", "looped.tasks", "--task (or TASK)", "a subclass of looped.tasks.Task", _accept, EVERY, listed=TASKS
)  # fmt: skip


def get(name: str) -> Task:
    """The task of this name, as a run records it; `binary-sum` will do for `binary_sum`."""
    found: Task = registry.find("task", name)
    return found
