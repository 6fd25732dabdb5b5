"""The problems of one rung, worked through a few rows at a time, so that a long rung can be left off and gone on with.

After every few rows `pause` is shown the state: plain counts that JSON can hold, and how far they go.

    {"batch": 1, "row": 320, "right": [[1344, 1343]], "steps": [[134400, 134400]]}      one rule, two seeds

Whoever starts again with that state draws the same problems, skips those that were counted, and ends with the same
numbers. Some families have few different inputs (all zeros: one), so each is computed once and counted as often as it
was drawn. Knows nothing of what is made of the counts.

Shapes: R rules, S seeds, T loop steps, N problems, K different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from looped.batches import Batch
from looped.bench.ladder.watch import watch
from looped.evaluation import grid
from looped.evaluation.measure import Subject, draw_batches, oracle_steps
from looped.evaluation.reading import rows_at_once
from looped.evaluation.stopping import OnlineRule
from looped.tasks.families import UNIFORM

Json = dict[str, Any]


def tally_rows(
    subject: Subject,
    length: int,
    family: str,
    samples: int,
    *,
    seed: int,
    rules: Sequence[OnlineRule],
    state: Json | None,
    pause: Callable[[Json], bool],
) -> Json | None:
    """Right answers and loop steps of all problems, for every rule and seed; None if `pause` said to leave off."""
    shape = (len(rules), len(subject.seeds))
    now = _start(state, right=shape, steps=shape)
    last = 2 * oracle_steps(subject, length)
    for part, counts in _parts(subject, length, family, samples, seed, now):
        found = watch(subject.model, subject.weights, part, rules, last, chunk=len(counts))
        _add(now, "right", (found.correct * counts).sum(-1))
        _add(now, "steps", (found.steps * counts).sum(-1))
        if pause(now):
            return None
    return now


def tally_steps(
    subject: Subject,
    length: int,
    samples: int,
    *,
    seed: int,
    last: int,
    state: Json | None,
    pause: Callable[[Json], bool],
) -> Json | None:
    """Right answers after every step up to `last`, and the first right step of every example, for every seed."""
    seeds = len(subject.seeds)
    now = _start(state, right=(seeds, last), first=(seeds, 0))
    now["first"] = [[*firsts] for firsts in now["first"]]  # a state's own is not written to
    for part, counts in _parts(subject, length, UNIFORM, samples, seed, now):
        unrolled = grid.unroll_grid(subject.model, subject.weights, part, last, chunk=len(counts))
        _add(now, "right", (unrolled.correct * counts).sum(-1))
        for firsts, found in zip(now["first"], grid.first_correct(unrolled), strict=True):
            firsts += found.repeat_interleave(counts).tolist()
        if pause(now):
            return None
    return now


def distinct(batch: Batch) -> tuple[Batch, Int[Tensor, "K"]]:
    """The different rows of a batch in an order of their own, and how often each is there."""
    kinds, kind, counts = torch.unique(batch.tokens, dim=0, return_inverse=True, return_counts=True)
    at = torch.arange(kind.shape[0], device=kind.device)
    first = torch.full_like(at[: kinds.shape[0]], kind.shape[0]).scatter_reduce(0, kind, at, "amin")
    return batch.rows(first), counts


def _parts(
    subject: Subject, length: int, family: str, samples: int, seed: int, now: Json
) -> Iterator[tuple[Batch, Int[Tensor, "K"]]]:
    """What has not been counted yet, as many rows as fit at once; `now` says how far each part goes."""
    for number, batch in enumerate(draw_batches(subject, length, samples, seed=seed, family=family)):
        if number < now["batch"]:
            continue
        few, counts = distinct(batch)
        rows, size = few.tokens.shape
        at_once = rows_at_once(subject.model.config, len(subject.seeds), size, few.tokens.device)
        for first in range(now["row"], rows, at_once):
            here = slice(first, first + at_once)
            now["row"] = min(first + at_once, rows)
            yield few.rows(here), counts[here]
        now["batch"], now["row"] = number + 1, 0


def _start(state: Json | None, **shapes: tuple[int, int]) -> Json:
    """The state to go on from, or zeros where there is none of these shapes."""
    if state is not None and _fits(state, shapes):
        return {**state}
    zeros = {name: [[0] * columns for _ in range(rows)] for name, (rows, columns) in shapes.items()}
    return {"batch": 0, "row": 0, **zeros}


def _fits(state: Json, shapes: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a state, which may come from a damaged file, holds counts of these shapes; a width of 0 is any."""
    if not all(type(state.get(name)) is int for name in ("batch", "row")):
        return False
    for name, (rows, columns) in shapes.items():
        found = state.get(name)
        if not isinstance(found, list) or len(found) != rows:
            return False
        for row in found:
            if not isinstance(row, list) or not all(type(n) is int for n in row):
                return False
            if columns and len(row) != columns:
                return False
    return True


def _add(now: Json, name: str, more: Tensor) -> None:
    now[name] = (torch.tensor(now[name]) + more.cpu()).tolist()
