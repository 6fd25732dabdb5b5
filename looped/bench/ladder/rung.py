"""One rung: one length and one input family of one model. Knows nothing of ladders, runs or files.

Rows are those of `looped evaluate`, with the same problems: rules choose among the first 2·T(n) steps. On uniform
inputs, some problems also run on to 3·T(n), which shows what becomes of the answer of an adaptive model:

    overrun   accuracy when every example runs 0, 1, 5 steps, 50 %, 100 % or 200 % of T past its T
    drift     the first step at which an example's answer is right, less T: mean, 5 % and 95 % quantile;
              the step of the best accuracy, less T; and from where to where around it at least 99 % are right

An answer of one bit is right by chance half of the time, so for parity only the last two say something. How the
problems of a long rung are worked through, and gone on with after an interruption, is in `tally.py`.

Shapes: S seeds, T loop steps, N examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.bench.ladder import LEVELS
from looped.bench.ladder.tally import Json, tally_rows, tally_steps
from looped.evaluation.measure import Row, Subject, check, measure, oracle_steps
from looped.evaluation.stopping import OnlineRule

Pause = Callable[[Json], bool]

# name → extra steps past T: whole steps, and shares of T
EXTRA_STEPS = {"+0": 0, "+1": 1, "+5": 5}
EXTRA_SHARES = {"+50%": 0.5, "+100%": 1.0, "+200%": 2.0}
QUANTILES = {"low": 0.05, "high": 0.95}


def measure_rung(
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
    """Rows for every rule and seed; None if `pause` said to leave off, at a state to go on from.

    A rule that has to see every step of every problem first cannot be left off.
    """
    rules = check(subject, [length], samples, stops=stops, family=family)
    online = [rule for rule in rules if isinstance(rule, OnlineRule)]
    if not has_steps(subject) or len(online) < len(rules):
        last = 2 * oracle_steps(subject, length) if has_steps(subject) else None
        return measure(subject, [length], samples, seed=seed, stops=stops, family=family, max_steps=last)
    found = tally_rows(subject, length, family, samples, seed=seed, rules=online, state=state, pause=pause)
    if found is None:
        return None
    return [
        Row(
            subject.task.name, subject.method.name, subject.recipe, name, length, rule.name,
            found["right"][r][s] / samples, samples, found["steps"][r][s] / samples, family,
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
    """Overrun and drift of every seed on uniform inputs; None if `pause` said to leave off."""
    assert has_steps(subject), "a method of fixed depth has no steps"
    needed = oracle_steps(subject, length)
    last = needed + max(extras(needed).values())
    found = tally_steps(subject, length, samples, seed=seed, last=last, state=state, pause=pause)
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
