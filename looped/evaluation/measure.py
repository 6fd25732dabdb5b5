"""Accuracy by length and stopping rule, as rows of results.

Test problems are of the task's last variant, in rows of `row_size(length)`, drawn on the CPU from a generator
of their own for each length: the same on every device, whatever other lengths are measured. One pass through the
loop per length serves all stopping rules. What can stop how:

- an adaptive method runs for 2·T(n) steps (T(n) where only the oracle is asked) and takes every rule;
- a method of fixed depth runs as deep as it was trained; it takes no rule but `oracle`, as its rows say;
- a next-token method answers token by token (`decode.generates_exactly`), with the same rule and rows;
- a Universal Transformer decides itself, and takes no rule but `halt`. It may loop as often as its longest training
  problem may, or T(n) times where that is more.

A model that was not trained at T(n) (`methods.Loops`) has its own number of steps under `oracle`: the fewest at which
its answer was asked for. Knows nothing of run folders or files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from looped import batches
from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import decode, rollout, stopping
from looped.evaluation.decode import exact, run_until_stopped
from looped.evaluation.rollout import StepGrid, parts, unroll_grid
from looped.evaluation.stopping import NOT_SAID, Halt, HaltMode, OnlineRule, Rule
from looped.methods import PLAIN, Loops, Method, largest_steps
from looped.model import positions
from looped.model.config import ModelConfig
from looped.model.seeds import SeedModel, SeedWeights
from looped.result_files import Check, Json, an, fits, list_of
from looped.tasks.base import Problems, Task
from looped.tasks.distributions import UNIFORM

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
    on_progress: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """Rows for every length, rule and seed, in this order; `on_progress` gets each length's when done."""
    stops = usual_stops(subject.method) if stops is None else stops
    rules = check(subject, lengths, samples, stops=stops, family=family)
    rows: list[Row] = []
    for length in lengths:
        fresh = measure_length(subject, length, samples, seed=seed, rules=rules, family=family)
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
    last = max_steps or _steps_to_run(subject, length, rules)
    if subject.method.prediction == "ntp":
        outcomes = [_generated(subject, length, samples, seed, family)] * len(rules)
    elif len(online) < len(rules):
        moves = any(rule.needs_motion for rule in rules)
        grid = length_grid(subject, length, samples, seed=seed, family=family, max_steps=last, motion=moves)
        chosen = [rule.steps(grid) for rule in rules]
        outcomes = [(rollout.correct_at(grid, steps), steps) for steps in chosen]
    else:

        def stopped(part: Batch, times: Tensor) -> dict[str, Tensor]:
            limits, on_step = torch.full_like(part.steps, last), subject.on_step
            found = run_until_stopped(subject.model, subject.weights, part, online, limits, on_step=on_step)
            right = torch.stack([exact(answers, part) for answers in found])
            steps = torch.stack([answers.steps for answers in found])
            return {"right": (right * times).sum(-1), "steps": (steps * times).sum(-1)}

        shape = (len(rules), len(subject.seeds))
        counted = count(
            subject, length, samples, stopped, {"right": shape, "steps": shape},
            seed=seed, family=family, state=state, pause=pause,
        )  # fmt: skip
        if counted is None:
            return None
        outcomes = list(zip(torch.tensor(counted["right"]), torch.tensor(counted["steps"]), strict=True))

    def share(counted: Tensor) -> float:
        return float(counted.double().sum()) / samples

    return [
        subject.row(name, length, rule.name, share(right[s]), samples, share(steps[s]), family)
        for rule, (right, steps) in zip(rules, outcomes, strict=True)
        for s, name in enumerate(subject.seeds)
    ]


def check(
    subject: Subject, lengths: Sequence[int], samples: int, *, stops: Sequence[str | Rule], family: str
) -> list[Rule]:
    """The stopping rules by name; raises before any work is done if something asked for cannot be had."""
    config = subject.model.config
    rules = check_words(subject.task, subject.method, config, lengths, stops=stops, family=family)
    check_samples(samples)
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
    walk = partial(unroll_grid, subject.model, subject.weights, motion=motion, on_step=subject.on_step)
    drawn = draw_batches(subject, length, samples, seed=seed, family=family)
    return rollout.join([walk(batch, max_steps) for batch in drawn])


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


