"""A question in, an answer out: loads a model from a file and runs it until a stopping rule says enough.

A file is one seed of a training run (`runs/…/seed-0.safetensors`) or a program compiled into weights. Knows
files, models and tasks; nothing of how a model came to be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from looped import batches, methods, runs, tasks
from looped.batches import Batch
from looped.compiler import compiled
from looped.errors import InputError
from looped.evaluation import decode, stopping
from looped.evaluation.reading import read, window_start
from looped.methods import Method
from looped.model.loop import LoopedTransformer, Prepared
from looped.tasks.base import Task

SPARE_STEPS = 4  # more than twice T(n), for a rule that has not stopped by then


@dataclass(frozen=True)
class Solver:
    """A model ready to answer one task's questions."""

    name: str  # of the file
    task: Task
    method: Method
    model: LoopedTransformer
    weights: Prepared
    trained_max_length: int

    @property
    def rule(self) -> str:
        """The stopping rule it answers with unless told otherwise."""
        return "oracle" if self.model.config.halt is None else "halt"


@dataclass(frozen=True)
class Answer:
    """What a model answers to a question, and what is right."""

    question: str
    answer: str
    steps: int
    stop: str
    confidence: float  # 1: no doubt; the exponential of minus the mean cross entropy with its own answer
    expected: str

    @property
    def correct(self) -> bool:
        """Whether it is the right answer."""
        return self.answer == self.expected


def load(path: Path, device: torch.device | str = "cpu") -> Solver:
    """The model in a file; a run's folder stands for its first seed."""
    if path.is_dir():
        path = runs.seed_files(path)[0]
    if _format(path) == compiled.KIND:
        made = compiled.load(path)
        method = methods.get("fop-loop-adaptive-wo")
        task = tasks.get(made.card.program)
        return Solver(str(path), task, method, made.model, made.prepare(device), made.card.max_length)
    trained = runs.load_seed(path)
    config = trained.config
    model = LoopedTransformer(config.model)
    with torch.no_grad():
        weights = model.prepare(trained.row[None].to(device))
    task, method = tasks.get(config.task), methods.get(config.method)
    return Solver(str(path), task, method, model, weights, config.max_length)


def answer(solver: Solver, questions: Sequence[list[str]], stop: str | None = None) -> list[Answer]:
    """The answers to questions given as token names, each as if it were alone."""
    by_length: dict[int, list[int]] = {}
    for i, question in enumerate(questions):
        by_length.setdefault(solver.task.measure(question)[0], []).append(i)
    answers: dict[int, Answer] = {}
    for members in by_length.values():
        found = _answer(solver, [questions[i] for i in members], stop or solver.rule)
        answers |= dict(zip(members, found, strict=True))
    return [answers[i] for i in range(len(questions))]


def after_each_step(solver: Solver, question: list[str], steps: int) -> list[str]:
    """The answer that would be read after step 1, 2, …, `steps`."""
    if solver.method.prediction == "ntp":
        raise InputError(f"{solver.method.name} decodes token by token and has no steps to show")
    batch = _batch(solver, [question])
    start = window_start(batch.loss_mask)
    counted = batch.loss_mask[None, :, start:]
    with torch.inference_mode():
        states = solver.model.unroll(solver.weights, batch.tokens[None], steps)
        readings = [read(solver.model, solver.weights, h[:, :, start:], counted) for h in states]
    return [_text(solver.task, reading.answer[0, 0].tolist()) for reading in readings]


def _answer(solver: Solver, questions: list[list[str]], stop: str) -> list[Answer]:
    """Answers to questions of one length."""
    task, batch = solver.task, _batch(solver, questions)
    if solver.method.prediction == "ntp":
        loops = int(batch.steps[0])
        found = decode.generate(solver.model, solver.weights, batch, loops, task.vocab.eos)
    else:
        rule = stopping.get(stop)
        most = 2 * int(batch.steps.max()) + SPARE_STEPS
        found = decode.run_adaptive(solver.model, solver.weights, batch, rule, most)
    return [
        Answer(
            task.format_question(question),
            _text(task, found.tokens[0, i][batch.loss_mask[i]].tolist()),
            int(found.steps[0, i]),
            stop,
            math.exp(-float(found.surprise[0, i])),
            task.format_answer(task.solve(question)),
        )
        for i, question in enumerate(questions)
    ]


def _batch(solver: Solver, questions: list[list[str]]) -> Batch:
    task, method = solver.task, solver.method
    problems = task.problems(questions)
    size = task.row_size(int(problems.length.max()))
    batch = batches.lay_out(problems, task.vocab, size, method.prediction, method.pause)
    steps = method.steps(task, problems.steps, solver.trained_max_length)
    return replace(batch, steps=steps).to(solver.weights.embed.device)


def _text(task: Task, ids: list[int]) -> str:
    """The answer in a row of ids: what stands before the first `#`."""
    end = ids.index(task.vocab.eos) if task.vocab.eos in ids else len(ids)
    return task.format_answer(task.vocab.decode(ids[:end]))


def _format(path: Path) -> str | None:
    """What kind of checkpoint a file says it is."""
    if not path.is_file():
        raise InputError(f"there is no model {path}: give a checkpoint's file or a run's folder")
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get("format")
    except (SafetensorError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is truncated, damaged or no safetensors file ({error})") from None
