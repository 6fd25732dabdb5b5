"""Which lengths a gradient step sees, at which learning rate, and its batch. Knows nothing of models.

A *stage* is a maximum length. With stratified lengths, row i of a batch draws its length from the i-th of `batch`
equal parts of 1..max: every length is equally likely over the batch, as with independent draws, but each row's
number of loop steps is known to within one, so that the shapes of a stage never change. So is its size: with
`padding_loss=own` nothing past it counts or has to be computed. Of independent draws no more is known than how far
each is likely to go (`row_capacity`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped import batches, methods, tasks
from looped.batches import Batch
from looped.training.config import TrainConfig

RARE = 1e-7  # probability that a batch exceeds the reserved row capacity at some step


def max_length(config: TrainConfig, step: int) -> int:
    """The longest problem of gradient step `step` (counted from 0)."""
    if config.replicas > 1:
        return config.max_length  # the chosen replica has been through the curriculum
    ends, first = list(accumulate(config.stage_steps)), sum(config.stage_steps)
    grown = bisect_right(ends, step) if step < first else len(ends) + (step - first) // config.interval
    return min(config.start_length + grown, config.max_length)


def family(config: TrainConfig, step: int) -> str:
    """The input distribution that gradient step `step` draws from."""
    late = config.replicas > 1 or step >= config.stage_end(max(config.max_length, config.start_length))
    return config.late_family if late and config.late_family else config.family


def lr_share(config: TrainConfig, step: int) -> float:
    """The share of the peak learning rate at gradient step `step`: warm-up, held or cooling, then a cosine to 0.

    Gradients flow through as many loop steps as problems are long: what is a fair rate for ten of them can make a
    model of twenty forget everything. `cooling` lets the rate fall as the length grows.
    """
    share: float = (max_length(config, step) / config.start_length) ** -config.cooling
    if step - config.selected_at < config.warmup:
        return share * (step - config.selected_at + 1) / config.warmup
    if step < config.curriculum_end:
        return share
    rest = config.steps - config.curriculum_end
    return share * 0.5 * (1 + math.cos(math.pi * (step - config.curriculum_end) / rest))


@dataclass(frozen=True)
class Plan:
    """Which rows of a batch are still in the loop at each step; rows are sorted by T, longest first.

    At step t (from 1) the rows before `active[t-1]` are computed, and those from `leaving[t-1]` on may be done there.
    """

    active: tuple[int, ...]
    leaving: tuple[int, ...]


def plan(lower: list[int], upper: list[int]) -> Plan:
    """The plan of rows whose T lies between `lower` and `upper`, both sorted longest first."""
    assert upper == sorted(upper, reverse=True)
    active = tuple(sum(u >= t for u in upper) for t in range(1, upper[0] + 1))
    leaving = (next((i for i in range(rows) if lower[i] <= t), rows) for t, rows in enumerate(active, 1))
    return Plan(active, tuple(leaving))


@dataclass(frozen=True)
class Strata:
    """The lengths each row of a batch draws from, for one stage; rows sorted by the largest T they can have."""

    part: tuple[int, ...]  # row i draws from the part-th of its `parts` equal parts of 1..longest
    parts: tuple[int, ...]  # as many as its variant has rows
    first: tuple[int, ...]  # bounds on each row's length
    last: tuple[int, ...]
    variant: tuple[int, ...]
    lower: tuple[int, ...]  # bounds on each row's T under the method
    upper: tuple[int, ...]
    size: tuple[int, ...]  # positions of each row that are computed and may count


def strata(config: TrainConfig, longest: int) -> Strata:
    """Splits the lengths 1..longest evenly over the rows, for each variant of the task alike."""
    task, method = tasks.get(config.task), methods.get(config.method)
    rows: list[tuple[int, ...]] = []
    for i in range(config.batch):
        part, variant = divmod(i, task.variants)
        parts = -(-(config.batch - variant) // task.variants)
        first, last = 1 + part * longest // parts, -(-(part + 1) * longest // parts)
        size = task.row_size(last if config.padding_loss == "own" else longest) + method.pause
        rows.append((part, parts, first, last, variant, *_bounds(config, first, last, variant), size))
    rows.sort(key=lambda row: (row[6], row[5], row[7]), reverse=True)
    return Strata(*zip(*rows, strict=True))


def _bounds(config: TrainConfig, first: int, last: int, variant: int) -> tuple[int, int]:
    """The fewest and the most loop steps of a row of such lengths."""
    task, rule = tasks.get(config.task), methods.parse_loops(config.loops)
    own = task.steps(torch.tensor([first, last]), torch.tensor([variant, variant]))
    low, high = methods.get(config.method).steps(task, own, config.max_length).tolist()
    if not rule.plain:
        low, high = rule.bounds(task, own, last)
    return low, high + config.extra


def every_steps(config: TrainConfig, longest: int) -> list[int]:
    """The most loop steps of every kind of problem: of each length and variant."""
    variants = tasks.get(config.task).variants
    return [_bounds(config, n, n, variant)[1] for n in range(1, longest + 1) for variant in range(variants)]


def row_capacity(config: TrainConfig, longest: int) -> tuple[int, ...]:
    """How many loop steps there are for each row of a batch of independent draws, sorted by T, longest first.

    A graph's shapes are fixed, and the middle one of 64 rows hardly ever needs as many steps as the longest. At each
    step there is room for as many rows as still need it in all but one batch of 1 / `RARE`: in a whole training of the
    paper's, one row or none is read before its last step.
    """
    each = every_steps(config, longest)
    shares = [sum(steps >= t for steps in each) / len(each) for t in range(1, max(each) + 1)]
    taken = [_most(config.batch, share) for share in shares]
    return tuple(sum(rows > i for rows in taken) for i in range(config.batch))


def _most(batch: int, share: float) -> int:
    """The rows of a batch that there are at most, each with probability `share`, in all but one of 1 / `RARE`."""
    if share == 1:
        return batch
    tail, rows = 0.0, batch
    while rows > 0:
        ways = math.lgamma(batch + 1) - math.lgamma(rows + 1) - math.lgamma(batch - rows + 1)
        tail += math.exp(ways + rows * math.log(share) + (batch - rows) * math.log1p(-share))
        if tail > RARE:
            break
        rows -= 1
    return rows


Rows = Int[Tensor, "B"]


def draw_lengths(
    part: Rows, parts: Rows, first: Rows, last: Rows, longest: int, generator: torch.Generator
) -> Rows:
    """One length per row from its own part of 1..longest, as `strata` has split them."""
    u = torch.rand(part.shape[0], device=part.device, generator=generator)
    lengths = ((part + u) * (longest / parts)).long() + 1
    return torch.maximum(torch.minimum(lengths, last), first)


# --- training data -----------------------------------------------------------------------------------------
# The batch of one gradient step for every seed, drawn from the seeds' own generators. All engines draw here, so that a
# seed sees the same problems in each. Shapes: S seeds, B rows, L positions.


DRAWN = ("part", "parts", "first", "last", "variant", "size")


@dataclass(frozen=True)
class Stage:
    """What stays the same while the maximum length does."""

    longest: int
    row_size: int
    rows: Int[Tensor, "6 B"]  # of `strata`, those that a draw needs: `DRAWN`
    computed: tuple[int, ...]  # positions of each row that are computed: up to its own end where allowed
    cells: Int[Tensor, "C"]  # the same as places in a batch of rows of the largest of them
    strata: Strata | None  # None: lengths are drawn independently
    row_capacity: Int[Tensor, "B"] | None  # loop steps reserved for each row, where they are fixed beforehand
    plan: Plan | None  # None: made anew for each batch
    most: int  # loop steps of any row
    family: str  # input distribution


def stage(
    config: TrainConfig, longest: int, device: torch.device, rows: slice = slice(None), fixed: bool = False
) -> Stage:
    """The shapes of the stage whose maximum length is `longest`; `rows` are those that this process computes.

    With `fixed` shapes, independent draws get a reserved number of loop steps for each row.
    """
    split, stratified = strata(config, longest), config.lengths == "stratified"
    capacity = row_capacity(config, longest) if fixed and not stratified else None
    made: Plan | None = None
    if stratified:
        made = plan(list(split.lower[rows]), list(split.upper[rows]))
    elif capacity is not None:
        made = plan([1] * len(capacity), list(capacity))
    computed = split.size if config.packs else (max(split.size),) * len(split.size)
    cells = [row * max(computed) + at for row, size in enumerate(computed) for at in range(size)]
    drawn = torch.tensor([getattr(split, name) for name in DRAWN], device=device)
    return Stage(
        longest, tasks.get(config.task).row_size(longest), drawn, computed, torch.tensor(cells, device=device),
        split if stratified else None, None if capacity is None else torch.tensor(capacity, device=device), made,
        max(every_steps(config, longest)), config.family,
    )  # fmt: skip


def draw(config: TrainConfig, stage: Stage, generator: torch.Generator) -> tuple[Batch, Bool[Tensor, "B"]]:
    """A fresh batch of one seed, rows sorted by T, and which rows have the maximum length."""
    task, method, law = tasks.get(config.task), methods.get(config.method), methods.parse_loops(config.loops)
    size, device = (config.batch,), stage.rows.device
    part, parts, first, last, variants, sizes = stage.rows.unbind()
    if stage.strata is not None:
        lengths = draw_lengths(part, parts, first, last, stage.longest, generator)
    else:
        lengths = torch.randint(1, stage.longest + 1, size, device=device, generator=generator)
        variants = torch.randint(task.variants, size, device=device, generator=generator)
    longest = stage.longest
    problems = task.sample(lengths, generator, max_length=longest, variants=variants, family=stage.family)
    batch = batches.lay_out(problems, task.vocab, stage.row_size, method.prediction, method.pause)
    steps = method.steps(task, problems.steps, config.max_length)
    if not law.plain:
        steps = law.draw(problems.steps, problems.question_length, generator)
    if config.extra:
        steps = steps + torch.randint(config.extra + 1, size, device=device, generator=generator)
    within = torch.arange(batch.tokens.shape[1], device=device) < sizes[:, None]
    batch = Batch(batch.tokens, batch.targets, batch.loss_mask & within, steps)
    if stage.strata is not None:
        return batch, lengths == longest
    order = steps.argsort(descending=True, stable=True)
    batch = batch.rows(order)
    if stage.row_capacity is not None:  # a row that has none for its last steps is read before them
        batch = replace(batch, steps=torch.minimum(batch.steps, stage.row_capacity))
    return batch, (lengths == longest)[order]
