"""`looped tasks`: what can be asked, on which lengths the paper trains, how many steps it takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from looped import registry, tasks
from looped.cli.arguments import Option
from looped.cli.output import note, print_json, print_table
from looped.cli.sample import facts
from looped.errors import InputError
from looped.tasks import Task
from looped.tasks.suites.chomsky import ChomskyTask


@dataclass(frozen=True)
class TasksArgs:
    """List the tasks: what is asked, training lengths, steps T(n), an example row each."""

    suite: Annotated[str, Option("NAME")] = ""
    """The tasks of another benchmark instead: chomsky."""
    json: bool = False
    """One JSON object per line, with the input distributions and the paper's settings too."""


def run(args: TasksArgs) -> int:
    """Print the list."""
    listed = list(_listed(args.suite))
    if args.json:
        for fact in listed:
            print_json(fact)
        return 0
    between = "\n" if sys.stdout.isatty() else " → "  # a person sees the answer below the question
    rows = [
        (
            fact["task"],
            fact["summary"],
            f"1..{fact['max_length']}",
            fact["steps"],
            f"{fact['input']}{between}{fact['output']}",
        )
        for fact in listed
    ]
    print_table(("task", "asked for", "trained on", "T(n)", "example row"), rows)
    return 0


def _listed(suite: str) -> Iterator[dict[str, object]]:
    """The facts of every task: ours and those of installed packages, or a suite's; by the names that commands take."""
    if suite and suite not in tasks.SUITES:
        raise InputError(f"no suite is named {suite[:40]!r}; there is {', '.join(tasks.SUITES)}")
    for name in tasks.SUITES[suite] if suite else registry.names("task"):
        try:
            yield describe(tasks.get(name)) | {"task": name}
        except InputError as error:
            note(f"left out: {error}")


def describe(task: Task) -> dict[str, object]:
    """The facts of one task; its example laid out in the shortest row that ends with a `#`."""
    question = task.parse(task.example)
    problems = task.problems([question])
    size = len(question) + int(problems.answer_length[0]) + 1
    example = facts(task, problems, size)[0]
    return {
        "task": task.name,
        "summary": task.summary,
        "max_length": task.paper.max_length,
        "test_length": task.paper.test_length,
        "steps": task.steps_formula,
        "layers": task.paper.layers,
        "heads": task.paper.heads,
        "interval": task.paper.interval,
        "ema": task.paper.ema,
        "families": list(task.families),
        "example": task.example,
        "answer": example["answer"],
        "input": example["input"],
        "output": example["output"],
    } | ({"level": task.level} if isinstance(task, ChomskyTask) else {})
