"""`looped tasks`: what can be asked; `looped sample`: random problems in the paper's notation.

$ looped sample parity --length 4 --count 2 --seed 1
0 0 0 1 > # → * * * * 1 #
1 0 0 0 > # → * * * * 1 #
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch

from looped import registry, tasks
from looped.batches import lay_out
from looped.cli.arguments import Option, Positional
from looped.errors import InputError
from looped.output import note, print_json, print_table
from looped.tasks.base import LARGEST_SEED, Problems, Task
from looped.tasks.suites.chomsky import ChomskyTask


@dataclass(frozen=True)
class TasksArgs:
    """List the tasks: what is asked, training lengths, steps T(n), an example row each."""

    suite: Annotated[str, Option("NAME")] = ""
    """The tasks of another benchmark instead: chomsky."""
    json: bool = False
    """One JSON object per line, with the input distributions and the paper's settings too."""


def run_tasks(args: TasksArgs) -> int:
    """Print the list."""
    listed = list(_listed(args.suite))
    if args.json:
        for fact in listed:
            print_json(fact)
        return 0
    between = "\n" if sys.stdout.isatty() else " → "  # a person sees the answer below the question
    rows = []
    for fact in listed:
        example = f"{fact['input']}{between}{fact['output']}"
        rows.append((fact["task"], fact["summary"], f"1..{fact['max_length']}", fact["steps"], example))
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
    paper = {name: getattr(task.paper, name) for name in ("layers", "heads", "interval", "ema")}
    return {
        "task": task.name, "summary": task.summary, "max_length": task.paper.max_length,
        "test_length": task.paper.test_length, "steps": task.steps_formula, **paper,
        "families": list(task.families), "example": task.example,
        **{name: example[name] for name in ("answer", "input", "output")},
        **({"level": task.level} if isinstance(task, ChomskyTask) else {}),
    }  # fmt: skip


MOST = 100_000  # rows of one call
CHUNK = 256  # rows drawn at once: always the same, so that fewer rows are the first of more rows


@dataclass(frozen=True)
class SampleArgs:
    """Print random problems of a task: each row as it is fed in and as it is answered."""

    task: Annotated[str, Positional("TASK")]
    """The task's name, of those that `looped tasks` lists; or FILE.py:Name for one of your own."""
    length: int = 8
    """The problems' length n: bits, digits of an operand, or symbols."""
    count: int = 5
    """How many problems."""
    seed: int = 0
    """The same seed gives the same problems."""
    family: Annotated[str, Option("DISTRIBUTION")] = "uniform"
    """How inputs are drawn: uniform, zeros, p=0.05, …; `looped tasks --json` lists what each task has."""
    json: bool = False
    """One JSON object per line."""


def run_sample(args: SampleArgs) -> int:
    """Draw and print."""
    task = tasks.get(registry.resolve("task", args.task))
    task.check_length(args.length)
    task.check_family(args.family)
    if not 1 <= args.count <= MOST:
        raise InputError(f"--count must be between 1 and {MOST}, not {args.count}")
    if not 0 <= args.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {args.seed}")
    generator = torch.Generator().manual_seed(args.seed)
    lengths = torch.full((CHUNK,), args.length)
    for left in range(args.count, 0, -CHUNK):
        # every kind of them (a multiplication's first factor) is equally likely
        variants = torch.randint(0, task.variants, (CHUNK,), generator=generator)
        problems = task.sample(
            lengths, generator, max_length=args.length, variants=variants, family=args.family
        )
        for fact in facts(task, problems, task.row_size(args.length))[:left]:
            if args.json:
                print_json(fact)
            else:
                print(f"{fact['input']} → {fact['output']}")
    return 0


def facts(task: Task, problems: Problems, size: int) -> list[dict[str, object]]:
    """What there is to say about each problem, its rows laid out over `size` tokens."""
    batch = lay_out(problems, task.vocab, size)

    def names(rows: torch.Tensor, i: int, count: torch.Tensor) -> list[str]:
        return task.vocab.decode(rows[i, : int(count[i])].tolist())

    return [
        {
            "task": task.name,
            "length": int(problems.length[i]),
            "steps": int(problems.steps[i]),
            "question": task.format_question(names(problems.question, i, problems.question_length)),
            "answer": task.format_answer(names(problems.answer, i, problems.answer_length)),
            "input": task.vocab.row(batch.tokens[i].tolist()),
            "output": task.vocab.row(batch.targets[i].tolist(), batch.loss_mask[i].tolist()),
        }
        for i in range(len(problems.length))
    ]
