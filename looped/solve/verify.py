"""The leaderboard's measurement: one row for a model, which the same command gives again bit for bit.

Questions are drawn with a fixed seed at the lengths of `SAMPLES`, so many from every input distribution of the task; an
answer counts if every token is right. The next length is measured while at least nine tenths of the answers at the last
one were right, so a model that has failed costs no more time. Edge cases are questions of 1 to 3 symbols, of every
distribution and variant. A model that is not ours is a callable from the tokens of a question to those
of the answer:

    def answer(question: list[str]) -> list[str]: ...        ["1", "0", "+", "1", "1"]  →  ["1", "0", "1"]

A class is made an object first. What it says of itself: `trained_to`, the longest training length, and `parameters`, a
number, or that of an `nn.Module`, whose weights are then hashed; other callables are hashed as their file.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from looped import checkpoints, files, registry
from looped.errors import InputError
from looped.evaluation import measure
from looped.evaluation.measure import draw_problems
from looped.methods import largest_steps
from looped.model.weights import Layout
from looped.solve.solver import COMPILED, Solver, answer, device, map_batches
from looped.tasks.base import Problems, Task

PROTOCOL = "looped-verify-1"
SAMPLES = {20: 16, 40: 16, 100: 8, 200: 4, 400: 1, 1000: 1}  # length → questions from every distribution
SEED = 409  # of the questions; training draws with others
EDGE_LENGTHS, EDGE_SAMPLES = (1, 2, 3), 8  # questions of each such length, distribution and variant
ENOUGH = 0.9  # share of right answers at a length with which the next one is measured
# Positions² × loop steps of a question that a CPU answers in minutes: leaves out multiplication at 1,000.
MOST_WORK = 10**10
Adapter = Callable[[list[str]], Sequence[str]]
Right = Callable[[int, int], dict[str, int]]  # of so many questions of a length: right ones by distribution


def _callable(found: Any) -> Any:
    made = found() if inspect.isclass(found) else found
    return made if callable(made) else None


registry.declare(
    "model", "looped.models", "MODEL", "a callable from the tokens of a question to those of the answer", _callable, {}
)  # fmt: skip


@dataclass(frozen=True)
class Entrant:
    """Who is measured: what the row says of it, and how it answers."""

    task: Task
    facts: Mapping[str, object]  # name, kind, training length, parameters, hash of the weights, stopping rule
    right: Right
    passed: Callable[[list[list[str]]], int]  # how many of some questions of mixed lengths are right
    check: Callable[[int], None]  # raises where it cannot be asked questions of this length


def of_solver(solver: Solver, name: str) -> Entrant:
    """A model of ours, under the rule by which it stops."""
    subject, rule = solver.subject, solver.rule
    if solver.row is not None:
        weights = Layout(solver.model.config).to_dict(solver.row)
    else:
        weights = {key: value.cpu() for key, value in solver.net.state_dict().items()}
    compiled = solver.recipe == COMPILED
    facts = {
        "model": name, "kind": "compiled program" if compiled else "looped", "method": solver.method.name,
        "recipe": solver.recipe, "seed": solver.seed, "trained_to": None if compiled else solver.trained_max_length,
        "parameters": solver.parameters, "sha256": checkpoints.digest(weights, {}), "stop": rule,
    }  # fmt: skip

    def check(length: int) -> None:
        measure.check(subject, [length], 1, stops=[rule], family=solver.task.families[0])

    def count(length: int, samples: int, family: str) -> int:
        (row,) = measure.measure(subject, [length], samples, seed=SEED, stops=[rule], family=family)
        return round(row.accuracy * samples)

    def right(length: int, samples: int) -> dict[str, int]:
        families = solver.task.families
        found = map_batches(partial(count, length, samples), families, device(solver))  # side by side
        return dict(zip(families, found, strict=True))

    def passed(questions: list[list[str]]) -> int:
        return sum(found.correct for found in answer(solver, questions))

    return Entrant(solver.task, facts, right, passed, check)


def of_adapter(adapter: Adapter, file: Path, name: str, task: Task) -> Entrant:
    """A model that is not ours, which answers one question at a time."""

    def ask(question: list[str]) -> bool:
        try:
            said = adapter(list(question))
        except Exception as error:  # of code that is not ours
            asked = task.format_question(question)[:40]
            raise InputError(f"{name} failed on {asked}: {type(error).__name__}: {error}") from error
        if not isinstance(said, list | tuple) or not all(isinstance(token, str) for token in said):
            raise InputError(f"{name} must give a list of token names, not {said!r:.60}")
        return list(said) == list(task.solve(question))

    def passed(questions: Iterable[list[str]]) -> int:
        return sum(map(ask, questions))

    def right(length: int, samples: int) -> dict[str, int]:
        drawn = {name: draw_problems(task, length, samples, seed=SEED, family=name) for name in task.families}
        return {name: sum(passed(_questions(task, each)) for each in drawn[name]) for name in drawn}

    state = adapter.state_dict() if isinstance(adapter, nn.Module) else None
    size: object = getattr(adapter, "parameters", None)
    if isinstance(adapter, nn.Module):
        size = sum(each.numel() for each in adapter.parameters())
    code = hashlib.sha256(files.read_bytes(file, "a file of Python", registry.LARGEST_FILE)).hexdigest()
    trained = getattr(adapter, "trained_to", None)
    facts = {
        "model": name, "kind": "adapter", "trained_to": trained if type(trained) is int else None,
        "parameters": size if type(size) is int else None,
        "sha256": code if state is None else checkpoints.digest({k: v.cpu() for k, v in state.items()}, {}),
        "code_sha256": code, "stop": "its own",
    }  # fmt: skip
    return Entrant(task, facts, right, passed, lambda length: None)


def verify(
    entrant: Entrant,
    samples: Mapping[int, int] | None = None,
    on_length: Callable[[int, dict[str, int], int], None] = lambda length, right, of: None,
) -> dict[str, Any]:
    """The row of a model; one of other lengths or samples than the protocol's says so and is not listed."""
    task, ended = entrant.task, None
    plan = {n: k for n, k in SAMPLES.items() if n == min(SAMPLES) or _work(task, n) <= MOST_WORK}
    asked = plan if samples is None else dict(sorted(samples.items()))
    edges = _edge_cases(task)
    passed = entrant.passed(edges)
    found: dict[str, dict[str, int]] = {}
    exact_to, exact = None, passed == len(edges)
    for length, count in asked.items():
        try:
            entrant.check(length)
        except InputError as error:
            ended = str(error)
            break
        found[str(length)] = right = entrant.right(length, count)
        on_length(length, right, count)
        total = count * len(right)
        exact = exact and sum(right.values()) == total
        exact_to = length if exact else exact_to
        if sum(right.values()) < ENOUGH * total:
            ended = f"fewer than {ENOUGH:.0%} of the answers are right at {length}"
            break
    facts, why = entrant.facts, ""
    if facts["kind"] == "adapter" and None in (facts["parameters"], facts["trained_to"]):
        why = "parameters or training length are not stated"
    if asked != plan:
        why = "lengths or samples are not the protocol's"
    return {
        "protocol": PROTOCOL, "listed": not why, **({"not_listed": why} if why else {}), "task": task.name, **facts,
        "exact_to": exact_to, "edge_cases": {"right": passed, "of": len(edges)},
        "samples": {str(length): count for length, count in asked.items()}, "right": found, "ended": ended,
    }  # fmt: skip


def _work(task: Task, length: int) -> int:
    return task.row_size(length) ** 2 * largest_steps(task, length)


def _edge_cases(task: Task) -> list[list[str]]:
    """Different questions of the shortest lengths, of every distribution and variant."""
    found: dict[tuple[str, ...], None] = {}
    for length, variant, family in itertools.product(EDGE_LENGTHS, range(task.variants), task.families):
        lengths, generator = torch.full((EDGE_SAMPLES,), length), torch.Generator().manual_seed(SEED)
        variants = torch.full_like(lengths, variant)
        drawn = task.sample(lengths, generator, max_length=length, variants=variants, family=family)
        found |= dict.fromkeys(map(tuple, _questions(task, drawn)))
    return [list(question) for question in found]


def _questions(task: Task, problems: Problems) -> Iterator[list[str]]:
    """Drawn questions as token names."""
    for ids, size in zip(problems.question.tolist(), problems.question_length.tolist(), strict=True):
        yield task.vocab.decode(ids[:size])
