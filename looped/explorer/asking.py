"""A typed question, read for one model: is it one, how long is it, how many steps will be run?

    ask(addition, "1011+0110")   →   length 4, T(n) = 4, 9 steps

Everything that may be wrong with a question is said here, before anything is computed. Knows nothing of the web.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from looped.batches import Batch, lay_out
from looped.errors import InputError
from looped.explorer.limits import LIMITS, Limits
from looped.explorer.models import Model
from looped.solve.solver import SPARE_STEPS

STRETCHES = (1.0, 1.25, 1.5, 2.0, 3.0)  # how far to run, in multiples of T(n)
USUAL_STRETCH = 1.25  # far enough to see what an overrun does


@dataclass(frozen=True)
class Asked:
    """A question that a model can be asked here: parsed, measured and found small enough."""

    model: Model
    tokens: tuple[str, ...]
    text: str
    length: int
    needed: int  # T(n), or the method's own depth
    steps: int  # that will be run

    def batch(self) -> Batch:
        """The question as the one row the model reads."""
        task, method = self.model.solver.task, self.model.solver.method
        problems = task.problems([list(self.tokens)])
        return lay_out(problems, task.vocab, task.row_size(self.length), method.prediction, method.pause)

    def halts(self, rule: str) -> bool:
        """Whether a stopping rule applies: some ask the model, and not every model says something."""
        solver = self.model.solver
        if not solver.method.adaptive:
            return rule == "oracle"
        if rule == "halt-mode":
            return solver.model.config.halting != "none"
        return rule != "halt" or solver.model.config.says_done


def ask(model: Model, text: str, stretch: float = USUAL_STRETCH, limits: Limits = LIMITS) -> Asked:
    """Reads a typed question for a model; raises a sentence where it is no question or too long."""
    if len(text) > limits.text:
        raise InputError(f"the question has {len(text)} characters; at most {limits.text} are read")
    if stretch not in STRETCHES:
        known = ", ".join(f"{each:g}" for each in STRETCHES)
        raise InputError(f"the loop runs for {known} times T(n) steps, not {stretch:g}")
    task, method = model.solver.task, model.solver.method
    tokens = task.parse(text)
    length, _ = task.measure(tokens)
    longest = model.longest(limits)
    if length > longest:
        raise InputError(f"a question of length {length} is too long to watch here: {longest} is the most")
    needed = steps = _needed(model, tokens)
    if needed > limits.steps:
        raise InputError(
            f"this question takes {needed} steps, more than the {limits.steps} that are run here"
        )
    if method.adaptive and stretch > 1:
        steps = min(limits.steps, math.ceil(stretch * needed) + SPARE_STEPS)
    return Asked(model, tuple(tokens), task.format_question(tokens), length, needed, max(steps, needed))


def _needed(model: Model, tokens: list[str]) -> int:
    """The loop steps that the method gives this question: T(n), a fixed depth, or what its training gave."""
    solver, own = model.solver, torch.tensor(model.solver.task.steps_of(tokens))
    if not solver.loops.plain:
        return int(solver.loops.first(own, torch.tensor(len(tokens))))
    return int(solver.method.steps(solver.task, own, solver.trained_max_length))
