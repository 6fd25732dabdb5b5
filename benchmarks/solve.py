"""`bench solve`: ten thousand questions of mixed length, together, one call each, and one command each.

    together      one call of `answer`: sorted by length, batches of bounded memory, done rows leave
    one by one    the same call for every question alone, in the same process
    a command     `looped solve TASK QUESTION`, started anew for every question, as a shell loop would

The last two are timed on a sample drawn evenly from the lengths and extrapolated to all questions. Answers of the
sample must be the same each way. Without `--model`, the task's shipped model, or its program compiled into weights.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time

import torch

from benchmarks import Measured, Table
from looped import devices, tasks
from looped.errors import InputError
from looped.solve import COMPILED, Solver, answer, is_known, load
from looped.tasks.base import Task

ONE_BY_ONE, COMMANDS = 100, 3  # questions of the sample that are timed each way


def measure(
    *,
    task: str = "copy",
    device: str = "auto",
    samples: int = 10_000,
    model: str | None = None,
    length: int | None = None,
) -> Measured:
    """Answer `samples` questions of lengths 1 to `length` (the training length unless given) each way."""
    if samples < 1:
        raise InputError(f"samples must be at least 1, not {samples}")
    asked, where = tasks.get(task), devices.pick(device)
    source = model or (asked.name if is_known(asked.name) else asked.name + COMPILED)
    solver = load(source, where)
    if solver.task is not asked:
        raise InputError(f"{source} is a model for {solver.task.name}, not for {asked.name}")
    longest = asked.check_length(length or min(solver.trained_max_length, asked.paper.max_length))
    questions = _questions(asked, samples, longest)
    answer(solver, questions[:2])  # to warm up
    start = time.perf_counter()
    found = answer(solver, questions)
    together = time.perf_counter() - start
    some = random.Random(1).sample(range(samples), min(ONE_BY_ONE, samples))
    start = time.perf_counter()
    alone = [answer(solver, [questions[i]])[0] for i in some]
    one_by_one = (time.perf_counter() - start) / len(some) * samples
    command = _command_seconds(solver, [questions[i] for i in some[:COMMANDS]], device) * samples
    return {
        "task": asked.name, "model": solver.name, "device": devices.describe(where), "questions": samples,
        "lengths": [1, longest], "right": sum(each.correct for each in found) / samples,
        "same_answers": all(found[i].answer == each.answer for i, each in zip(some, alone, strict=True)),
        "together_seconds": together,
        "one_by_one_seconds": one_by_one, "one_by_one_timed": len(some),
        "commands_seconds": command, "commands_timed": len(some[:COMMANDS]),
        "speedup": one_by_one / together, "speedup_over_commands": command / together,
    }  # fmt: skip


def _questions(task: Task, samples: int, longest: int) -> list[list[str]]:
    """Random questions, every length equally likely."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (samples,), generator=generator)
    problems = task.sample(lengths, generator, max_length=longest)
    rows = zip(problems.question.tolist(), problems.question_length.tolist(), strict=True)
    return [task.vocab.decode(row[:size]) for row, size in rows]


def _command_seconds(solver: Solver, questions: list[list[str]], device: str) -> float:
    """Mean seconds of a whole command."""
    start = time.perf_counter()
    for question in questions:
        text = solver.task.format_question(question)
        words = ["solve", solver.task.name, text, "--model", solver.name, "--device", device]
        subprocess.run([sys.executable, "-m", "looped", *words], check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - start) / len(questions)


def table(measured: Measured) -> Table:
    """A row for each way."""
    count = measured["questions"]
    rows = [
        (way, round(measured[f"{key}_seconds"], 1), round(1e3 * measured[f"{key}_seconds"] / count, 3), note)
        for way, key, note in (
            ("together", "together", f"all {count} timed"),
            ("one by one", "one_by_one", f"{measured['one_by_one_timed']} timed, extrapolated"),
            ("a command each", "commands", f"{measured['commands_timed']} timed, extrapolated"),
        )
    ]
    return ("way", "seconds", "ms per question", "how"), [list(row) for row in rows]
