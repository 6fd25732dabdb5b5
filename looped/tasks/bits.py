"""What the binary tasks share: adding numbers digit by digit, questions of one bit string or of two numbers.

Knows how bits are drawn, written, checked and added; not what any one task asks about them.

Numbers are rows of digits, least significant first: column i has weight 2^i whatever the row's length. They
are never turned into machine integers: 2,000 digits are as exact as two. The bits come first in every
vocabulary here, so a digit is its own token id.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from looped.errors import InputError
from looped.tasks.base import Problems, Task
from looped.tasks.families import BIT_FAMILIES, UNIFORM, blended, draw_bits
from looped.tasks.padded import filled, joined, mirrored
from looped.vocab import Vocab

LONGEST_DECIMAL = 64  # digits in binary of a number that is also shown in decimal
BITS = ("0", "1")


def added(x: Int[Tensor, "B N"], y: Int[Tensor, "B N"]) -> Int[Tensor, "B N"]:
    """x + y modulo 2^N, digits least significant first, all places at once.

    A place where both digits are 1 gives birth to a carry, one with two 0s swallows it, any other passes on
    what comes from below. So the carry out of a place is decided at the nearest place at or below it that
    does not pass on: it is 1 if that place has two 1s.

        x       1 1 0 1 0        11, least significant first
        y       1 0 1 0 0         5
        passes  . p p p .
        decides 0 0 0 0 4        the nearest place that does not pass
        carry   1 1 1 1 0        out of each place
        sum     0 0 0 0 1        16
    """
    passes = x ^ y
    places = torch.arange(x.shape[1], device=x.device)
    decides = torch.where(passes.bool(), -1, places).cummax(1).values
    carry_out = torch.where(decides >= 0, (x & y).gather(1, decides.clamp(min=0)), 0)
    carry_in = torch.nn.functional.pad(carry_out, (1, 0))[:, :-1]
    return passes ^ carry_in


def check_bits(name: str, question: list[str], example: str) -> None:
    """Raises unless every token is 0 or 1 and there is at least one."""
    if not question:
        raise InputError(f"an empty question: {name} needs at least one bit, as in {example}")
    for token in question:
        if token not in BITS:
            raise InputError(f"{shown(token)} is no bit: {name} questions look like {example}")


def decimal(bits: str) -> str:
    """A binary number, most significant digit first, in decimal; empty if it is none or too long to be read."""
    if not bits or len(bits) > LONGEST_DECIMAL or set(bits) - set(BITS):
        return ""
    return f"{int(bits, 2):,}"


def shown(text: str) -> str:
    """Something a person typed, quoted for an error message and cut to a readable length."""
    return repr(text if len(text) <= 20 else text[:20] + "…")


class BitStringTask(Task):
    """A task whose question is one string of n bits: the subclass says only what the answer is."""

    vocab = Vocab(BITS)
    families = BIT_FAMILIES

    @abstractmethod
    def answers(
        self, bits: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B A"], Int[Tensor, "B"]]:
        """The answers (bits, lengths) to rows of bits that are 0 past their length; any padding will do."""

    @abstractmethod
    def solve_bits(self, bits: str) -> str:
        """The answer to a non-empty string of bits, in plain Python."""

    def question_size(self, length: int) -> int:
        """One token a bit."""
        return length

    def sample(
        self,
        lengths: Int[Tensor, "B"],
        generator: torch.Generator,
        *,
        max_length: int,
        variants: Int[Tensor, "B"] | None = None,
        family: str = UNIFORM,
    ) -> Problems:
        """Random bit strings of the given lengths and their answers."""
        self.check_family(family)
        rows = lengths.shape[0]
        (bits,) = blended(
            family, rows, generator, lambda name: (draw_bits(name, rows, max_length, generator),)
        )
        bits = filled(bits, lengths, 0)
        answer, answer_length = self.answers(bits, lengths)
        return Problems(
            question=filled(bits, lengths, self.vocab.eos),
            question_length=lengths,
            answer=filled(answer, answer_length, self.vocab.eos),
            answer_length=answer_length,
            length=lengths,
            steps=self.steps(lengths, torch.zeros_like(lengths)),
        )

    def solve(self, question: list[str]) -> list[str]:
        """The answer to one question, by arbitrary-precision arithmetic."""
        self.measure(question)
        return list(self.solve_bits("".join(question)))

    def parse(self, text: str) -> list[str]:
        """Bits with or without spaces between them: `1101` or `1 1 0 1`."""
        question = list("".join(text.split()))
        self.measure(question)
        return question

    def measure(self, question: list[str]) -> tuple[int, int]:
        """The number of bits; there is one variant."""
        check_bits(self.name, question, self.example)
        return self.check_length(len(question)), 0


# --- two numbers with a sign between them --------------------------------------------------------------------


class TwoNumbersTask(Task):
    """A task on two binary numbers; the subclass says which pairs it allows and what is asked about them.

    Questions are written most significant digit first; tensors of numbers hold the least significant digit first and
    zeros past a number's own digits. Shapes: X and Y digits of the first and second number, A digits of the answer.
    """

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
