"""What addition and multiplication share: a question of two binary numbers with a sign between them.

Knows how such a question is drawn, written and taken apart; the subclass says which numbers it allows and
what is asked about them. Questions are written most significant digit first; tensors of numbers hold the
least significant digit first and zeros past a number's own digits.

Shapes: B problems, X and Y digits of the first and second number, A digits of the answer.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from looped.errors import InputError
from looped.tasks.base import Problems, Task
from looped.tasks.bits import BITS, shown
from looped.tasks.families import UNIFORM, blended
from looped.tasks.padded import filled, joined, mirrored


class TwoNumbersTask(Task):
    """A task on two binary numbers."""

    sign: ClassVar[str]  # the token between the numbers
    spellings: ClassVar[str]  # the characters people type for it, the usual one first

    @abstractmethod
    def digits(
        self, lengths: Int[Tensor, "B"], variants: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"], Int[Tensor, "B"]]:
        """How many digits the first number, the second number and the answer have."""

    @abstractmethod
    def draw(
        self, family: str, rows: int, max_length: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "B X"], Int[Tensor, "B Y"]]:
        """Random digits for both numbers, as many as the longest may have."""

    @abstractmethod
    def answers(
        self, first: Int[Tensor, "B X"], second: Int[Tensor, "B Y"], digits: Int[Tensor, "B"]
    ) -> Int[Tensor, "B A"]:
        """The answers, in the order they are written; `digits` is how many each of them has."""

    @abstractmethod
    def check_numbers(self, first: str, second: str) -> tuple[int, int]:
        """The (length n, variant) of two numbers; raises where the task allows no such pair."""

    @abstractmethod
    def solve_numbers(self, first: str, second: str) -> str:
        """The answer to two numbers written in binary, in plain Python."""

    def sample(
        self,
        lengths: Int[Tensor, "B"],
        generator: torch.Generator,
        *,
        max_length: int,
        variants: Int[Tensor, "B"] | None = None,
        family: str = UNIFORM,
    ) -> Problems:
        """Random pairs of numbers of the given lengths and their answers."""
        self.check_family(family)
        if variants is None:
            variants = torch.full_like(lengths, self.variants - 1)
        first_digits, second_digits, answer_digits = self.digits(lengths, variants)
        rows = lengths.shape[0]
        first, second = blended(
            family, rows, generator, lambda name: self.draw(name, rows, max_length, generator)
        )
        first, second = filled(first, first_digits, 0), filled(second, second_digits, 0)
        sign = torch.full_like(lengths, self.vocab.id(self.sign))
        parts = [
            (mirrored(first, first_digits), first_digits),
            (sign[:, None], torch.ones_like(lengths)),
            (mirrored(second, second_digits), second_digits),
        ]
        return Problems(
            question=joined(parts, self.question_size(max_length), self.vocab.eos),
            question_length=first_digits + 1 + second_digits,
            answer=filled(self.answers(first, second, answer_digits), answer_digits, self.vocab.eos),
            answer_length=answer_digits,
            length=lengths,
            steps=self.steps(lengths, variants),
        )

    def solve(self, question: list[str]) -> list[str]:
        """The answer to one question, by arbitrary-precision arithmetic."""
        first, second = self._numbers(question)
        self.check_numbers(first, second)
        return list(self.solve_numbers(first, second))

    def parse(self, text: str) -> list[str]:
        """Two numbers with the sign between them, spaces anywhere: `1011+0110` or `1 0 1 1 + 0 1 1 0`."""
        characters = "".join(text.split())
        question = [self.sign if c in self.spellings else c for c in characters]
        self.measure(question)
        return question

    def measure(self, question: list[str]) -> tuple[int, int]:
        """The length and variant of the two numbers."""
        return self.check_numbers(*self._numbers(question))

    def format_question(self, question: list[str]) -> str:
        """The question with the sign as people type it."""
        return "".join(self.spellings[0] if token == self.sign else token for token in question)

    def _numbers(self, question: list[str]) -> tuple[str, str]:
        looks = f"{self.name} questions look like {self.example}"
        if not question:
            raise InputError(f"an empty question: {looks}")
        for token in question:
            if token != self.sign and token not in BITS:
                raise InputError(f"{shown(token)} is neither a bit nor the sign {self.spellings[0]}: {looks}")
        if question.count(self.sign) != 1:
            count = question.count(self.sign)
            raise InputError(
                f"exactly one {self.spellings[0]} stands between two numbers, not {count}: {looks}"
            )
        at = question.index(self.sign)
        if at in (0, len(question) - 1):
            raise InputError(f"a number is missing beside the {self.spellings[0]}: {looks}")
        return "".join(question[:at]), "".join(question[at + 1 :])
