"""What a model's steps show: which T(n) it has found by itself, what running past it does, how far answers drift.

On uniform inputs, some problems run on to 3·T(n), which shows what becomes of the answer of an adaptive model:

    overrun   accuracy when every example runs 0, 1, 5 steps, 50 %, 100 % or 200 % of T past its T
    drift     the first step at which an example's answer is right, less T: mean, 5 % and 95 % quantile;
              the step of the best accuracy, less T; and from where to where around it at least 99 % are right

An answer of one bit is right by chance half of the time, so for parity only the last two say something.
Shapes: S seeds, T loop steps, N problems.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.evaluation import measure as measuring
from looped.evaluation import rollout
from looped.evaluation.measure import Json, Pause, Subject, check, length_grid, measure, oracle_steps, reach
from looped.evaluation.rollout import StepGrid, first_correct, unroll_grid
from looped.evaluation.stopping import Rule
from looped.methods import largest_steps
from looped.tasks.families import UNIFORM

GOOD = 0.99  # the share of right answers that holds, as for L99
# name → extra steps past T: whole steps, and shares of T
EXTRA_STEPS = {"+0": 0, "+1": 1, "+5": 5}
EXTRA_SHARES = {"+50%": 0.5, "+100%": 1.0, "+200%": 2.0}
QUANTILES = {"low": 0.05, "high": 0.95}


def has_steps(subject: Subject) -> bool:
    """Whether there is a loop to look into: not where the depth is fixed, nor where answers come token by token."""
    return subject.method.adaptive and subject.method.prediction == "fop"


def measure_steps(
    subject: Subject, length: int, samples: int, *, seed: int, state: Json | None = None,
    pause: Pause = lambda state: False,
) -> list[Json] | None:  # fmt: skip
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
    best = window(torch.tensor(curve, dtype=torch.double), needed)
    return {
        "overrun": {name: curve[needed + extra - 1] for name, extra in extras(needed).items()},
        "drift": drift(torch.tensor(first), needed) | best,
    }


def extras(needed: int) -> dict[str, int]:
    """How many steps past T each overrun is: `+50%` of 7 steps are 4, never fewer than asked for."""
    shares = {name: -int(-share * needed // 1) for name, share in EXTRA_SHARES.items()}
    return EXTRA_STEPS | shares


def drift(first: Int[Tensor, "N"], needed: int) -> Json:
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
    at = torch.arange(1, len(curve) + 1) - needed
    equals = at[curve == curve.max()]
    best = int(equals[equals.abs().argmin()])
    good = (curve >= GOOD).tolist()
    low = high = best + needed - 1
    if not good[low]:
        return {"best": best, "from": None, "to": None}
    while low > 0 and good[low - 1]:
        low -= 1
    while high + 1 < len(good) and good[high + 1]:
        high += 1
    return {"best": best, "from": low + 1 - needed, "to": high + 1 - needed}


def count_steps(
    subject: Subject, length: int, samples: int, *, seed: int, last: int, state: Json | None, pause: Pause
) -> Json | None:
    """Right answers after every step up to `last`, and the first right step of every example, for every seed."""
    seeds = len(subject.seeds)
    now = measuring.resumed(state, right=(seeds, last), first=(seeds, 0))
    now["first"] = [[*firsts] for firsts in now["first"]]  # a state's own is not written to
    for part, counts in measuring.uncounted(subject, length, UNIFORM, samples, seed, now):
        unrolled = unroll_grid(subject.model, subject.weights, part, last, chunk=len(counts))
        measuring.add(now, "right", (unrolled.correct * counts).sum(-1))
        for firsts, found in zip(now["first"], first_correct(unrolled), strict=True):
            firsts += found.repeat_interleave(counts).tolist()
        if pause(now):
            return None
    return now


# --- what a model has found out by itself ------------------------------------------------------------------


def discover(
    subject: Subject,
    length: int,
    samples: int,
    *,
    seed: int,
    stops: Sequence[str | Rule],
    family: str = UNIFORM,
) -> list[Json]:
    """Which T(n) a model has found, and what its way of stopping is worth: rows of one length, by rule and seed.

        {"task": "parity", …, "length": 8, "stop": "converged", "accuracy": 1.0, "mean_steps": 11.0,
         "needed": 8, "first_right": 6.2, "held_from": 8.0, "held": 1.0, "random_exit": 0.81}

    `needed` is the task's T(n), which such a model may never have heard of. `first_right` is the mean step at which an
    example is right for the first time, `held_from` that from which it stays right, over the share `held` of examples
    that do; null where none does. `random_exit` is the accuracy of leaving at a random step, with as many steps on
    average as the rule takes. A Universal Transformer shows no steps to look at: null.
    """
    rules = check(subject, [length], samples, stops=stops, family=family)
    needed = largest_steps(subject.task, length)
    if subject.method.prediction == "ntp":
        found = measure(subject, [length], samples, seed=seed, stops=stops, family=family)
        blind = {"first_right": None, "held_from": None, "held": None, "random_exit": None}
        return [row.as_dict() | {"needed": needed} | blind for row in found]
    run = max(reach(subject, length), oracle_steps(subject, length))
    moves = any(rule.needs_motion for rule in rules)
    grid = length_grid(subject, length, samples, seed=seed, family=family, max_steps=run, motion=moves)
    seen = trajectory_facts(grid)
    rows: list[Json] = []
    for rule in rules:
        steps = rule.steps(grid)
        mean = steps.double().mean(1)
        exact, control = rollout.accuracy(grid, steps), rollout.random_exit(grid, mean)
        for s, name in enumerate(subject.seeds):
            row = subject.row(name, length, rule.name, float(exact[s]), samples, float(mean[s]), family)
            rows.append(row.as_dict() | {"needed": needed} | seen[s] | {"random_exit": float(control[s])})
    return rows


def trajectory_facts(grid: StepGrid) -> list[dict[str, float | None]]:
    """For each seed: when its examples are right first and for good, and how many of them ever are for good."""
    first, held = rollout.first_correct(grid), rollout.held_from(grid)
    return [
        {
            "first_right": _mean_where(first[s]),
            "held_from": _mean_where(held[s]),
            "held": float((held[s] > 0).double().mean()),
        }
        for s in range(first.shape[0])
    ]


def _mean_where(steps: Tensor) -> float | None:
    """The mean of the steps that are there; 0 stands for none."""
    there = steps[steps > 0].to(torch.float64)
    return float(there.mean()) if len(there) else None
