"""One length and one input distribution of one model: accuracy by rule and seed, overrun and drift.

Rows are those of `looped evaluate`, with the same problems: rules choose among the first 2·T(n) steps. On uniform
inputs, some problems also run on to 3·T(n), which shows what becomes of the answer of an adaptive model:

    overrun   accuracy when every example runs 0, 1, 5 steps, 50 %, 100 % or 200 % of T past its T
    drift     the first step at which an example's answer is right, less T: mean, 5 % and 95 % quantile;
              the step of the best accuracy, less T; and from where to where around it at least 99 % are right

An answer of one bit is right by chance half of the time, so for parity only the last two say something.

Problems are computed a few rows at a time, so that a long measurement can be stopped and resumed. After each part
`pause` is shown the partial counts, which JSON can hold:

    {"batch": 1, "row": 320, "right": [[1344, 1343]], "steps": [[134400, 134400]]}      one rule, two seeds

A call that is given such a state draws the same problems, skips those that were counted, and ends with the same
numbers. Some input distributions have few different inputs (all zeros: one), so each different row is computed once and
counted as often as it was drawn.

Shapes: R rules, S seeds, T loop steps, N problems, K different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.evaluation.decode import exact, run_until_stopped
from looped.evaluation.length_sweep.record import LEVELS
from looped.evaluation.measure import Row, Subject, check, draw_batches, measure, oracle_steps
from looped.evaluation.rollout import first_correct, rows_at_once, unroll_grid
from looped.evaluation.stopping import OnlineRule
from looped.tasks.families import UNIFORM

Json = dict[str, Any]
Pause = Callable[[Json], bool]  # whether to stop, asked with the partial counts

# name → extra steps past T: whole steps, and shares of T
EXTRA_STEPS = {"+0": 0, "+1": 1, "+5": 5}
EXTRA_SHARES = {"+50%": 0.5, "+100%": 1.0, "+200%": 2.0}
QUANTILES = {"low": 0.05, "high": 0.95}


def measure_length(
    subject: Subject,
    length: int,
    family: str,
    samples: int,
    *,
    seed: int,
    stops: Sequence[str],
    state: Json | None = None,
    pause: Pause = lambda state: False,
) -> list[Row] | None:
    """Measure rows for every rule and seed; None if `pause` said to stop.

    A rule that has to see every step of every problem first cannot be interrupted.
    """
    rules = check(subject, [length], samples, stops=stops, family=family)
    online = [rule for rule in rules if isinstance(rule, OnlineRule)]
    if not has_steps(subject) or len(online) < len(rules):
        last = 2 * oracle_steps(subject, length) if has_steps(subject) else None
        return measure(subject, [length], samples, seed=seed, stops=stops, family=family, max_steps=last)
    found = count_rows(subject, length, family, samples, seed=seed, rules=online, state=state, pause=pause)
    if found is None:
        return None
    return [
        subject.row(
            name, length, rule.name, found["right"][r][s] / samples, samples, found["steps"][r][s] / samples, family
        )
        for r, rule in enumerate(rules)
        for s, name in enumerate(subject.seeds)
    ]  # fmt: skip


def has_steps(subject: Subject) -> bool:
    """Whether there is a loop to look into: not where the depth is fixed, nor where answers come token by token."""
    return subject.method.adaptive and subject.method.prediction == "fop"


# --- what the steps show -----------------------------------------------------------------------------------


def measure_steps(
    subject: Subject,
    length: int,
    samples: int,
    *,
    seed: int,
    state: Json | None = None,
    pause: Pause = lambda state: False,
) -> list[Json] | None:
    """Overrun and drift of every seed on uniform inputs; None if `pause` said to stop."""
    assert has_steps(subject), "a method of fixed depth has no steps"
    needed = oracle_steps(subject, length)
    last = needed + max(extras(needed).values())
    found = count_steps(subject, length, samples, seed=seed, last=last, state=state, pause=pause)
    if found is None:
        return None
    return [
        {
            "task": subject.task.name,
            "seed": name,
            "length": length,
            "needed": needed,
            "samples": samples,
            **step_record([right / samples for right in found["right"][s]], found["first"][s], needed),
        }
        for s, name in enumerate(subject.seeds)
    ]


def step_record(curve: Sequence[float], first: Sequence[int], needed: int) -> Json:
    """Overrun and drift of one seed: accuracy after every step, and each example's first right step (0: never)."""
    return {
        "overrun": {name: curve[needed + extra - 1] for name, extra in extras(needed).items()},
        "drift": {
            **drift(torch.tensor(first), needed),
            **window(torch.tensor(curve, dtype=torch.double), needed),
        },
    }


def extras(needed: int) -> dict[str, int]:
    """How many steps past T each overrun is: `+50%` of 7 steps are 4, never fewer than asked for."""
    shares = {name: -int(-share * needed // 1) for name, share in EXTRA_SHARES.items()}
    return EXTRA_STEPS | shares


def drift(first: Int[Tensor, "N"], needed: int) -> Json:
    """The first right step less T over the examples that are ever right, and the share of those that never are."""
    ever = first > 0
    late = (first - needed)[ever].double()
    found: dict[str, Any] = {
        "never": float((~ever).double().mean()),
        "mean": None,
        **dict.fromkeys(QUANTILES),
    }
    if late.numel():
        found["mean"] = float(late.mean())
        for name, q in QUANTILES.items():
            found[name] = int(torch.quantile(late, q, interpolation="nearest"))
    return found


def window(curve: Float[Tensor, "T"], needed: int) -> Json:
    """The best step less T (of equals, the nearest to T), and the ends of the stretch around it that holds 99 %."""
    at = torch.arange(1, len(curve) + 1) - needed
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


# --- partial counts ----------------------------------------------------------------------------------------


def count_rows(
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
    """Right answers and loop steps of all problems, for every rule and seed; None if `pause` said to stop."""
    shape = (len(rules), len(subject.seeds))
    now = _start(state, right=shape, steps=shape)
    last = 2 * oracle_steps(subject, length)
    for part, counts in _parts(subject, length, family, samples, seed, now):
        limits = torch.full_like(part.steps, last)
        found = run_until_stopped(subject.model, subject.weights, part, rules, limits, chunk=len(counts))
        right = torch.stack([exact(answers, part) for answers in found])
        _add(now, "right", (right * counts).sum(-1))
        _add(now, "steps", (torch.stack([answers.steps for answers in found]) * counts).sum(-1))
        if pause(now):
            return None
    return now


def count_steps(
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
        unrolled = unroll_grid(subject.model, subject.weights, part, last, chunk=len(counts))
        _add(now, "right", (unrolled.correct * counts).sum(-1))
        for firsts, found in zip(now["first"], first_correct(unrolled), strict=True):
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
