"""Accuracy by length and stopping rule, as rows of results.

Test problems are of the task's last variant, in rows of `row_size(length)`, drawn on the CPU from a generator
of their own for each length: the same on every device, whatever other lengths are measured. One unroll per
length serves all stopping rules. What can stop how:

- an adaptive method runs for `max_steps` (2·T(n) unless given; T(n) where only the oracle is asked) and takes
  every rule;
- a method of fixed depth runs as deep as it was trained, whatever the problem. That is the only step it has,
  so it takes no rule but `oracle`, under which its rows are listed;
- a next-token method answers token by token (`decode.generates_exactly`), with the same rule and rows;
- a Universal Transformer decides itself, and takes no rule but `halt`. It may loop as often as its longest training
  problem may, or T(n) times where that is more.

A model that was not trained at T(n) (`looped.loops`) has its own number of steps under `oracle`: the fewest at which
its answer was asked for.

Knows nothing of run folders or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped import batches
from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import decode, rollout, stopping
from looped.evaluation.rollout import StepGrid
from looped.evaluation.stopping import NOT_SAID, Halt, HaltMode, Rule
from looped.loops import PLAIN, Loops
from looped.methods import Method, largest_steps
from looped.model import positions
from looped.model.config import ModelConfig
from looped.model.seeds import SeedModel, SeedWeights
from looped.tasks.base import Task
from looped.tasks.families import UNIFORM

DRAWN_AT_ONCE = 1024  # problems; what is drawn must not depend on a device's memory
MOST_SAMPLES = 10**8  # larger values are typing errors
ORACLE, HALT = "oracle", "halt"


@dataclass(frozen=True)
class Row:
    """One measured accuracy: of one seed, at one length, under one stopping rule."""

    task: str
    method: str
    recipe: str
    seed: int
    length: int
    stop: str
    accuracy: float
    samples: int
    mean_steps: float
    family: str = UNIFORM

    def as_dict(self) -> dict[str, str | int | float]:
        """As result files hold it: the input distribution only where inputs are not uniform."""
        row = asdict(self)
        if self.family == UNIFORM:
            del row["family"]
        return row


@dataclass(frozen=True)
class Subject:
    """What is measured: the weights of some seeds, and what they were trained for."""

    task: Task
    method: Method
    model: SeedModel
    weights: SeedWeights  # in the precision and on the device to measure with
    seeds: tuple[int, ...]  # names of the seed axis
    trained_max_length: int
    recipe: str = ""
    loops: Loops = PLAIN  # how many steps its training gave a problem
    on_step: Callable[[], None] = lambda: None  # called between loop steps; what it raises ends a measurement

    def row(
        self, seed: int, length: int, stop: str, accuracy: float, samples: int, steps: float, family: str
    ) -> Row:
        """A row of results."""
        named = self.task.name, self.method.name, self.recipe, seed
        return Row(*named, length, stop, accuracy, samples, steps, family)


def measure(
    subject: Subject,
    lengths: Sequence[int],
    samples: int,
    *,
    seed: int,
    stops: Sequence[str | Rule] | None = None,
    family: str = UNIFORM,
    max_steps: int | None = None,
    on_progress: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """Rows for every length, rule and seed, in this order; `on_progress` gets each length's when done."""
    stops = usual_stops(subject.method) if stops is None else stops
    rules = check(subject, lengths, samples, stops=stops, family=family, max_steps=max_steps)
    rows: list[Row] = []
    for length in lengths:
        if subject.method.prediction == "ntp":
            outcomes = [_generated(subject, length, samples, seed, family)] * len(rules)
        else:
            run = _steps_to_run(subject, length, rules, max_steps)
            unrolled = length_grid(
                subject, length, samples,
                seed=seed, family=family, max_steps=run, motion=any(rule.needs_motion for rule in rules),
                only_oracle=all(rule.name == ORACLE for rule in rules),
            )  # fmt: skip
            outcomes = [_stopped(unrolled, rule) for rule in rules]
        fresh = [
            subject.row(name, length, rule.name, _mean(correct[s]), samples, _mean(steps[s]), family)
            for rule, (correct, steps) in zip(rules, outcomes, strict=True)
            for s, name in enumerate(subject.seeds)
        ]
        rows += fresh
        if on_progress is not None:
            on_progress(fresh)
    return rows


