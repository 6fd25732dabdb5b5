"""Training data: the batch of one gradient step for every seed, drawn from the seeds' own generators.

Both engines draw here, so that a seed sees the same problems in each. Knows nothing of models.

Shapes: S seeds, B rows, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped import batches, loops, methods, tasks
from looped.batches import Batch
from looped.training import curriculum
from looped.training.config import TrainConfig
from looped.training.curriculum import Plan, Strata


@dataclass(frozen=True)
class Stage:
    """What stays the same while the maximum length does."""

    longest: int
    row_size: int
    sizes: Int[Tensor, "B"]  # positions of each row that may count
    strata: Strata | None  # None: lengths are drawn independently
    row_capacity: Int[Tensor, "B"] | None  # loop steps reserved for each row, where they are fixed beforehand
    plan: Plan | None  # None: made anew for each batch
    part: Int[Tensor, "B"]
    parts: Int[Tensor, "B"]
    first: Int[Tensor, "B"]
    last: Int[Tensor, "B"]
    variant: Int[Tensor, "B"]
    most: int  # loop steps of any row


def stage(
    config: TrainConfig, longest: int, device: torch.device, rows: slice = slice(None), fixed: bool = False
) -> Stage:
    """The shapes of the stage whose maximum length is `longest`; `rows` are those that this process computes.

    With `fixed` shapes, independent draws get a reserved number of loop steps for each row.
    """
    split = curriculum.strata(config, longest)
    plan: Plan | None = curriculum.plan(list(split.lower[rows]), list(split.upper[rows]))
    capacity, stratified = None, config.lengths == "stratified"
    if not stratified:
        plan = None
        if fixed:
            capacity = curriculum.row_capacity(config, longest)
            plan = curriculum.plan([1] * len(capacity), list(capacity))

    def tensor(values: tuple[int, ...]) -> Int[Tensor, "B"]:
        return torch.tensor(values, device=device)

    return Stage(
        longest, tasks.get(config.task).row_size(longest), tensor(split.size), split if stratified else None,
        None if capacity is None else tensor(capacity), plan, tensor(split.part), tensor(split.parts),
        tensor(split.first), tensor(split.last), tensor(split.variant),
        max(curriculum.every_steps(config, longest)),
    )  # fmt: skip


def computed_sizes(config: TrainConfig, longest: int) -> tuple[int, ...]:
    """Positions of each row that are computed, and get noise: up to a row's own end where that is allowed."""
    size = curriculum.strata(config, longest).size
    return size if config.packs else (max(size),) * len(size)


def draw(
    config: TrainConfig, stage: Stage, generators: Sequence[torch.Generator]
) -> tuple[Batch, Bool[Tensor, "S B"]]:
    """A fresh batch for every seed, rows sorted by T, and which rows have the maximum length."""
    drawn = [_draw_one(config, stage, generator) for generator in generators]
    return batches.stack([batch for batch, _ in drawn]), torch.stack([longest for _, longest in drawn])


def _draw_one(
    config: TrainConfig, stage: Stage, generator: torch.Generator
) -> tuple[Batch, Bool[Tensor, "B"]]:
    task, method, law = tasks.get(config.task), methods.get(config.method), loops.parse(config.loops)
    size, device = (config.batch,), stage.sizes.device
    if stage.strata is not None:
        lengths = curriculum.draw_lengths(
            stage.part, stage.parts, stage.first, stage.last, stage.longest, generator
        )
        variants = stage.variant
    else:
        lengths = torch.randint(1, stage.longest + 1, size, device=device, generator=generator)
        variants = torch.randint(task.variants, size, device=device, generator=generator)
    problems = task.sample(
        lengths, generator, max_length=stage.longest, variants=variants, family=config.family
    )
    batch = batches.lay_out(problems, task.vocab, stage.row_size, method.prediction, method.pause)
    steps = method.steps(task, problems.steps, config.max_length)
    if not law.plain:
        steps = law.draw(problems.steps, problems.question_length, generator)
    if config.extra:
        steps = steps + torch.randint(config.extra + 1, size, device=device, generator=generator)
    within = torch.arange(batch.tokens.shape[1], device=device) < stage.sizes[:, None]
    batch = Batch(batch.tokens, batch.targets, batch.loss_mask & within, steps)
    if stage.strata is not None:
        return batch, lengths == stage.longest
    order = steps.argsort(descending=True, stable=True)
    batch = batch.rows(order)
    if stage.row_capacity is not None:  # a row that has none for its last steps is read before them
        batch = replace(batch, steps=torch.minimum(batch.steps, stage.row_capacity))
    return batch, (lengths == stage.longest)[order]
