"""What a task is: a question, an answer, the number of steps between them.

A task owns its quirks (vocabulary, lengths, T(n), how people write its questions); nothing outside its own
file spells its name. It is stated twice, on purpose: `solve` is plain Python on arbitrary-precision integers
and `sample` is vectorised over a batch on any device. A test holds the two equal.

Shapes: B problems, Q question positions, A answer positions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from looped.errors import InputError
from looped.tasks.families import is_known
from looped.vocab import Vocab

LONGEST = 4096  # the longest problem anybody may ask for: a bound on memory, not on the algorithms
LARGEST_SEED = 2**32 - 1  # a CPU's generator looks at 32 bits: beyond, two seeds could be one


@dataclass(frozen=True)
class Problems:
    """B questions and their answers, left-aligned and padded with the end-of-sequence id.

    `3` bits of copy in a batch padded for length 5:  question `1 0 1 # #` (3 of 5 used), answer the same.
    """

    question: Int[Tensor, "B Q"]
    question_length: Int[Tensor, "B"]
    answer: Int[Tensor, "B A"]
    answer_length: Int[Tensor, "B"]
    length: Int[Tensor, "B"]  # n, the problem's length in the paper's sense
    steps: Int[Tensor, "B"]  # T(n), the number of loop steps the problem needs


@dataclass(frozen=True)
class Paper:
    """What the paper fixes for a task: training lengths, block and schedule."""

    max_length: int  # longest training length
    layers: int  # layers of the looped block
    heads: int  # attention heads, width 256
    interval: int  # gradient steps between two increases of the maximum length
    ema: float  # decay of the weight average, 0 for none
    test_length: int  # the length at which the paper shows accuracy ≈ 1
    vocab: int = 6  # token ids of the authors' model, those that the task does not use included
    embedding: bool = False  # tokens are read in through an Embedding there, not a Linear on one-hot tokens


@dataclass(frozen=True)
class Long:
    """The block that recipe `long` trains on a task, for how long, and how many steps a problem gets."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    bands: tuple[int, ...] = (2, 2)  # how far heads see; the rest of them see everything
    loops: str = "q"  # a rule of `looped.loops`: one step for every token of the question
    lr: float = 8e-4
    steps: int = 16_000  # gradient steps
    interval: int = 300  # of them at each length, while it grows
    steady: float = 0.0  # see `TrainConfig`
    ema: float = 0.0


class Task(ABC):
    """One algorithmic problem. Subclasses are stateless; the registry holds one instance of each."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line: what is asked
    vocab: ClassVar[Vocab]
    paper: ClassVar[Paper]
    long: ClassVar[Long] = Long()
    steps_formula: ClassVar[str] = "n"  # T(n) as people read it
    variants: ClassVar[int] = (
        1  # kinds of problem of one length; training draws them evenly, tests use the last
    )
    families: ClassVar[tuple[str, ...]] = (
        "uniform",
    )  # input distributions `sample` knows, see `tasks.families`
    example: ClassVar[str]  # a question as people type it

    # --- sizes ---------------------------------------------------------------------------------------------
    @abstractmethod
    def question_size(self, length: int) -> int:
        """Tokens of the longest question of this length, without the end-of-question token."""

    @abstractmethod
    def answer_size(self, length: int) -> int:
        """Tokens of the longest answer of this length, without the end-of-sequence token."""

    @abstractmethod
    def row_size(self, length: int) -> int:
        """Tokens of a whole row when `length` is the longest in the batch, as the authors' code pads it."""

    def steps(self, length: Int[Tensor, "*B"], variant: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """T(n): the loop steps a problem of this length and variant needs."""
        return length

    # --- sampling ------------------------------------------------------------------------------------------
    @abstractmethod
    def sample(
        self,
        lengths: Int[Tensor, "B"],
        generator: torch.Generator,
        *,
        max_length: int,
        variants: Int[Tensor, "B"] | None = None,
        family: str = "uniform",
    ) -> Problems:
        """Random problems of the given lengths, on the device of `lengths`.

        `max_length` bounds `lengths` and fixes every shape, so that no value has to travel to the host.
        `variants` defaults to the last variant for all. `generator` lives on the same device.
        """

    # --- the oracle ----------------------------------------------------------------------------------------
    @abstractmethod
    def solve(self, question: list[str]) -> list[str]:
        """The answer's token names to a question's token names, in plain Python."""

    # --- people --------------------------------------------------------------------------------------------
    @abstractmethod
    def parse(self, text: str) -> list[str]:
        """A question as people type it, to token names; raises `InputError` with a sentence."""

    @abstractmethod
    def measure(self, question: list[str]) -> tuple[int, int]:
        """The (length n, variant) of a question's token names."""

    def format_question(self, question: list[str]) -> str:
        """Token names of a question, as people type them; `parse` is its inverse."""
        return "".join(question)

    def format_answer(self, answer: list[str]) -> str:
        """Token names of an answer, as people read them."""
        return "".join(answer)

    def meaning(self, answer: str) -> str:
        """What an answer stands for, to be read after "=": `15, least significant first`; empty if it is clear."""
        return ""

    # --- shared --------------------------------------------------------------------------------------------
    def steps_of(self, question: list[str]) -> int:
        """T of one question."""
        length, variant = self.measure(question)
        return int(self.steps(torch.tensor(length), torch.tensor(variant)))

    def check_length(self, length: int) -> int:
        """The length itself, if a problem can have it."""
        if not 1 <= length <= LONGEST:
            raise InputError(f"a {self.name} problem's length must be between 1 and {LONGEST}, not {length}")
        return length

    def check_family(self, family: str) -> None:
        """Raises if `sample` has no such input distribution."""
        if not is_known(family, self.families):
            known = ", ".join(self.families)
            raise InputError(f"{self.name} has no input distribution {family[:40]!r}; it has {known}")

    def problems(self, questions: list[list[str]], device: torch.device | str = "cpu") -> Problems:
        """Given questions (token names) as a padded batch, answered by the oracle."""
        answers = [self.solve(question) for question in questions]
        shapes = [self.measure(question) for question in questions]
        lengths = torch.tensor([n for n, _ in shapes], device=device)
        variants = torch.tensor([v for _, v in shapes], device=device)
        question, question_length = self._pad(questions, device)
        answer, answer_length = self._pad(answers, device)
        steps = self.steps(lengths, variants)
        return Problems(question, question_length, answer, answer_length, lengths, steps)

    def _pad(
        self, rows: list[list[str]], device: torch.device | str
    ) -> tuple[Int[Tensor, "B Q"], Int[Tensor, "B"]]:
        sizes = [len(row) for row in rows]
        padded = torch.full((len(rows), max([*sizes, 1])), self.vocab.eos)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = torch.tensor(self.vocab.encode(row), dtype=torch.long)
        return padded.to(device), torch.tensor(sizes, device=device)