def check(
    subject: Subject,
    lengths: Sequence[int],
    samples: int,
    *,
    stops: Sequence[str | Rule],
    family: str,
    max_steps: int | None = None,
) -> list[Rule]:
    """The stopping rules by name; raises before any work is done if something asked for cannot be had."""
    rules = check_words(
        subject.task, subject.method, subject.model.config, lengths, stops=stops, family=family
    )
    if samples < 1:
        raise InputError(f"the number of samples must be at least 1, not {samples}")
    if samples > MOST_SAMPLES:
        raise InputError(f"the number of samples must be at most {MOST_SAMPLES:,}, not {samples:,}")
    for length in lengths:
        least = oracle_steps(subject, length) if any(rule.name == ORACLE for rule in rules) else 1
        if max_steps is not None and max_steps < least:
            raise InputError(
                f"{max_steps} loop steps are too few for length {length}: allow at least {least}"
            )
    return rules


def check_words(
    task: Task,
    method: Method,
    model: ModelConfig,
    lengths: Sequence[int],
    *,
    stops: Sequence[str | Rule],
    family: str,
) -> list[Rule]:
    """The stopping rules by name; raises if such a model, trained or not, cannot be measured so."""
    rules = [stopping.get(name) for name in stops]
    for rule in rules:
        if not method.adaptive and rule.name != ORACLE:
            raise InputError(
                f"{method.name} has a fixed depth and no steps for {rule.name} to choose from; "
                f"only {ORACLE} applies to it"
            )
        if method.universal and rule.name != HALT:
            raise InputError(f"{method.name} decides itself when to stop: only {HALT} applies to it")
        if isinstance(rule, HaltMode) and model.halting == "none":
            raise InputError(NOT_SAID)
        if isinstance(rule, Halt) and not model.says_done:
            raise InputError(NOT_SAID)
    if not rules or not lengths:
        raise InputError("name at least one length and one stopping rule to evaluate")
    task.check_family(family)
    for length in lengths:
        positions.check_size(model, task.row_size(task.check_length(length)) + method.pause)
    return rules


def length_grid(
    subject: Subject,
    length: int,
    samples: int,
    *,
    seed: int,
    family: str = UNIFORM,
    max_steps: int,
    motion: bool = False,
    only_oracle: bool = False,
) -> StepGrid:
    """The step grid of fresh test problems of one length, for rules and for curves over steps.

    Where `only_oracle` looks at it, nothing is read before the first problem has reached its own number of steps.
    """
    if subject.method.prediction == "ntp":
        raise InputError(f"{subject.method.name} decodes token by token and has no step grid")
    grids = []
    for batch in draw_batches(subject, length, samples, seed=seed, family=family):
        first = int(batch.steps.min()) if only_oracle else 1
        grids.append(
            rollout.unroll_grid(
                subject.model, subject.weights, batch, max_steps,
                motion=motion, read_from=first, on_step=subject.on_step,
            )
        )  # fmt: skip
    return rollout.join(grids)


def draw_batches(
    subject: Subject, length: int, samples: int, *, seed: int, family: str = UNIFORM
) -> Iterator[Batch]:
    """Fresh test problems of one length, laid out for the method, on the weights' device."""
    task, method = subject.task, subject.method
    generator = torch.Generator().manual_seed(seed * 1_000_003 + length)
    for first in range(0, samples, DRAWN_AT_ONCE):
        lengths = torch.full((min(DRAWN_AT_ONCE, samples - first),), length)
        problems = task.sample(lengths, generator, max_length=length, family=family)
        batch = batches.lay_out(problems, task.vocab, task.row_size(length), method.prediction, method.pause)
        steps = method.steps(task, problems.steps, subject.trained_max_length)
        if not subject.loops.plain:
            steps = subject.loops.first(problems.steps, problems.question_length)
        yield replace(batch, steps=steps).to(subject.weights.embed.device)


def oracle_steps(subject: Subject, length: int) -> int:
    """The most steps the method's own count gives for this length: T(n), or its fixed depth."""
    own = torch.tensor([largest_steps(subject.task, length)])
    if not subject.loops.plain:
        return int(subject.loops.first(own, torch.tensor([subject.task.question_size(length)])))
    return int(subject.method.steps(subject.task, own, subject.trained_max_length))


def _steps_to_run(subject: Subject, length: int, rules: Sequence[Rule], max_steps: int | None) -> int:
    """How many steps to unroll: no more than anybody looks at."""
    needed = oracle_steps(subject, length)
    if all(rule.name == ORACLE for rule in rules):
        return needed
    return max_steps or reach(subject, length)


