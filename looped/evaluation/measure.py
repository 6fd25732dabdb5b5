"""Accuracy by length and stopping rule, as rows of results.

Test problems are of the task's last variant, in rows of `row_size(length)`, drawn on the CPU from a generator
of their own for each length: the same on every device, whatever other lengths are measured. One pass through the
loop per length serves all stopping rules. What can stop how:

- an adaptive method runs for `max_steps` (2·T(n) unless given; T(n) where only the oracle is asked) and takes
  every rule;
- a method of fixed depth runs as deep as it was trained, whatever the problem. That is the only step it has,
  so it takes no rule but `oracle`, under which its rows are listed;
- a next-token method answers token by token (`decode.generates_exactly`), with the same rule and rows;
- a Universal Transformer decides itself, and takes no rule but `halt`. It may loop as often as its longest training
  problem may, or T(n) times where that is more.

A model that was not trained at T(n) (`methods.Loops`) has its own number of steps under `oracle`: the fewest at which
its answer was asked for.

Knows nothing of run folders or files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped import batches
from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import decode, rollout, stopping
from looped.evaluation.decode import exact, run_until_stopped
from looped.evaluation.rollout import StepGrid, rows_at_once, unroll_grid
from looped.evaluation.stopping import NOT_SAID, Halt, HaltMode, OnlineRule, Rule
from looped.methods import PLAIN, Loops, Method, largest_steps
from looped.model import positions
from looped.model.config import ModelConfig
from looped.model.seeds import SeedModel, SeedWeights
from looped.result_files import an, list_of
from looped.tasks.base import Problems, Task
from looped.tasks.families import UNIFORM

Json = dict[str, Any]
Pause = Callable[[Json], bool]  # whether to stop, asked with the partial counts
DRAWN_AT_ONCE = 1024  # problems; what is drawn must not depend on a device's memory
MOST_SAMPLES = 10**8  # larger values are typing errors
ORACLE, HALT = "oracle", "halt"
FEW_ROWS, MORE_ROWS = 4, 64  # of the two measurements that tell how fast a machine is
ENOUGH_S = 1.0  # seconds that one of them takes where it is enough


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

    def steps(self, own: Int[Tensor, "*B"], tokens: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """Loop steps of problems with these T(n) and question tokens: T(n), a fixed depth, or what training gave."""
        if not self.loops.plain:
            return self.loops.first(own, tokens)
        return self.method.steps(self.task, own, self.trained_max_length)

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
        fresh = measure_length(
            subject, length, samples, seed=seed, rules=rules, family=family, max_steps=max_steps
        )
        assert fresh is not None
        rows += fresh
        if on_progress is not None:
            on_progress(fresh)
    return rows


def measure_length(
    subject: Subject,
    length: int,
    samples: int,
    *,
    seed: int,
    rules: Sequence[Rule],
    family: str = UNIFORM,
    max_steps: int | None = None,
    state: Json | None = None,
    pause: Pause = lambda state: False,
) -> list[Row] | None:
    """Rows of one length for every rule and seed; None if `pause` said to stop.

    Rules that decide on the fly let rows leave the loop, and can be interrupted. A rule that has to see every step of
    every problem first cannot, nor can answers that come token by token.
    """
    online = [rule for rule in rules if isinstance(rule, OnlineRule)]
    last = _steps_to_run(subject, length, rules, max_steps)
    if subject.method.prediction == "ntp":
        outcomes = [_generated(subject, length, samples, seed, family)] * len(rules)
    elif len(online) < len(rules):
        moves = any(rule.needs_motion for rule in rules)
        grid = length_grid(subject, length, samples, seed=seed, family=family, max_steps=last, motion=moves)
        chosen = [rule.steps(grid) for rule in rules]
        outcomes = [(rollout.correct_at(grid, steps), steps) for steps in chosen]
    else:
        found = count_rows(
            subject, length, family, samples, seed=seed, rules=online, last=last, state=state, pause=pause
        )
        if found is None:
            return None
        counted = zip(found["right"], found["steps"], strict=True)
        outcomes = [(torch.tensor(right), torch.tensor(steps)) for right, steps in counted]

    def share(counted: Tensor) -> float:
        return float(counted.double().sum()) / samples

    return [
        subject.row(name, length, rule.name, share(right[s]), samples, share(steps[s]), family)
        for rule, (right, steps) in zip(rules, outcomes, strict=True)
        for s, name in enumerate(subject.seeds)
    ]


def check(
    subject: Subject, lengths: Sequence[int], samples: int, *, stops: Sequence[str | Rule], family: str,
    max_steps: int | None = None,
) -> list[Rule]:  # fmt: skip
    """The stopping rules by name; raises before any work is done if something asked for cannot be had."""
    config = subject.model.config
    rules = check_words(subject.task, subject.method, config, lengths, stops=stops, family=family)
    check_samples(samples)
    for length in lengths:
        least = oracle_steps(subject, length) if any(rule.name == ORACLE for rule in rules) else 1
        if max_steps is not None and max_steps < least:
            raise InputError(
                f"{max_steps} loop steps are too few for length {length}: allow at least {least}"
            )
    return rules


def check_samples(samples: int, least: int = 1) -> None:
    """Raise unless so many problems can be drawn."""
    if samples < least:
        raise InputError(f"the number of samples must be at least {least}, not {samples}")
    if samples > MOST_SAMPLES:
        raise InputError(f"the number of samples must be at most {MOST_SAMPLES:,}, not {samples:,}")


def check_words(
    task: Task, method: Method, model: ModelConfig, lengths: Sequence[int], *, stops: Sequence[str | Rule], family: str
) -> list[Rule]:  # fmt: skip
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
        silent = isinstance(rule, HaltMode) and model.halting == "none"
        if silent or (isinstance(rule, Halt) and not model.says_done):
            raise InputError(NOT_SAID)
    if not rules or not lengths:
        raise InputError("name at least one length and one stopping rule to evaluate")
    task.check_family(family)
    for length in lengths:
        positions.check_size(model, task.row_size(task.check_length(length)) + method.pause)
    return rules


def length_grid(
    subject: Subject, length: int, samples: int, *, seed: int, family: str = UNIFORM, max_steps: int,
    motion: bool = False,
) -> StepGrid:  # fmt: skip
    """The step grid of fresh test problems of one length, for rules and for curves over steps."""
    if subject.method.prediction == "ntp":
        raise InputError(f"{subject.method.name} decodes token by token and has no step grid")
    model, weights, on_step = subject.model, subject.weights, subject.on_step
    drawn = draw_batches(subject, length, samples, seed=seed, family=family)
    return rollout.join(
        [unroll_grid(model, weights, batch, max_steps, motion=motion, on_step=on_step) for batch in drawn]
    )


def draw_batches(
    subject: Subject, length: int, samples: int, *, seed: int, family: str = UNIFORM
) -> Iterator[Batch]:
    """Fresh test problems of one length, laid out for the method, on the weights' device."""
    task, method = subject.task, subject.method
    for problems in draw_problems(task, length, samples, seed=seed, family=family):
        batch = batches.lay_out(problems, task.vocab, task.row_size(length), method.prediction, method.pause)
        steps = subject.steps(problems.steps, problems.question_length)
        yield replace(batch, steps=steps).to(subject.weights.embed.device)


