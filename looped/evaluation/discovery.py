"""Which T(n) a model has found, and what its way of stopping is worth: rows by length, rule and seed.

    {"task": "parity", …, "length": 8, "stop": "converged", "accuracy": 1.0, "mean_steps": 11.0,
     "needed": 8, "first_right": 6.2, "held_from": 8.0, "held": 1.0, "random_exit": 0.81}

`needed` is the task's T(n), which such a model may never have heard of. `first_right` is the mean step at which an
example is right for the first time, `held_from` that from which it stays right, over the share `held` of examples that
do; null where none does. `random_exit` is the accuracy of leaving at a random step, with as many steps on average as
the rule takes: what the rule has more is its own. A Universal Transformer shows no steps to look at: null.

Rows are those of `measure` with more to them. Knows nothing of run folders or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from looped.evaluation import rollout
from looped.evaluation.measure import Row, Subject, check, length_grid, measure, oracle_steps, reach
from looped.evaluation.rollout import StepGrid
from looped.methods import largest_steps
from looped.tasks.families import UNIFORM

Rows = list[dict[str, Any]]


def discover(
    subject: Subject,
    length: int,
    samples: int,
    *,
    seed: int,
    stops: Sequence[str],
    family: str = UNIFORM,
    max_steps: int | None = None,
) -> Rows:
    """Rows of one length, by rule and seed."""
    rules = check(subject, [length], samples, stops=stops, family=family, max_steps=max_steps)
    needed = largest_steps(subject.task, length)
    if subject.method.prediction == "ntp":
        found = measure(subject, [length], samples, seed=seed, stops=stops, family=family)
        blind = {"first_right": None, "held_from": None, "held": None, "random_exit": None}
        return [row.as_dict() | {"needed": needed} | blind for row in found]
    run = max_steps or max(reach(subject, length), oracle_steps(subject, length))
    moves = any(rule.needs_motion for rule in rules)
    grid = length_grid(subject, length, samples, seed=seed, family=family, max_steps=run, motion=moves)
    seen = trajectory_facts(grid)
    rows: Rows = []
    for rule in rules:
        steps = rule.steps(grid)
        mean = steps.double().mean(1)
        exact, control = rollout.accuracy(grid, steps), rollout.random_exit(grid, mean)
        for s, name in enumerate(subject.seeds):
            row = Row(
                subject.task.name, subject.method.name, subject.recipe, name, length, rule.name,
                float(exact[s]), samples, float(mean[s]), family,
            )  # fmt: skip
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
