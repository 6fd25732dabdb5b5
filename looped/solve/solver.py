"""A model ready to answer one task's questions: one, many of mixed lengths, or step by step.

Many questions are sorted by length and answered a batch at a time, so that memory stays bounded whatever is asked; a
row that is done leaves its batch. Every question gets the answer it would get alone: rows of unequal length only share
a batch under rules that look at nothing but a row's own state and step, each waits no longer than its own limit, and a
rule that stops all rows together sees one at a time.

A loop of a thousand steps on a narrow model is thousands of products that take microseconds each. Sharing one product
between threads costs a wait for the slowest thread every time, which on a busy machine is a time slice: measured with
three other processes on two cores, a compiled parity of 1,000 bits took 32 s with two threads and 7 s with one. So
small products run on one thread, and whole batches run side by side on threads that never wait for each other.

Shapes: N questions of a batch, L positions, W positions from the first that counts, V vocabulary.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped import batches, registry
from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import decode, stopping
from looped.evaluation.measure import Subject
from looped.evaluation.rollout import DIVERGED, Rollout, is_done, rows_at_once
from looped.evaluation.stopping import Rule
from looped.methods import PLAIN, Loops, Method, largest_steps
from looped.model.config import ModelConfig
from looped.model.hub import HubFacts
from looped.model.looped import LoopedTransformer, load_checkpoint_weights
from looped.model.seeds import ModuleWeights, SeedModel, SeedWeights
from looped.model.weights import Layout
from looped.solve.answers import Answer, Answers, Step, StepSequence
from looped.tasks.base import Task
from looped.zoo import Card

SPARE_STEPS = 4  # more than twice T(n), for a rule that has not stopped by then
COMPILED = "compiled"  # the recipe of a program in weights
SLACK = 1.15  # how many times the shortest row of a batch the longest may be
ALONE_OR_NOT = ("oracle", "halt")  # rules that stop a row at the same step whatever it shares a batch with
TOGETHER = ("confidence-batch",)  # rules that choose one step for a whole batch


@dataclass(frozen=True, repr=False)
class Solver:
    """A model ready to answer one task's questions."""

    name: str  # of the shipped model or the file
    task: Task
    method: Method
    model: SeedModel
    weights: SeedWeights
    trained_max_length: int
    seed: int = 0
    recipe: str = ""  # `compiled` for a program in weights
    loops: Loops = PLAIN  # how many steps its training gave a problem
    card: Card | None = None  # of a shipped model
    row: Float[Tensor, "P"] | None = None  # the weights as the checkpoint has them, of the stock block
    facts: HubFacts = field(default_factory=HubFacts)  # of its training, for `net.save_pretrained`

    @property
    def rule(self) -> str:
        """The stopping rule it answers with unless told otherwise."""
        return "halt" if self.model.config.says_done else "oracle"

    @cached_property
    def net(self) -> LoopedTransformer:
        """The model as an ordinary `nn.Module`, to look into or to train further; answers keep the loaded weights."""
        if isinstance(self.weights, ModuleWeights):
            self.weights.nets[0].facts = self.facts
            return self.weights.nets[0]
        if self.row is None:
            raise InputError(f"the weights of {self.name} are not at hand as a module")
        net = LoopedTransformer(self.model.config)
        load_checkpoint_weights(net, Layout(self.model.config).to_dict(self.row))
        net.facts = self.facts
        return net

    @property
    def subject(self) -> Subject:
        """The same model, to be measured."""
        about = self.trained_max_length, self.recipe, self.loops
        return Subject(self.task, self.method, self.model, self.weights, (self.seed,), *about)

    @overload
    def solve(self, question: str, stop: str | Rule | None = None) -> Answer: ...  # type: ignore[overload-overlap]

    @overload
    def solve(self, question: Iterable[str], stop: str | Rule | None = None) -> Answers: ...

    def solve(self, question: str | Iterable[str], stop: str | Rule | None = None) -> Answer | Answers:
        """The answer to a question as people type it, or the answers to many, in their order.

        A stopping rule is given by its name, as `FILE.py:Name`, or as an object.
        """
        stop = registry.resolve("stopping rule", stop) if isinstance(stop, str) else stop
        if isinstance(question, str):
            return answer(self, [self.task.parse(question)], stop)[0]
        return Answers(answer(self, [self.task.parse(each) for each in question], stop))

    def steps(self, question: str, most: int | None = None) -> StepSequence:
        """The loop, step by step, each computed when it is asked for.

        Without `most`, T(n) steps, or as many as a model takes that says itself when it is done.
        """
        return StepSequence(steps(self, self.task.parse(question), most))

    @property
    def parameters(self) -> int:
        """Trainable numbers of the model."""
        if isinstance(self.weights, ModuleWeights):
            return sum(tensor.numel() for tensor in self.weights.tensors())
        return Layout(self.model.config).parameters

    def __repr__(self) -> str:
        config = self.model.config
        size = f"{self.parameters:,} parameters, {config.layers} layers, width {config.width}"
        how = f"by {self.method.name}, lengths to {self.trained_max_length}"
        if self.recipe == COMPILED:
            how = f"compiled from its program, rows of up to {self.trained_max_length} tokens"
        return f"{self.name}: {self.task.name} {how} ({size})"


