"""The step grid: what every example's answer is like after every loop step, for one length.

Three cells of copy `1 0`, one example, T = 2 (the answer counted is `1 0 # #`):

    step   decoded    correct   surprise   changed
    1      1 1 # #    no        .21        yes        (step 1 always counts as changed)
    2      1 0 # #    yes       .002       yes
    3      1 0 # #    yes       .004       no

`unroll_grid` fills one in bounded memory: rows go through the loop a chunk at a time, and only the current
state and its answer are kept. Stopping rules (`stopping.py`) are functions of a grid, which knows of none.

Shapes: S seeds, T loop steps, N examples, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation.reading import is_done, read, rows_at_once, window_start
from looped.evaluation.reading import motion as reading_motion
from looped.model.seeds import SeedModel, SeedWeights


@dataclass(frozen=True)
class StepGrid:
    """Every example of one length after every step; step t is at index t - 1."""

    correct: Bool[Tensor, "S T N"]  # every position that counts is right
    surprise: Float[Tensor, "S T N"]  # mean cross entropy with its own decoded answer: lower is surer
    changed: Bool[Tensor, "S T N"]  # the decoded answer differs from the step before
    needed: Int[Tensor, "N"]  # the oracle's T
    done: Bool[Tensor, "S T N"] | None = None  # the model says that the answer is there, if it can
    halting: Float[Tensor, "S T N"] | None = None  # probability of having halted by then, if it has a head
    motion: Float[Tensor, "S T N"] | None = None  # how far the state has moved at most, if it was asked for

    @property
    def max_steps(self) -> int:
        """How many steps the grid has."""
        return self.correct.shape[1]


@torch.inference_mode()
def unroll_grid(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    max_steps: int,
    *,
    chunk: int | None = None,
    motion: bool = False,
    read_from: int = 1,
) -> StepGrid:
    """Runs every row of an unstacked batch for `max_steps` steps, all seeds side by side.

    With `motion`, also how far states move. Nobody may ask what was read before step `read_from`: it was not. `chunk`
    rows go through the loop at a time: as many as fit the memory bound, unless given.
    """
    if max_steps < 1:
        raise InputError(f"the number of loop steps must be at least 1, not {max_steps}")
    rows, size = batch.tokens.shape
    seeds = weights.embed.shape[0]
    chunk = chunk or rows_at_once(model.config, seeds, size, batch.tokens.device)
    shape = (seeds, max_steps, rows)
    correct = torch.zeros(shape, dtype=torch.bool, device=batch.tokens.device)
    surprise = torch.full(shape, float("inf"), device=batch.tokens.device)
    changed = torch.ones(shape, dtype=torch.bool, device=batch.tokens.device)
    done = None if model.config.halt is None else torch.zeros_like(correct)
    halting = None if model.config.halting == "none" else torch.zeros_like(surprise)
    moved = torch.zeros_like(surprise) if motion else None
    for first in range(0, rows, chunk):
        here = slice(first, first + chunk)
        part = batch.rows(here)
        start = window_start(part.loss_mask)
        counted, targets = part.loss_mask[None, :, start:], part.targets[None, :, start:]
        before: Tensor | None = None
        last: Tensor | None = None
        gate = model.gate(weights, part.loss_mask[None])
        states = model.unroll(weights, part.tokens.expand(seeds, -1, -1), max_steps, gate)
        for t, h in enumerate(states):
            if t + 1 < read_from:
                continue
            reading = read(model, weights, h[:, :, start:], counted)
            correct[:, t, here] = ((reading.answer == targets) | ~counted).all(-1)
            surprise[:, t, here] = reading.surprise
            now = is_done(model.config, h)
            if done is not None and now is not None:
                done[:, t, here] = now
            if halting is not None and gate.halted is not None:
                halting[:, t, here] = gate.halted
            if moved is not None:
                moved[:, t, here], last = reading_motion(last, h), h
            if before is not None:
                changed[:, t, here] = ((reading.answer != before) & counted).any(-1)
            before = reading.answer
    return StepGrid(correct, surprise, changed, batch.steps, done, halting, moved)


def join(grids: Sequence[StepGrid]) -> StepGrid:
    """Grids of the same steps and seeds, their examples one after the other."""
    correct, surprise, changed, needed = (
        torch.cat([getattr(grid, name) for grid in grids], dim=-1)
        for name in ("correct", "surprise", "changed", "needed")
    )

    def optional(name: str) -> Tensor | None:
        found = [getattr(grid, name) for grid in grids if getattr(grid, name) is not None]
        return torch.cat(found, dim=-1) if found else None

    return StepGrid(
        correct, surprise, changed, needed, optional("done"), optional("halting"), optional("motion")
    )


def correct_at(grid: StepGrid, steps: Int[Tensor, "S N"]) -> Bool[Tensor, "S N"]:
    """Which examples are right after the given step (from 1) of each."""
    return grid.correct.gather(1, steps[:, None] - 1)[:, 0]


def accuracy(grid: StepGrid, steps: Int[Tensor, "S N"]) -> Float[Tensor, "S"]:
    """The share of examples that are right after the given step of each, per seed."""
    return correct_at(grid, steps).double().mean(1)


def overrun(grid: StepGrid, extra: int) -> Float[Tensor, "S"]:
    """Accuracy per seed when every example runs `extra` steps past its T (or, if negative, stops before)."""
    steps = grid.needed + extra
    low, high = int(steps.min()), int(steps.max())
    if low < 1 or high > grid.max_steps:
        raise InputError(f"{extra} steps past T lie outside the grid's steps 1 to {grid.max_steps}")
    return accuracy(grid, steps.expand(grid.correct.shape[0], -1))


def first_correct(grid: StepGrid) -> Int[Tensor, "S N"]:
    """The first step after which an example is right; 0 where it never is. Less T, that is the drift."""
    first = grid.correct.int().argmax(1) + 1
    return torch.where(grid.correct.any(1), first, 0)


def held_from(grid: StepGrid) -> Int[Tensor, "S N"]:
    """The step from which an example is right to the end of the grid; 0 where its last step is wrong."""
    wrong = ~grid.correct
    after = grid.max_steps - wrong.flip(1).int().argmax(1) + 1  # the step after the last wrong one
    return torch.where(wrong.any(1), torch.where(grid.correct[:, -1], after, 0), 1)


def random_exit(grid: StepGrid, mean: Float[Tensor, "S"]) -> Float[Tensor, "S"]:
    """Accuracy per seed of leaving at a step drawn evenly from the widest stretch around the given mean m.

    That is 1 to 2m - 1, or where that is more steps than there are, 2m - T to T. A rule that takes m steps on average
    and knows nothing would do as well: what a rule is worth is what it has more.
    """
    by_step = grid.correct.double().mean(2)  # [S, T]
    step = torch.arange(1, grid.max_steps + 1, device=by_step.device)
    first = (2 * mean - grid.max_steps).clamp(1, grid.max_steps)[:, None]
    last = (2 * mean - 1).clamp(1, grid.max_steps)[:, None]
    # the outermost steps may be in by a part
    share = ((last - step + 1).clamp(0, 1) * (step - first + 1).clamp(0, 1)).double()
    return (by_step * share).sum(1) / share.sum(1)
