"""`looped solve`: a model answers a question, or one question a line from stdin.

$ looped solve addition 1011+0110 --model addition.safetensors
1011+0110: 10001, after 5 steps (right)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated

import tyro

from looped import devices, tasks
from looped.commands import print_json, print_table
from looped.errors import InputError
from looped.evaluation import stopping
from looped.solve import Answer, Solver, after_each_step, answer, load

AT_ONCE = 256  # questions from a pipe that are answered together


@dataclass(frozen=True)
class Args:
    """Answer a task's questions with a trained or compiled model."""

    task: Annotated[str, tyro.conf.Positional]
    """The task's name."""
    question: Annotated[str | None, tyro.conf.Positional] = None
    """As people type it: 1101, 1011+0110, 11*110, "1 4 2 2 4 3"; without one, a question a line from stdin."""
    model: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """A checkpoint (seed-0.safetensors, or what `looped compile` wrote) or a run's folder."""
    stop: str | None = None
    """When to stop looping: oracle, confidence, threshold, converged, halt; by default halt or else oracle."""
    show_steps: bool = False
    """Also show the answer as it stands after every step."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    json: bool = False
    """One JSON object a question."""


def run(args: Args) -> int:
    """Answers and prints."""
    task = tasks.get(args.task)
    if args.model is None:
        raise InputError(
            "no model ships with this version: give one with --model, for example what "
            f"`looped compile {task.name} --out {task.name}.safetensors` writes"
        )
    solver = load(args.model, devices.pick(args.device))
    if solver.task is not task:
        raise InputError(f"{args.model} is a model for {solver.task.name}, not for {task.name}")
    stopping.get(args.stop or solver.rule)  # a complaint about the rule comes before any question is read
    for questions in _questions(args, solver):
        for question, found in zip(questions, answer(solver, questions, args.stop), strict=True):
            _print(args, solver, question, found)
    return 0


def _questions(args: Args, solver: Solver) -> Iterator[list[list[str]]]:
    """The question given, or those from stdin, as many at a time as make sense."""
    if args.question is not None:
        yield [solver.task.parse(args.question)]
        return
    lines = (line.strip() for line in sys.stdin if line.strip())
    while part := list(islice(lines, 1 if sys.stdin.isatty() else AT_ONCE)):
        yield [solver.task.parse(line) for line in part]


def _print(args: Args, solver: Solver, question: list[str], found: Answer) -> None:
    steps = after_each_step(solver, question, found.steps) if args.show_steps else []
    if args.json:
        print_json(facts(solver, found) | ({"trace": steps} if args.show_steps else {}))
        return
    if steps:
        print_table(("step", "answer"), [(i, text or "empty") for i, text in enumerate(steps, 1)])
    verdict = "right" if found.correct else f"the answer is {found.expected or 'empty'}"
    print(f"{found.question}: {found.answer or 'empty'}, after {found.steps} steps ({verdict})")


def facts(solver: Solver, found: Answer) -> dict[str, object]:
    """An answer as JSON."""
    return {
        "task": solver.task.name,
        "question": found.question,
        "answer": found.answer,
        "steps": found.steps,
        "stop": found.stop,
        "confidence": found.confidence,
        "model": solver.name,
        "expected": found.expected,
        "correct": found.correct,
    }