def answer(solver: Solver, questions: Sequence[list[str]], stop: str | Rule | None = None) -> list[Answer]:
    """The answers to questions given as token names, each as if it were alone."""
    rule = stopping.get(stop or solver.rule)
    if not (solver.method.adaptive or solver.method.universal) and rule.name != "oracle":
        raise InputError(
            f"{solver.method.name} has a fixed depth: only oracle applies to it, not {rule.name}"
        )
    if solver.method.universal and rule.name != "halt":
        raise InputError(f"{solver.method.name} decides itself when to stop: only halt applies to it")
    groups = list(_batches(solver, questions, rule))
    work = [[questions[i] for i in members] for members in groups]
    answers: dict[int, Answer] = {}
    batches_done = map_batches(partial(_answer, solver, rule), work, device(solver))
    for members, found in zip(groups, batches_done, strict=True):
        answers |= dict(zip(members, found, strict=True))
    return [answers[i] for i in range(len(questions))]


def device(solver: Solver) -> torch.device:
    """Where a solver's weights are."""
    return solver.weights.embed.device


@torch.inference_mode()
def _answer(solver: Solver, rule: stopping.Rule, questions: list[list[str]]) -> list[Answer]:
    """Answers to the questions of a batch."""
    task, (batch, limits) = solver.task, _lay_out(solver, questions)
    with fitting_threads(solver.model.config, batch.tokens.numel()):
        if solver.method.prediction == "ntp":
            loops = int(batch.steps[0])
            if solver.method.universal:  # it may loop as often as in training, however short the question
                loops = max(loops, largest_steps(task, solver.trained_max_length))
            found = decode.generate(solver.model, solver.weights, batch, loops, task.vocab.eos)
        else:
            most = int(limits.max())
            found = decode.run_adaptive(solver.model, solver.weights, batch, rule, most, limits=limits)
    if not bool(found.surprise.isfinite().all()):
        raise InputError(f"{solver.name} {DIVERGED}")
    starts = batch.loss_mask.int().argmax(1).tolist()
    columns = found.tokens[0].tolist(), starts, found.steps[0].tolist(), found.surprise[0].tolist()
    answers = []
    for question, ids, start, steps, surprise in zip(questions, *columns, strict=True):
        asked, right = task.format_question(question), task.format_answer(task.solve(question))
        said, sure = text_of(task, ids[start:]), math.exp(-surprise)
        answers.append(Answer(asked, said, steps, rule.name, sure, right, task.meaning(said), solver.name))
    return answers


def steps(solver: Solver, question: list[str], most: int | None = None) -> Iterator[Step]:
    """The loop on a question given as token names, after step 1, 2, …, `most` (or T)."""
    if solver.method.prediction == "ntp":
        raise InputError(f"{solver.method.name} decodes token by token and has no steps to show")
    batch, limits = _lay_out(solver, [question])
    if most is not None and most < 1:
        raise InputError(f"the number of loop steps must be at least 1, not {most}")
    needed = int(batch.steps[0])
    if most is None and solver.model.config.says_done:
        return _steps(solver, batch, int(limits[0]), until_done=True)
    return _steps(solver, batch, most or needed)


