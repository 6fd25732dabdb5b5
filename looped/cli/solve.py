"""`looped solve`: a model answers a question, or one question a line from a file or stdin.

$ looped solve addition 1011+0110
1011+0110: 10001, after 4 steps (right)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO

from looped import devices, registry, tasks
from looped.cli.arguments import Option, Positional
from looped.cli.output import print_json
from looped.errors import InputError
from looped.solve import Answer, Solver, answer, load
from looped.solve.answers import shown
from looped.solve.solver import steps
from looped.solve.sources import own
from looped.solve.stream import parcels
from looped.solve.table import print_steps


@dataclass(frozen=True)
class Args:
    """Answer a task's questions with a shipped, trained or compiled model."""

    task: Annotated[str, Positional()]
    """The task's name."""
    question: Annotated[str | None, Positional()] = None
    """As people type it: 1101, 1011+0110, 11*110, "1 4 2 2 4 3"; without one, a question a line from stdin."""
    file: Annotated[Path | None, Option("FILE", default="")] = None
    """Read questions, one a line, from this file instead of stdin."""
    model: Annotated[str | None, Option("NAME|PATH", default="")] = None
    """A shipped model (addition-fast, or fast alone), `compiled`, a checkpoint's file, or a run's folder; by default
    the shipped model of the task."""
    stop: str | None = None
    """When to stop looping: oracle, confidence, threshold, converged, settled, halt, halt-mode; by default
    halt or else oracle."""
    show_steps: bool = False
    """Also show the answer as it stands after every step."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    block: Annotated[str, Option("FILE.py:Name", default="")] = ""
    """The user's own block that the model was trained with."""
    json: bool = False
    """One JSON object a question."""


def run(args: Args) -> int:
    """Answers and prints, parcel by parcel."""
    if args.block:
        registry.resolve(args.block)
    task = tasks.get(args.task)
    solver = load(own(task.name, args.model), devices.pick(args.device))
    if solver.task is not task:
        raise InputError(f"{args.model} is a model for {solver.task.name}, not for {task.name}")
    answer(solver, [], args.stop)  # a complaint about the rule comes before any question is read
    if args.question is not None:
        if args.file is not None:
            raise InputError("give a question or --file, not both")
        question = task.parse(args.question)
        _print(args, solver, question, answer(solver, [question], args.stop)[0])
        return 0
    for questions, complaint in _questions(args, solver):
        for question, found in zip(questions, answer(solver, questions, args.stop), strict=True):
            _print(args, solver, question, found)
        sys.stdout.flush()
        if complaint is not None:
            raise complaint
    return 0


def _questions(args: Args, solver: Solver) -> Iterator[tuple[list[list[str]], InputError | None]]:
    """Questions as they arrive, and a complaint where the line after them is none."""
    with ExitStack() as stack:
        source: TextIO | None = sys.stdin
        if args.file is not None:  # a byte that is no text is refused with its line, as on stdin
            source = stack.enter_context(open(args.file, encoding="utf-8", errors="surrogateescape"))
        if source is None:
            raise InputError("there is nothing to read questions from: name one, or a --file")
        for parcel in parcels(source):
            questions: list[list[str]] = []
            complaint = None
            for number, text in parcel:
                try:
                    questions.append(solver.task.parse(text))
                except InputError as error:
                    complaint = InputError(f"line {number}: {error}")
                    break
            yield questions, complaint


def _print(args: Args, solver: Solver, question: list[str], found: Answer) -> None:
    trace = list(steps(solver, question, found.steps)) if args.show_steps else []
    if args.json:
        more = {"trace": [step.facts() for step in trace]} if args.show_steps else {}
        print_json(facts(solver, found) | more)
        return
    if trace:
        print_steps(solver.task, question, trace)
    print(f"{found.question}: {shown(found.answer)}, after {found.steps} steps ({found.verdict})")


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
