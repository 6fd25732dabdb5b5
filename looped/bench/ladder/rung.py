"""One rung: one length and one input family of one model. Knows nothing of ladders, runs or files.

Rows are those of `looped evaluate`, with the same problems: rules choose among the first 2·T(n) steps. On uniform
inputs, some problems also run on to 3·T(n), which shows what becomes of the answer of an adaptive model:

    overrun   accuracy when every example runs 0, 1, 5 steps, 50 %, 100 % or 200 % of T past its T
    drift     the first step at which an example's answer is right, less T: mean, 5 % and 95 % quantile;
              the step of the best accuracy, less T; and from where to where around it at least 99 % are right

An answer of one bit is right by chance half of the time, so for parity only the last two say something. Some families
have few different inputs (all zeros: one), so each is computed once and counted as often as it was drawn.

Shapes: S seeds, T loop steps, N examples, K different examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.bench.ladder import LEVELS
from looped.bench.ladder.watch import Stopped, watch
from looped.evaluation import grid
from looped.evaluation.grid import StepGrid
from looped.evaluation.measure import (
    Row,
    Subject,
    check,
    draw_batches,
    length_grid,
    measure,
    oracle_steps,
)
from looped.evaluation.stopping import OnlineRule, Rule

Json = dict[str, Any]

# name → extra steps past T: whole steps, and shares of T
EXTRA_STEPS = {"+0": 0, "+1": 1, "+5": 5}
EXTRA_SHARES = {"+50%": 0.5, "+100%": 1.0, "+200%": 2.0}
QUANTILES = {"low": 0.05, "high": 0.95}


def measure_rung(
    subject: Subject, length: int, family: str, samples: int, *, seed: int, stops: Sequence[str]
) -> list[Row]:
    """Rows for every rule and seed."""
    rules = check(subject, [length], samples, stops=stops, family=family)
    if not subject.method.adaptive:
        return measure(subject, [length], samples, seed=seed, stops=stops, family=family)
    last = 2 * oracle_steps(subject, length)
    parts = [
        _stopped(subject, batch, rules, last)
        for batch in draw_batches(subject, length, samples, seed=seed, family=family)
    ]
    correct, steps = (
        torch.cat([part.correct for part in parts], -1),
        torch.cat([part.steps for part in parts], -1),
    )
    return [
        Row(
            subject.task.name, subject.method.name, subject.recipe, name, length, rule.name,
            float(correct[r, s].double().mean()), samples, float(steps[r, s].double().mean()), family,
        )
        for r, rule in enumerate(rules)
        for s, name in enumerate(subject.seeds)
    ]  # fmt: skip


def _stopped(subject: Subject, batch: Batch, rules: Sequence[Rule], last: int) -> Stopped:
    """Where every rule stops every example of a batch; equal inputs are computed once."""
    few, kind = distinct(batch)
    online = [rule for rule in rules if isinstance(rule, OnlineRule)]
    if len(online) == len(rules):
        found = watch(subject.model, subject.weights, few, online, last)
        return Stopped(found.correct[..., kind], found.steps[..., kind])
    unrolled = spread(grid.unroll_grid(subject.model, subject.weights, few, last), kind, batch.steps)
    steps = torch.stack([rule.steps(unrolled) for rule in rules])
    return Stopped(torch.stack([grid.correct_at(unrolled, chosen) for chosen in steps]), steps)


# --- equal inputs ------------------------------------------------------------------------------------------


def distinct(batch: Batch) -> tuple[Batch, Int[Tensor, "N"]]:
    """The different rows of a batch, and for each of its rows which of them it is."""
    kinds, kind = torch.unique(batch.tokens, dim=0, return_inverse=True)
    at = torch.arange(kind.shape[0], device=kind.device)
    first = torch.full_like(at[: kinds.shape[0]], kind.shape[0]).scatter_reduce(0, kind, at, "amin")
    return batch.rows(first), kind


def spread(few: StepGrid, kind: Int[Tensor, "N"], needed: Int[Tensor, "N"]) -> StepGrid:
    """A grid of different rows as the grid of all rows."""
    done = None if few.done is None else few.done[:, :, kind]
    return StepGrid(few.correct[:, :, kind], few.surprise[:, :, kind], few.changed[:, :, kind], needed, done)


# --- what the steps show -----------------------------------------------------------------------------------


def measure_steps(subject: Subject, length: int, samples: int, *, seed: int) -> list[Json]:
    """Overrun and drift of every seed on uniform inputs; nothing for a method of fixed depth."""
    if not subject.method.adaptive or not samples:
        return []
    needed = oracle_steps(subject, length)
    last = needed + max(extras(needed).values())
    unrolled = length_grid(subject, length, samples, seed=seed, max_steps=last)
    return step_records(subject, length, unrolled)


def step_records(subject: Subject, length: int, unrolled: StepGrid) -> list[Json]:
    """Overrun and drift of every seed, from a grid of one length."""
    needed = int(unrolled.needed.max())
    overrun = {name: grid.overrun(unrolled, extra).tolist() for name, extra in extras(needed).items()}
    first = grid.first_correct(unrolled)
    curve = unrolled.correct.double().mean(2)
    return [
        {
            "task": subject.task.name,
            "seed": name,
            "length": length,
            "needed": needed,
            "samples": unrolled.needed.shape[0],
            "overrun": {extra: values[s] for extra, values in overrun.items()},
            "drift": {**drift(first[s], unrolled.needed), **window(curve[s], needed)},
        }
        for s, name in enumerate(subject.seeds)
    ]


def extras(needed: int) -> dict[str, int]:
    """How many steps past T each overrun is: `+50%` of 7 steps are 4, never fewer than asked for."""
    shares = {name: -int(-share * needed // 1) for name, share in EXTRA_SHARES.items()}
    return EXTRA_STEPS | shares


def drift(first: Int[Tensor, "N"], needed: Int[Tensor, "N"]) -> Json:
    """The first right step less T over the examples that are ever right, and the share of those that never are."""
    ever = first > 0
    late = (first - needed)[ever].double()
    found: Json = {"never": float((~ever).double().mean()), "mean": None, **dict.fromkeys(QUANTILES)}
    if late.numel():
        found["mean"] = float(late.mean())
        for name, q in QUANTILES.items():
            found[name] = int(torch.quantile(late, q, interpolation="nearest"))
    return found


def window(curve: Float[Tensor, "T"], needed: int) -> Json:
    """The best step less T (of equals, the nearest to T), and the ends of the stretch around it that holds 99 %."""
    at = torch.arange(1, len(curve) + 1, device=curve.device) - needed
    equals = at[curve == curve.max()]
    best = int(equals[equals.abs().argmin()])
    good = (curve >= LEVELS["L99"] / 1000).tolist()
    low = high = best + needed - 1
    if not good[low]:
        return {"best": best, "from": None, "to": None}
    while low > 0 and good[low - 1]:
        low -= 1
    while high + 1 < len(good) and good[high + 1]:
        high += 1
    return {"best": best, "from": low + 1 - needed, "to": high + 1 - needed}