def _steps(solver: Solver, batch: Batch, most: int, until_done: bool = False) -> Iterator[Step]:
    task, before = solver.task, None
    roll = Rollout(solver.model, solver.weights, batch)
    for number in range(1, most + 1):
        with torch.inference_mode(), fitting_threads(solver.model.config, batch.tokens.numel()):
            h = roll.advance()
            row, surprise = roll.reading.answer[0, 0].tolist(), float(roll.reading.surprise)
            sure = (-roll.reading.each[0, 0]).exp().tolist()
            done = is_done(solver.model.config, h)
            halted = roll.halted if done is None else done
            if done is None and roll.halted is not None:
                done = roll.halted >= stopping.DEFAULT_HALT
        if not math.isfinite(surprise):
            raise InputError(f"{solver.name} {DIVERGED}")
        changed = [before is None or a != b for a, b in zip(row, before or row, strict=True)]
        before = row
        names = tuple(task.vocab.decode(row))
        says = None if halted is None else float(halted)
        yield Step(number, text_of(task, row), names, tuple(sure), tuple(changed), surprise, says)
        if until_done and done is not None and bool(done):
            return


def _batches(solver: Solver, questions: Sequence[list[str]], rule: stopping.Rule) -> Iterator[list[int]]:
    """The questions' numbers, those that are answered together in one list."""
    task, config = solver.task, solver.model.config
    keys = [(task.measure(question)[0], task.steps_of(question)) for question in questions]
    order = sorted(range(len(questions)), key=keys.__getitem__)
    alone = rule.name in ALONE_OR_NOT and config.positions != "randomised"
    mixed = alone and solver.method.prediction == "fop"
    batch: list[int] = []
    for i in order:
        if batch:
            shortest, size = task.row_size(keys[batch[0]][0]), task.row_size(keys[i][0])
            room = rows_at_once(config, 1, size, device(solver))
            alike = keys[i] == keys[batch[0]] and rule.name not in TOGETHER
            fits = len(batch) < room and size <= SLACK * shortest if mixed else alike
            if not fits:
                yield batch
                batch = []
        batch.append(i)
    if batch:
        yield batch


def _lay_out(solver: Solver, questions: list[list[str]]) -> tuple[Batch, Int[Tensor, "N"]]:
    """Rows as long as the longest needs; in each only those positions count that it would have alone.

    With them how many steps a rule may wait for each: twice T, or twice the most that training gave, and a few more.
    """
    task, method = solver.task, solver.method
    problems = task.problems(questions)
    lengths = problems.length.tolist()
    batch = batches.lay_out(
        problems, task.vocab, task.row_size(max(lengths)), method.prediction, method.pause
    )
    own = torch.tensor([task.row_size(n) + method.pause for n in lengths])
    counted = batch.loss_mask & (torch.arange(batch.tokens.shape[1]) < own[:, None])
    steps = last = solver.subject.steps(problems.steps, problems.question_length)
    if not solver.loops.plain:
        last = solver.loops.last(problems.steps, problems.question_length)
    limits = (2 * last + SPARE_STEPS).to(device(solver))
    return replace(batch, loss_mask=counted, steps=steps).to(device(solver)), limits


def text_of(task: Task, ids: list[int]) -> str:
    """The answer in a row of ids: what stands before the first `#`."""
    end = ids.index(task.vocab.eos) if task.vocab.eos in ids else len(ids)
    return task.format_answer(task.vocab.decode(ids[:end]))


T = TypeVar("T")
R = TypeVar("R")
# Multiplications of a product of a third of a millisecond: waking others gains little, waiting for them may cost.
SMALL = 1 << 24


@contextlib.contextmanager
def fitting_threads(config: ModelConfig, tokens: int) -> Iterator[None]:
    """One thread while products are small, as many as there were for others."""
    before = torch.get_num_threads()
    if before == 1 or tokens * config.width * 3 * config.width > SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def map_batches(action: Callable[[T], R], given: Sequence[T], device: torch.device) -> Iterator[R]:
    """What an action gives for each batch, in order; on a CPU as many at a time as there are threads."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(given) == 1:
        yield from map(action, given)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(action, given)
    finally:
        torch.set_num_threads(threads)
