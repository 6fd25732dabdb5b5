"""`looped solve`: a model answers a question, or one question per line from a file or stdin.

Questions from a file or a pipe are read by a thread into a queue of bounded length while answers are computed. What has
arrived is answered together, at least one line and at most `AT_ONCE`: a person at a keyboard is answered line by line,
a file in large batches. With `--show-steps`, every step of the loop is a line of a table. On a terminal a token is blue
where it is what the oracle says and orange where not, dim while the model doubts it, and underlined where it changed.
"""

from __future__ import annotations

import contextlib
import io
import queue
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO

from looped import devices, files, registry, tasks
from looped.cli.arguments import Option, OwnPart, Positional
from looped.errors import InputError
from looped.output import BAD, GOOD, note, print_json, rich_table, text_table
from looped.registry import NamedParts
from looped.solve import Answer, Solver, answer, load, own
from looped.solve.solver import Step, shown, steps
from looped.tasks.base import Task
from looped.vocab import EOS


@dataclass(frozen=True)
class SolveArgs:
    """Answer a task's questions with a shipped, trained or compiled model."""

    task: Annotated[str, Positional()]
    """The task's name, or FILE.py:Name for one of your own."""
    question: Annotated[str | None, Positional()] = None
    """As people type it: 1101, 1011+0110, 11*110, "1 4 2 2 4 3"; without one, one per line from stdin."""
    file: Annotated[Path | None, Option("FILE", default="")] = None
    """Read questions, one per line, from this file instead of stdin."""
    model: Annotated[str | None, Option("NAME|PATH", default="")] = None
    """A shipped model (addition-fast, or fast alone), `compiled`, a checkpoint's file, a run's folder, or a
    published model (its folder, or hub:OWNER/NAME); by default the shipped model of the task."""
    stop: Annotated[str | None, Option("RULE", default="")] = None
    """When to stop looping: oracle, confidence, threshold, converged, settled, halt, halt-mode, FILE.py:Name; by
    default halt or else oracle."""
    show_steps: bool = False
    """Also show the answer as it stands after every step."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    method: OwnPart = ()
    """A method of your own that the model was trained by."""
    block: OwnPart = ()
    """A block of your own that the model was trained with."""
    json: bool = False
    """One JSON object per question."""


def run(args: SolveArgs) -> int:
    """Answer and print, batch by batch."""
    given = NamedParts(method=args.method, block=args.block)
    task = tasks.get(registry.resolve("task", args.task))
    stop = args.stop and registry.resolve("stopping rule", args.stop)
    solver = load(own(task.name, args.model), devices.pick(args.device))
    given.check()
    solver.check_task(task, args.model)
    answer(solver, [], stop)  # a complaint about the rule comes before any question is read
    if args.question is not None:
        if args.file is not None:
            raise InputError("give a question or --file, not both")
        question = task.parse(args.question)
        asked = task.format_question(question)
        if len("".join(asked.split())) != len("".join(args.question.split())):
            note(f"asked as {asked}, with zeros before the shorter number")
        _print(args, solver, question, answer(solver, [question], stop)[0])
        return 0
    for questions, complaint in _questions(args, task):
        for question, found in zip(questions, answer(solver, questions, stop), strict=True):
            _print(args, solver, question, found)
        sys.stdout.flush()
        if complaint is not None:
            raise complaint
    return 0


def _questions(args: SolveArgs, task: Task) -> Iterator[tuple[list[list[str]], InputError | None]]:
    """Questions as they arrive, and a complaint where the line after them is none."""
    with contextlib.ExitStack() as stack:
        source: TextIO | None = sys.stdin
        if args.file is not None:  # a byte that is no text is refused with its line, as on stdin
            data = stack.enter_context(files.open_regular(args.file, "a file of questions", LARGEST_FILE))
            source = io.TextIOWrapper(data, encoding="utf-8", errors="surrogateescape")
        if source is None:
            raise InputError("there is nothing to read questions from: name one, or a --file")
        for batch in line_batches(source):
            questions: list[list[str]] = []
            complaint = None
            for number, text in batch:
                try:
                    questions.append(task.parse(text))
                except InputError as error:
                    complaint = InputError(f"line {number}: {error}")
                    break
            yield questions, complaint


def _print(args: SolveArgs, solver: Solver, question: list[str], found: Answer) -> None:
    trace = list(steps(solver, question, found.steps)) if args.show_steps else []
    if args.json:
        said = {name: getattr(found, name) for name in ("question", "answer", "steps", "stop", "confidence")}
        verdict = {"expected": found.expected, "correct": found.correct}
        told = {"trace": [step.facts() for step in trace]} if args.show_steps else {}
        print_json({"task": solver.task.name, **said, "model": solver.name, **verdict, **told})
        return
    if trace:
        print_steps(solver.task, question, trace)
    print(f"{found.question}: {found.explained}, after {found.stopped} ({found.verdict}; {solver.name})")


LARGEST_FILE = 1 << 30  # bytes of questions
AT_ONCE = 2048  # lines that are answered together at most
LONGEST_LINE = 1 << 17  # characters: more than the longest question with spaces
Line = tuple[int, str]  # number from 1, text without blanks around it


def line_batches(lines: TextIO, at_once: int = AT_ONCE) -> Iterator[list[Line]]:
    """The lines that are not empty, as they arrive, at most `at_once` together."""
    waiting: queue.Queue[Line | BaseException | None] = queue.Queue(maxsize=2 * at_once)
    threading.Thread(target=_read_lines, args=(lines, waiting), daemon=True).start()
    item: Line | BaseException | None = (0, "")
    while isinstance(item, tuple):
        batch: list[Line] = []
        with contextlib.suppress(queue.Empty):
            while len(batch) < at_once and isinstance(item := waiting.get(block=not batch), tuple):
                batch.append(item)
        if batch:
            yield batch
    if item is not None:
        raise item


def _read_lines(lines: TextIO, waiting: queue.Queue[Line | BaseException | None]) -> None:
    try:
        number = 0
        while line := lines.readline(LONGEST_LINE):
            number += 1
            if number == 1:
                line = line.removeprefix("\ufeff")  # which some editors begin a file with
            if len(line) == LONGEST_LINE and not line.endswith("\n"):
                longest = f"{LONGEST_LINE} characters, more than any question"
                raise InputError(f"line {number} is longer than {longest}")
            if text := line.strip():
                waiting.put((number, text))
        waiting.put(None)
    except UnicodeDecodeError:
        waiting.put(InputError("what was given to read is not a text of questions, one per line"))
    except Exception as error:  # raised again in the main thread
        waiting.put(error)


DOUBT = 0.9  # a token less sure than this is dim


def print_steps(task: Task, question: list[str], steps: Sequence[Step]) -> None:
    """Print them on stdout, in colours on a terminal."""
    says_done = steps[0].halted is not None
    head = ["step", "answer", "row", "least sure", "changed", *["halted"] * says_done]
    lines = [
        [str(step.number), shown(step.answer), " ".join(step.row), f"{min(step.confidence):.4f}",
         str(sum(step.changed)), *([] if step.halted is None else [f"{step.halted:.4f}"])]
        for step in steps
    ]  # fmt: skip
    if not sys.stdout.isatty():
        print(text_table([head, *lines], right={0, 3, 4, 5}))
        return
    from rich import box
    from rich.console import Console
    from rich.style import Style
    from rich.text import Text

    right, drawn = task.solve(question), []
    for step, line in zip(steps, lines, strict=True):
        row = Text()
        for i, (token, sure, moved) in enumerate(zip(step.row, step.confidence, step.changed, strict=True)):
            colour = GOOD if token == (right[i] if i < len(right) else EOS) else BAD
            row.append(token, Style(color=colour, dim=sure < DOUBT, underline=moved and step.number > 1))
            row.append(" ")
        drawn.append([*line[:2], row, *line[3:]])
    Console().print(rich_table(head, drawn, right={0, 3, 4, 5}, box=box.SIMPLE_HEAD))
