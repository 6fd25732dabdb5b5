"""The newcomer's minute: train on short inputs, hold on long ones, next to a model that does not.

Two models of equal size learn to copy bit strings of up to ten symbols: one applies its layers as often as the string
is long, the other once, as an ordinary Transformer does. Both master these lengths. Then both copy longer strings, up
to twenty times as long. Knows nothing of terminals: the command prints and draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from looped import methods, runs, tasks
from looped.evaluation.measure import Row, Subject, measure
from looped.fast.stacked import StackedTransformer
from looped.rasp import lint, programs
from looped.rasp.trace import trace
from looped.training import recipes
from looped.training.config import TrainConfig
from looped.training.progress import Listener
from looped.training.trainer import Cadence, Summary, train

TASK, SEED = "copy", 0
LENGTHS = (5, 10, 11, 12, 15, 20, 50, 100)  # of the exam
FARTHEST = 200  # where a problem costs four times the last of these, and a quarter of them is asked
LAYERS = 2  # with a single one, a model of fixed depth does not learn even the training lengths
MORE = (
    3  # times as many gradient steps for the model of fixed depth: it needs them, and a step of it is cheap
)
SHORTER: dict[str, Any] = {
    "steps": 500,
    "interval": 30,
    "noise": 0.2,
}  # than quick: copy is the easiest of the tasks
ILLUSTRATED = (("copy", "1 0"), ("parity", "1 1"), ("addition", "1 0 + 1 1"))  # the paper's figure, n = 2


@dataclass(frozen=True)
class Contestant:
    """One of the two models."""

    name: str  # of its folder
    what: str  # in words
    config: TrainConfig


def contestants(steps: int = 0) -> tuple[Contestant, Contestant]:
    """The looped model and the one of fixed depth; `steps` gradient steps of the looped one, or 500.

    The model of fixed depth has the same layers, and what an ordinary Transformer has: heads that see everything
    before them, and rotary positions. Without both it does not learn even the training lengths.
    """
    looped = recipes.make(TASK, "fop-loop-adaptive", "quick", (SEED,))
    looped = replace(looped, model=replace(looped.model, layers=LAYERS), **SHORTER)
    looped = replace(looped, steps=steps or looped.steps)
    ordinary = replace(looped.model, bands=(), positions="rotary")
    fixed = replace(looped, method="fop", model=ordinary, steps=MORE * looped.steps, noise=0.0)
    return (
        Contestant("looped", "looped, n passes", looped),
        Contestant("fixed", "ordinary, one pass", fixed),
    )


def race(
    folder: Path,
    pair: Sequence[Contestant],
    listener: Callable[[], Listener],
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
) -> list[Summary]:
    """Trains one after the other, in so many seconds altogether; the same call goes on where it was stopped."""
    summaries: list[Summary] = []
    end = time.monotonic() + seconds
    for i, each in enumerate(pair):
        share = (end - time.monotonic()) / (len(pair) - i)
        once = Cadence(evaluate_steps=each.config.steps)  # at the end
        summaries.append(
            train(
                each.config, folder / each.name, "cpu",
                listeners=[listener()], cadence=once, stop=stop, time_limit_s=max(share, 1.0),
            )
        )  # fmt: skip
    return summaries


def exam(
    folder: Path,
    pair: Sequence[Contestant],
    samples: int,
    on_progress: Callable[[list[Row]], None] | None = None,
) -> list[Row]:
    """How often each is exactly right at the lengths of the exam."""
    rows: list[Row] = []
    for each in pair:
        trained = runs.load_seed(folder / each.name / f"seed-{SEED}.safetensors")
        model = StackedTransformer(each.config.model)
        with torch.no_grad():
            weights = model.prepare(trained.row[None])
        subject = Subject(
            tasks.get(TASK),
            methods.get(each.config.method),
            model,
            weights,
            (SEED,),
            each.config.max_length,
            each.config.recipe,
        )
        for lengths, count in ((LENGTHS, samples), ((FARTHEST,), -(-samples // 4))):
            rows += measure(subject, lengths, count, seed=1, on_progress=on_progress)
    return rows


def check_programs(longest: int, on_progress: Callable[[str], None] | None = None) -> dict[str, int]:
    """Every task's n-RASP-L program, checked for legality and held to the task's answer up to a length.

    Returns how many problems each answered; raises if a program is illegal or wrong.
    """
    solved: dict[str, int] = {}
    for name, task in tasks.TASKS.items():
        program = programs.get(name)
        faults = lint.check_program(program)
        assert not faults, f"{name}: {faults[0]}"
        generator = torch.Generator().manual_seed(SEED)
        lengths = [n for n in (1, 2, 3, 5, 10, 20, 50, 100, 200) if n <= longest]
        for n in lengths:
            problem = task.sample(torch.tensor([n]), generator, max_length=n)
            question = task.vocab.decode(problem.question[0, : int(problem.question_length)].tolist())
            answer = trace(program, program.row(question)).answer
            assert answer == task.solve(question), f"{name} is wrong on {task.format_question(question)}"
        solved[name] = len(lengths)
        if on_progress is not None:
            on_progress(name)
    return solved


def illustrations() -> list[tuple[str, list[str], dict[str, list[list[str]]]]]:
    """The paper's three programs at work on two symbols, as `figures.programs` draws them."""
    drawn = []
    for name, question in ILLUSTRATED:
        program = programs.get(name)
        run = trace(program, program.row(question.split()))
        drawn.append((name, program.vocab.decode(run.row.tolist()), {v: run.grid(v) for v in run.variables}))
    return drawn