def draw_problems(
    task: Task, length: int, samples: int, *, seed: int, family: str = UNIFORM
) -> Iterator[Problems]:
    """The same problems, not laid out."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + length)
    for first in range(0, samples, DRAWN_AT_ONCE):
        lengths = torch.full((min(DRAWN_AT_ONCE, samples - first),), length)
        yield task.sample(lengths, generator, max_length=length, family=family)


def oracle_steps(subject: Subject, length: int) -> int:
    """The most steps the method's own count gives for this length: T(n), or its fixed depth."""
    own = torch.tensor([largest_steps(subject.task, length)])
    return int(subject.steps(own, torch.tensor([subject.task.question_size(length)])))


def _steps_to_run(subject: Subject, length: int, rules: Sequence[Rule], max_steps: int | None) -> int:
    """How many steps to unroll: no more than the rules look at."""
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


def work(subject: Subject, length: int, samples: int, rules: Sequence[Rule]) -> tuple[int, float]:
    """What measuring a length computes: layers that follow one another, and multiplications in all of them."""
    config, task, method = subject.model.config, subject.task, subject.method
    steps = _steps_to_run(subject, length, rules, None) if method.adaptive else oracle_steps(subject, length)
    size, width = task.row_size(length) + method.pause, config.width
    seen = sum(min(band or size / 2, size / 2) for band in config.head_bands) / config.heads
    position = 2 * width * width * (2 + config.expansion) + 2 * width * seen
    batches_drawn = -(-samples // DRAWN_AT_ONCE)
    layers = steps * config.layers
    return layers * batches_drawn, len(subject.seeds) * samples * layers * size * position


@dataclass(frozen=True)
class Pace:
    """How fast a model is measured on this machine, from two short measurements."""

    layer_s: float  # a layer at a loop step, however few rows there are
    each_s: float  # a multiplication

    def seconds(self, subject: Subject, length: int, samples: int, rules: Sequence[Rule]) -> float:
        """The time that a length will take."""
        layers, multiplications = work(subject, length, samples, rules)
        return layers * self.layer_s + multiplications * self.each_s


def pace(subject: Subject, length: int, rules: Sequence[Rule]) -> Pace:
    """Time two short measurements at a length; the first run, which prepares memory and threads, does not count."""
    times = []
    for samples in (FEW_ROWS, FEW_ROWS, MORE_ROWS):
        began = time.perf_counter()
        measure(subject, [length], samples, seed=0, stops=rules)
        times.append(time.perf_counter() - began)
        if times[-1] > ENOUGH_S:  # a large model: the fixed part is not worth another measurement
            return Pace(0.0, times[-1] / work(subject, length, samples, rules)[1])
    layers, few = work(subject, length, FEW_ROWS, rules)
    _, more = work(subject, length, MORE_ROWS, rules)
    each = max(0.0, times[2] - times[1]) / (more - few)
    return Pace(max(0.0, times[1] - few * each) / layers, each)


def usual_stops(method: Method) -> tuple[str, ...]:
    """The rule a method is measured with unless told otherwise."""
    return (HALT,) if method.universal else (ORACLE,)


def _generated(
    subject: Subject, length: int, samples: int, seed: int, family: str
) -> tuple[Bool[Tensor, "S N"], Int[Tensor, "S N"]]:
    """Which examples a next-token method answers right, and its loop steps a token (or position)."""
    correct, steps = [], []
    eos = subject.task.vocab.eos
    for batch in draw_batches(subject, length, samples, seed=seed, family=family):
        model, weights, on_step = subject.model, subject.weights, subject.on_step
        if subject.method.universal:
            most = max(oracle_steps(subject, n) for n in (length, subject.trained_max_length))
            right, took = decode.universal_exact(model, weights, batch, most, eos, on_chunk=on_step)
        else:
            loops = int(batch.steps[0])
            right = decode.generates_exactly(model, weights, batch, loops, eos, on_step=on_step)
            took = torch.full_like(right, loops, dtype=torch.long)
        correct.append(right)
        steps.append(took)
    return torch.cat(correct, dim=1), torch.cat(steps, dim=1)


# --- partial counts ----------------------------------------------------------------------------------------
# Problems are computed a few rows at a time, so that a long measurement can be stopped and resumed. After each part
# `pause` is shown the partial counts, which JSON can hold:
#
#     {"batch": 1, "row": 320, "right": [[1344, 1343]], "steps": [[134400, 134400]]}      one rule, two seeds
#
# A call that is given such a state draws the same problems, skips those that were counted, and ends with the same
# numbers. Some input distributions have few different inputs (all zeros: one), so each different row is computed once
# and counted as often as it was drawn.


def count_rows(
    subject: Subject, length: int, family: str, samples: int, *, seed: int, rules: Sequence[OnlineRule], last: int,
    state: Json | None, pause: Pause,
) -> Json | None:  # fmt: skip
    """Right answers and loop steps of all problems, for every rule and seed; None if `pause` said to stop."""
    shape = (len(rules), len(subject.seeds))
    now = resumed(state, right=shape, steps=shape)
    for part, counts in uncounted(subject, length, family, samples, seed, now):
        limits = torch.full_like(part.steps, last)
        found = run_until_stopped(
            subject.model, subject.weights, part, rules, limits, chunk=len(counts), on_step=subject.on_step
        )
        right = torch.stack([exact(answers, part) for answers in found])
        add(now, "right", (right * counts).sum(-1))
        add(now, "steps", (torch.stack([answers.steps for answers in found]) * counts).sum(-1))
        if pause(now):
            return None
    return now


def distinct(batch: Batch) -> tuple[Batch, Int[Tensor, "K"]]:
    """The different rows of a batch in an order of their own, and how often each is there."""
    kinds, kind, counts = torch.unique(batch.tokens, dim=0, return_inverse=True, return_counts=True)
    at = torch.arange(kind.shape[0], device=kind.device)
    first = torch.full_like(at[: kinds.shape[0]], kind.shape[0]).scatter_reduce(0, kind, at, "amin")
    return batch.rows(first), counts


def uncounted(
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


def resumed(state: Json | None, **shapes: tuple[int, int]) -> Json:
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
        if not list_of(list_of(an(int)))(found) or len(found) != rows:  # type: ignore[arg-type]
            return False
        if columns and any(len(row) != columns for row in found):  # type: ignore[union-attr]
            return False
    return True


def add(now: Json, name: str, more: Tensor) -> None:
    """Count what a part has given."""
    now[name] = (torch.tensor(now[name]) + more.cpu()).tolist()