def _steps_to_run(subject: Subject, length: int, rules: Sequence[Rule]) -> int:
    """How many steps to unroll: no more than the rules look at."""
    only_oracle = all(rule.name == ORACLE for rule in rules)
    return oracle_steps(subject, length) if only_oracle else reach(subject, length)


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
    steps = _steps_to_run(subject, length, rules)
    size, width = task.row_size(length) + method.pause, config.width
    seen = sum(min(band or size / 2, size / 2) for band in config.head_bands) / config.heads
    position = 2 * width * width * (2 + config.expansion) + 2 * width * seen
    batches_drawn = -(-samples // DRAWN_AT_ONCE)
    layers = steps * config.layers
    return layers * batches_drawn, len(subject.seeds) * samples * layers * size * position


def pace(subject: Subject, length: int, rules: Sequence[Rule]) -> Callable[[int, int], float]:
    """The seconds that a length and a number of problems take on this machine, from two short measurements at a length.

    A layer at a loop step takes a time of its own, however few rows there are. The first run, which prepares memory and
    threads, does not count.
    """

    def seconds(length: int, samples: int) -> float:
        layers, multiplications = work(subject, length, samples, rules)
        return layers * layer_s + multiplications * each_s

    layer_s, times = 0.0, []
    for samples in (FEW_ROWS, FEW_ROWS, MORE_ROWS):
        began = time.perf_counter()
        measure(subject, [length], samples, seed=0, stops=rules)
        times.append(time.perf_counter() - began)
        if times[-1] > ENOUGH_S:  # a large model: the fixed part is not worth another measurement
            each_s = times[-1] / work(subject, length, samples, rules)[1]
            return seconds
    layers, few = work(subject, length, FEW_ROWS, rules)
    _, more = work(subject, length, MORE_ROWS, rules)
    each_s = max(0.0, times[2] - times[1]) / (more - few)
    layer_s = max(0.0, times[1] - few * each_s) / layers
    return seconds


def usual_stops(method: Method) -> tuple[str, ...]:
    """The rule a method is measured with unless told otherwise."""
    return (HALT,) if method.universal else (ORACLE,)


def _generated(subject: Subject, length: int, samples: int, seed: int, family: str) -> tuple[Tensor, Tensor]:
    """Which examples [S, N] a next-token method answers right, and its loop steps [S, N] a token (or position)."""
    answer = partial(decode.generates_exactly, subject.model, subject.weights, on_step=subject.on_step)
    found = []
    for batch in draw_batches(subject, length, samples, seed=seed, family=family):
        most = int(batch.steps[0])
        if subject.method.universal:
            most = max(oracle_steps(subject, n) for n in (length, subject.trained_max_length))
        found.append(answer(batch, most, subject.task.vocab.eos))
    correct, steps = (torch.cat(each, dim=1) for each in zip(*found, strict=True))
    return correct, steps


# --- partial counts ----------------------------------------------------------------------------------------
# Problems are computed a few rows at a time, so that a long measurement can be stopped and resumed. After each part
# `pause` is shown the partial counts, which JSON can hold:
#
#     {"batch": 1, "row": 320, "right": [[1344, 1343]], "steps": [[134400, 134400]]}      one rule, two seeds
#
# A call that is given such a state draws the same problems, skips those that were counted, and ends with the same
# numbers. Some input distributions have few different inputs (all zeros: one), so each different row is computed once
# and counted as often as it was drawn.


def count(
    subject: Subject, length: int, samples: int, tell: Callable[[Batch, Int[Tensor, "K"]], dict[str, Tensor]],
    shapes: Mapping[str, tuple[int, int]], *, seed: int, family: str = UNIFORM, state: Json | None, pause: Pause,
) -> Json | None:  # fmt: skip
    """What `tell` gives for different rows and how often each was drawn, over all problems; None if paused.

    Counts are added up. Those of width 0 in `shapes` are lists over problems and are joined.
    """
    now = resumed(state, shapes)
    for number, batch in enumerate(draw_batches(subject, length, samples, seed=seed, family=family)):
        if number < now["batch"]:
            continue
        few, times = distinct(batch)
        rest, times = few.rows(slice(now["row"], None)), times[now["row"] :]
        done = now["row"]
        for here in parts(subject.model, subject.weights, rest):
            now["row"] = done + here.stop
            for name, more in tell(rest.rows(here), times[here]).items():
                before = torch.tensor(now[name], dtype=torch.long)
                both = before + more.cpu() if shapes[name][1] else torch.cat([before, more.cpu()], dim=1)
                now[name] = both.tolist()
            if pause(now):
                return None
        now["batch"], now["row"] = number + 1, 0
    return now


def distinct(batch: Batch) -> tuple[Batch, Int[Tensor, "K"]]:
    """The different rows of a batch in an order of their own, and how often each is there."""
    kinds, kind, counts = torch.unique(batch.tokens, dim=0, return_inverse=True, return_counts=True)
    at = torch.arange(kind.shape[0], device=kind.device)
    first = torch.full_like(at[: kinds.shape[0]], kind.shape[0]).scatter_reduce(0, kind, at, "amin")
    return batch.rows(first), counts


def resumed(state: Json | None, shapes: Mapping[str, tuple[int, int]]) -> Json:
    """The state to go on from, which may come from a damaged file, or zeros where it holds no such counts."""
    checks = {
        "batch": an(int),
        "row": an(int),
        **{name: _counts_of(*shape) for name, shape in shapes.items()},
    }
    if state is not None and fits(state, checks):
        return {**state}
    zeros = {name: [[0] * columns for _ in range(rows)] for name, (rows, columns) in shapes.items()}
    return {"batch": 0, "row": 0, **zeros}


def _counts_of(rows: int, columns: int) -> Check:
    """Whether a value holds whole numbers in this shape; a width of 0 is any."""

    def check(found: object) -> bool:
        if not (isinstance(found, list) and len(found) == rows and list_of(list_of(an(int)))(found)):
            return False
        widths = {len(row) for row in found}
        return widths == {columns} if columns else len(widths) == 1

    return check


# --- what the steps show -----------------------------------------------------------------------------------
def has_steps(subject: Subject) -> bool:
    """Whether there is a loop to look into: not where the depth is fixed, nor where answers come token by token."""
    return subject.method.adaptive and subject.method.prediction == "fop"


def measure_steps(
    subject: Subject, length: int, samples: int, *, seed: int, state: Json | None = None,
    pause: Pause = lambda state: False,
) -> list[Json] | None:  # fmt: skip
    """Overrun and drift (`rollout.step_record`) of every seed on uniform inputs; None if `pause` said to stop."""
    assert has_steps(subject), "a method of fixed depth has no steps"
    needed, seeds = oracle_steps(subject, length), len(subject.seeds)
    last = needed + max(rollout.extras(needed).values())

    def walked(part: Batch, times: Tensor) -> dict[str, Tensor]:
        grid = unroll_grid(subject.model, subject.weights, part, last)
        first = rollout.first_correct(grid).repeat_interleave(times, dim=1)
        return {"right": (grid.correct * times).sum(-1), "first": first}

    shapes = {"right": (seeds, last), "first": (seeds, 0)}
    found = count(subject, length, samples, walked, shapes, seed=seed, state=state, pause=pause)
    if found is None:
        return None
    about = {"length": length, "needed": needed, "samples": samples}
    return [
        {"task": subject.task.name, "seed": name, **about}
        | rollout.step_record([right / samples for right in found["right"][s]], found["first"][s], needed)
        for s, name in enumerate(subject.seeds)
    ]


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
    first, held = rollout.first_correct(grid), rollout.held_from(grid)
    seen = [
        {
            "first_right": _mean_where(first[s]),
            "held_from": _mean_where(held[s]),
            "held": float((held[s] > 0).double().mean()),
        }
        for s in range(len(subject.seeds))
    ]
    rows: list[Json] = []
    for rule in rules:
        steps = rule.steps(grid)
        mean = steps.double().mean(1)
        share, control = rollout.accuracy(grid, steps), rollout.random_exit(grid, mean)
        for s, name in enumerate(subject.seeds):
            row = subject.row(name, length, rule.name, float(share[s]), samples, float(mean[s]), family)
            rows.append(row.as_dict() | {"needed": needed} | seen[s] | {"random_exit": float(control[s])})
    return rows


def curve(subject: Subject, length: int, samples: int, *, seed: int, family: str = UNIFORM) -> list[Json]:
    """Accuracy and mean NLL of the argmax after every step, up to twice the steps needed: rows by seed and step.

    `chosen` is the step of the least NLL, at which the paper stops.
    """
    last = 2 * oracle_steps(subject, length)
    grid = length_grid(subject, length, samples, seed=seed, family=family, max_steps=last)
    accuracy, surprise = grid.correct.double().mean(2).tolist(), grid.surprise.double().mean(2).tolist()
    rows: list[Json] = []
    for name, share, unsure in zip(subject.seeds, accuracy, surprise, strict=True):
        chosen = min(range(last), key=unsure.__getitem__) + 1
        rows += [
            {
                "task": subject.task.name, "method": subject.method.name, "recipe": subject.recipe,
                "seed": name, "length": length, "step": t + 1, "accuracy": share[t], "surprise": unsure[t],
                "samples": samples, "chosen": chosen,
            } | ({} if family == UNIFORM else {"family": family})
            for t in range(last)
        ]  # fmt: skip
    return rows


def _mean_where(steps: Tensor) -> float | None:
    """The mean of the steps that are there; 0 stands for none."""
    there = steps[steps > 0].to(torch.float64)
    return float(there.mean()) if len(there) else None