def reach(subject: Subject, length: int) -> int:
    """How many steps to look at where the rule does not say when to stop: 2·T(n), and twice what training asked for."""
    most = 2 * oracle_steps(subject, length)
    if subject.loops.plain:
        return most
    own = torch.tensor([largest_steps(subject.task, length)])
    asked = int(subject.loops.last(own, torch.tensor([subject.task.question_size(length)])))
    return max(most, asked, 2 * int(own))


def usual_stops(method: Method) -> tuple[str, ...]:
    """The rule a method is measured with unless told otherwise."""
    return (HALT,) if method.universal else (ORACLE,)


def _stopped(unrolled: StepGrid, rule: Rule) -> tuple[Bool[Tensor, "S N"], Int[Tensor, "S N"]]:
    """Which examples are right where the rule stops them, and the steps."""
    steps = rule.steps(unrolled)
    return rollout.correct_at(unrolled, steps), steps


def _generated(
    subject: Subject, length: int, samples: int, seed: int, family: str
) -> tuple[Bool[Tensor, "S N"], Int[Tensor, "S N"]]:
    """Which examples a next-token method answers right, and its loop steps a token (or position)."""
    correct, steps = [], []
    eos = subject.task.vocab.eos
    for batch in draw_batches(subject, length, samples, seed=seed, family=family):
        if subject.method.universal:
            from looped.evaluation import universal  # here: it needs the fast engine's model

            most = max(oracle_steps(subject, n) for n in (length, subject.trained_max_length))
            right, took = universal.exact(
                subject.model, subject.weights, batch, most, eos, on_chunk=subject.on_step
            )
            correct.append(right)
            steps.append(took)
            continue
        loops = int(batch.steps[0])
        right = decode.generates_exactly(
            subject.model, subject.weights, batch, loops, eos, on_step=subject.on_step
        )
        correct.append(right)
        steps.append(torch.full_like(right, loops, dtype=torch.long))
    return torch.cat(correct, dim=1), torch.cat(steps, dim=1)


# --- statistics ----------------------------------------------------------------------------------------------
# How sure a measured accuracy is: Wilson's interval for one, mean and standard error over seeds.


Z95 = 1.959963984540054  # standard deviations that hold 95 % of a normal distribution


def wilson(accuracy: float, samples: int, z: float = Z95) -> tuple[float, float]:
    """The interval that holds the true accuracy 95 times of 100 (with the default z), given a measured one.

    Unlike the normal interval it is honest at the ends: 6,400 right of 6,400 give (.9994, 1).
    """
    assert samples > 0
    assert 0 <= accuracy <= 1
    shrink = 1 + z * z / samples
    middle = (accuracy + z * z / (2 * samples)) / shrink
    half = z / shrink * math.sqrt(accuracy * (1 - accuracy) / samples + z * z / (4 * samples * samples))
    return 0.0 if accuracy == 0 else middle - half, 1.0 if accuracy == 1 else middle + half


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its standard error, which one seed alone does not have."""

    mean: float
    error: float | None


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean ± standard error (sample deviation over the root of the number of seeds)."""
    assert values
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Spread(fmean(values), error)


# --- what a model has found out by itself ------------------------------------------------------------------

Rows = list[dict[str, Any]]


def discover(
    subject: Subject,
    length: int,
    samples: int,
    *,
    seed: int,
    stops: Sequence[str | Rule],
    family: str = UNIFORM,
    max_steps: int | None = None,
) -> Rows:
    """Which T(n) a model has found, and what its way of stopping is worth: rows of one length, by rule and seed.

        {"task": "parity", …, "length": 8, "stop": "converged", "accuracy": 1.0, "mean_steps": 11.0,
         "needed": 8, "first_right": 6.2, "held_from": 8.0, "held": 1.0, "random_exit": 0.81}

    `needed` is the task's T(n), which such a model may never have heard of. `first_right` is the mean step at which an
    example is right for the first time, `held_from` that from which it stays right, over the share `held` of examples
    that do; null where none does. `random_exit` is the accuracy of leaving at a random step, with as many steps on
    average as the rule takes. A Universal Transformer shows no steps to look at: null.
    """
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


def _mean(values: Tensor) -> float:
    return float(values.double().mean())


def _mean_where(steps: Tensor) -> float | None:
    """The mean of the steps that are there; 0 stands for none."""
    there = steps[steps > 0].to(torch.float64)
    return float(there.mean()) if len(there) else None
