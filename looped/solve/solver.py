"""A model ready to answer one task's questions: one, many of mixed lengths, or step by step; and what it says.

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
import itertools
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
from looped.output import BAD, GOOD, Cell, html_table
from looped.tasks.base import Task
from looped.vocab import EOS
from looped.zoo import Card

MOST_SHOWN = 60  # steps and positions of a table


@dataclass(frozen=True, repr=False)
class Answer:
    """What a model answers to a question, and what is right."""

    question: str
    answer: str
    steps: int  # of the loop until it was read
    stop: str  # the rule that chose them
    confidence: float  # 1: no doubt; the exponential of minus the mean cross entropy with its own answer
    expected: str  # by the task's oracle
    meaning: str = ""  # what the answer stands for: `15, least significant first`
    model: str = ""  # who answered: a shipped model's name, or a checkpoint's file

    @property
    def correct(self) -> bool:
        """Whether the oracle agrees."""
        return self.answer == self.expected

    @property
    def verdict(self) -> str:
        """`right`, or what would have been."""
        return "right" if self.correct else f"the answer is {shown(self.expected)}"

    @property
    def explained(self) -> str:
        """The answer with what it stands for: `11110 = 15, least significant first`."""
        return f"{shown(self.answer)} = {self.meaning}" if self.meaning else shown(self.answer)

    @property
    def stopped(self) -> str:
        """`9 steps by halt`."""
        return f"{'1 step' if self.steps == 1 else f'{self.steps} steps'} by {self.stop}"

    def __repr__(self) -> str:
        facts = f"{self.verdict}; {self.stopped}; confidence {self.confidence:.4f}"
        return f"{self.question} → {self.explained} ({facts}{self.model and f'; {self.model}'})"

    def _repr_html_(self) -> str:
        return Answers((self,))._repr_html_()


class Answers(tuple[Answer, ...]):
    """Answers to many questions, in the order they were asked."""

    @property
    def accuracy(self) -> float:
        """The share that is right."""
        return sum(answer.correct for answer in self) / len(self) if self else 0.0

    def __repr__(self) -> str:
        right = sum(answer.correct for answer in self)
        return "\n".join([*map(repr, self), f"{right} of {len(self)} right"])

    def _repr_html_(self) -> str:
        rows = []
        for answer in self:
            colour = GOOD if answer.correct else BAD
            said = Cell(answer.explained, colour), Cell(answer.verdict, colour)
            rows.append((Cell(answer.question), *said, answer.steps, answer.stop, f"{answer.confidence:.4f}"))
        return html_table(("question", "answer", "", "steps", "stopped by", "confidence"), rows)


@dataclass(frozen=True, repr=False)
class Step:
    """The loop after one step: what would be read now, and how sure the model is of each token."""

    number: int  # from 1
    answer: str  # what stands before the first `#`
    row: tuple[str, ...]  # decoded, from the first position that counts on
    confidence: tuple[float, ...]  # probability of each decoded token
    changed: tuple[bool, ...]  # which of them differ from the step before; all of them at step 1
    surprise: float  # mean cross entropy with the decoded row, what stopping rules look at
    halted: float | None = None  # probability of being done by now, of a model that says so itself

    def __repr__(self) -> str:
        least, moved = min(self.confidence), sum(self.changed)
        return f"step {self.number}: {' '.join(self.row)} (confidence {least:.4f} or more; {moved} changed)"

    def facts(self) -> dict[str, object]:
        """The step as JSON."""
        return {
            "step": self.number,
            "answer": self.answer,
            "row": " ".join(self.row),
            "confidence": [round(p, 6) for p in self.confidence],
            "changed": sum(self.changed),
            "surprise": self.surprise,
            **({} if self.halted is None else {"halted": round(self.halted, 6)}),
        }


class StepSequence(Iterator[Step]):
    """The loop on one question: each step is computed when it is first asked for, and kept.

    `next` goes on from the last step it gave; `for` begins with the first. A notebook shows all of them as a grid in
    which a position is the bluer the surer the model is of its token; a token in bold has just changed.
    """

    def __init__(self, source: Iterator[Step]) -> None:
        self._source, self._kept = source, list[Step]()
        self._given = iter(self)

    def __next__(self) -> Step:
        return next(self._given)

    def __iter__(self) -> Iterator[Step]:
        for number in itertools.count():
            if number == len(self._kept):
                self._kept += itertools.islice(self._source, 1)
            if number == len(self._kept):
                return
            yield self._kept[number]

    def _repr_html_(self) -> str:
        steps = list(self)
        half = MOST_SHOWN // 2
        shown = steps if len(steps) <= MOST_SHOWN else [*steps[:half], *steps[-half:]]
        width = min(MOST_SHOWN, max(len(step.row) for step in steps))
        rows = []
        for step in shown:
            tokens = zip(step.row, step.confidence, step.changed, strict=True)
            cells = [  # pale is what stands for nothing
                Cell(token, "", (0.15 if token == EOS else 1.0) * sure**2, new, f"{sure:.2%}")
                for token, sure, new in itertools.islice(tokens, width)
            ]
            rows.append((step.number, *cells, Cell(step.answer)))
        note = "" if shown is steps else f"{len(steps) - len(shown)} steps of the middle are left out"
        return html_table(("step", *[""] * width, "answer"), rows, note)


def shown(answer: str) -> str:
    """An answer as people read it, which may be empty."""
    return answer or "empty"


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

    def check_task(self, task: Task, named: str | None) -> None:
        """Raise where the model that a person named answers another task's questions."""
        if self.task is not task:
            raise InputError(f"{named} is a model for {self.task.name}, not for {task.name}")

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
    method = solver.method
    if not (method.adaptive or method.universal) and rule.name != "oracle":
        raise InputError(f"{method.name} has a fixed depth: only oracle applies to it, not {rule.name}")
    if method.universal and rule.name != "halt":
        raise InputError(f"{method.name} decides itself when to stop: only halt applies to it")
    groups = list(_batches(solver, questions, rule))
    work = [[questions[i] for i in members] for members in groups]
    done = map_batches(partial(_answer, solver, rule), work, device(solver))
    pairs = zip(itertools.chain(*groups), itertools.chain.from_iterable(done), strict=True)
    return [found for _, found in sorted(pairs, key=lambda pair: pair[0])]


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
            found = decode.run_adaptive(solver.model, solver.weights, batch, rule, limits)
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
    """The loop on a question given as token names, after step 1, 2, …, `most` (or T, or when a model says so)."""
    if solver.method.prediction == "ntp":
        raise InputError(f"{solver.method.name} decodes token by token and has no steps to show")
    batch, limits = _lay_out(solver, [question])
    if most is not None and most < 1:
        raise InputError(f"the number of loop steps must be at least 1, not {most}")
    until_done = most is None and solver.model.config.says_done
    return _steps(solver, batch, int(limits[0]) if until_done else most or int(batch.steps[0]), until_done)


def _steps(solver: Solver, batch: Batch, most: int, until_done: bool) -> Iterator[Step]:
    task = solver.task
    before: list[int] | None = None
    roll = Rollout(solver.model, solver.weights, batch)
    for number in range(1, most + 1):
        with torch.inference_mode(), fitting_threads(solver.model.config, batch.tokens.numel()):
            h = roll.advance()
            row, surprise = roll.reading.answer[0, 0].tolist(), float(roll.reading.surprise)
            sure = (-roll.reading.each[0, 0]).exp().tolist()
            done = halted = is_done(solver.model.config, h)
            if halted is None and roll.halted is not None:
                halted, done = roll.halted, roll.halted >= stopping.DEFAULT_HALT
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
    size = task.row_size(max(lengths))
    batch = batches.lay_out(problems, task.vocab, size, method.prediction, method.pause)
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
