"""Tasks on two binary numbers with a sign between them: addition and multiplication.

Numbers are rows of digits, least significant first: column i has weight 2^i whatever the row's length. They
are never turned into machine integers: 2,000 digits are as exact as two. The bits come first in every
vocabulary here, so a digit is its own token id.
"""

from __future__ import annotations

from abc import abstractmethod
from random import Random
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from looped.errors import InputError
from looped.tasks import distributions as draws
from looped.tasks.base import LONGEST, Long, Paper, Problems, Task, Twin
from looped.tasks.distributions import (
    BIT_FAMILIES,
    BITS,
    CARRY_FAMILIES,
    UNIFORM,
    Digits,
    Sizes,
    filled,
    mirrored,
)
from looped.tasks.strings import decimal

LONGEST_FIRST = 2  # digits of the first factor of a multiplication at most


class TwoNumbersTask(Task):
    """A task on two binary numbers; the subclass says which pairs it allows and what is asked about them.

    Questions are written most significant digit first; tensors of numbers hold the least significant digit first and
    zeros past a number's own digits.
    """

    sign: ClassVar[str]  # the token between the numbers

    @abstractmethod
    def digits(self, lengths: Sizes, variants: Sizes) -> tuple[Sizes, Sizes, Sizes]:
        """How many digits the first number, the second number and the answer have."""

    @abstractmethod
    def draw(self, family: str, rows: int, max_length: int, generator: Generator) -> tuple[Digits, Digits]:
        """Random digits for both numbers, as many as the longest may have."""

    @abstractmethod
    def answers(self, first: Digits, second: Digits, digits: Sizes) -> Digits:
        """The answers, in the order they are written; `digits` is how many each of them has."""

    @abstractmethod
    def check_numbers(self, first: str, second: str) -> tuple[int, int]:
        """The (length n, variant) of two numbers; raises where the task allows no such pair."""

    @abstractmethod
    def solve_numbers(self, first: str, second: str) -> str:
        """The answer to two numbers written in binary, in plain Python."""

    def sample(
        self,
        lengths: Sizes,
        generator: Generator,
        *,
        max_length: int,
        variants: Sizes | None = None,
        family: str = UNIFORM,
    ) -> Problems:
        """Random pairs of numbers of the given lengths and their answers."""
        self.check_family(family)
        if variants is None:
            variants = torch.full_like(lengths, self.variants - 1)
        first_digits, second_digits, answer_digits = self.digits(lengths, variants)
        rows = len(lengths)
        drawn = draws.blended(family, rows, generator, lambda f: self.draw(f, rows, max_length, generator))
        first, second = filled(drawn[0], first_digits, 0), filled(drawn[1], second_digits, 0)
        sign = torch.full_like(lengths, self.vocab.id(self.sign))
        parts = [
            (mirrored(first, first_digits), first_digits),
            (sign[:, None], torch.ones_like(lengths)),
            (mirrored(second, second_digits), second_digits),
        ]
        question = draws.joined(parts, self.question_size(max_length), self.vocab.eos)
        answer = filled(self.answers(first, second, answer_digits), answer_digits, self.vocab.eos)
        steps = self.steps(lengths, variants)
        return Problems(question, first_digits + 1 + second_digits, answer, answer_digits, lengths, steps)

    def solve(self, question: list[str]) -> list[str]:
        """The answer to one question, by arbitrary-precision arithmetic."""
        first, second = self._numbers(question)
        self.check_numbers(first, second)
        return list(self.solve_numbers(first, second))

    def measure(self, question: list[str]) -> tuple[int, int]:
        """The length and variant of the two numbers."""
        return self.check_numbers(*self._numbers(question))

    def _numbers(self, question: list[str]) -> tuple[str, str]:
        self._check_tokens(question)
        looks, sign = f"{self.name} questions look like {self.example}", self.format_question([self.sign])
        first, *others = "".join(question).split(self.sign)
        if len(others) != 1:
            raise InputError(f"exactly one {sign} stands between two numbers, not {len(others)}: {looks}")
        if not first or not others[0]:
            raise InputError(f"a number is missing beside the {sign}: {looks}")
        return first, others[0]


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
    carry_in = pad(carry_out, (1, 0))[:, :-1]
    return passes ^ carry_in


class Addition(TwoNumbersTask):
    """The sum of two n-digit numbers. All carries move one place each step; the paper trains with T = n.

    question   1 0 + 1 1 > # # # # # #
    answer     * * * * * 1 0 1 # # # #      2 + 3 = 5, most significant digit first, leading zeros kept
    """

    summary = "the sum of two binary numbers of n digits each"
    row_multiple = 3
    sign = "+"
    symbols = (*BITS, "+")
    foreign = "neither a bit nor the sign +: {name} questions look like {example}"
    paper = Paper(max_length=19, layers=3, heads=8, interval=1600, test_length=30)
    long = Long(interval=320, growth_clip=2.0, ema=0.999)  # every seed has to learn to carry
    families = BIT_FAMILIES + CARRY_FAMILIES
    example = "1011+0110"

    def question_size(self, length: int) -> int:
        """Two numbers and the sign."""
        return 2 * length + 1

    def answer_size(self, length: int) -> int:
        """One digit more than the numbers have."""
        return length + 1

    def digits(self, lengths: Sizes, variants: Sizes) -> tuple[Sizes, Sizes, Sizes]:
        """n, n and n + 1."""
        return lengths, lengths, lengths + 1

    def draw(self, family: str, rows: int, max_length: int, generator: Generator) -> tuple[Digits, Digits]:
        """Both numbers by themselves; for the carry distributions, the second from the first."""
        if family not in CARRY_FAMILIES:
            x, y = (draws.draw_bits(family, rows, max_length, generator) for _ in range(2))
            return x, y
        return _adding_chains(rows, max_length, generator, born=family == "carry")

    def answers(self, first: Digits, second: Digits, digits: Sizes) -> Digits:
        """The sum, most significant digit first."""
        return mirrored(added(pad(first, (0, 1)), pad(second, (0, 1))), digits)

    def check_numbers(self, first: str, second: str) -> tuple[int, int]:
        """The digits of each number, which must be equally many."""
        if len(first) != len(second):
            raise InputError(
                f"the numbers of an addition have equally many digits, not {len(first)} and {len(second)}: "
                f"fill the shorter one up with zeros on the left"
            )
        return self.check_length(len(first)), 0

    def parse(self, text: str) -> list[str]:
        """Two numbers; the shorter one is filled up with zeros on the left: `101+11` is `101+011`."""
        first, _, second = "".join(text.split()).partition("+")
        size = max(len(first), len(second))
        padded = first and second and size <= LONGEST
        return super().parse(f"{first:0>{size}}+{second:0>{size}}" if padded else text)

    def twin(self, question: list[str], random: Random) -> Twin:
        """b + a has the sum of a + b."""
        at = question.index(self.sign)
        return [*question[at + 1 :], self.sign, *question[:at]], {}

    def meaning(self, answer: str) -> str:
        """The sum in decimal."""
        return decimal(answer)

    def solve_numbers(self, first: str, second: str) -> str:
        """The sum with one digit more than the numbers have."""
        return f"{int(first, 2) + int(second, 2):0{len(first) + 1}b}"


def _adding_chains(rows: int, size: int, generator: Generator, *, born: bool) -> tuple[Digits, Digits]:
    """Numbers whose every place passes a carry on; with `born`, the lowest place makes one: `0110 + 1010`, …

    In half of the rows one number has all the ones (`1111 + 0001`), in the others they are spread at random.
    """
    lumped, spread = (draw(rows, size, generator) for draw in (draws.repeated, draws.uniform))
    x = torch.where(draws.repeated(rows, size, generator).bool(), lumped, spread)
    lowest = torch.arange(size, device=x.device) == 0
    y = 1 - x
    if born:
        x, y = x.masked_fill(lowest, 1), y.masked_fill(lowest, 1)
    return x, y


class Multiplication(TwoNumbersTask):
    """The product of n1 digits (variant 0 has one, variant 1 has two) and n digits: T = n1·n.

    question   1 1 × 1 1 0 > # # # # #
    answer     * * * * * * 0 1 0 0 1 #      3 × 6 = 18, least significant digit first

    The answer has as many digits as both factors together, zeros at the end kept: five here. (The example printed
    in the paper shows a sixth, against its own text, in a row one token longer than the input's.)
    """

    summary = "1 or 2 binary digits times n digits, least significant first"
    row_multiple = 4
    sign = "×"
    symbols = (*BITS, "×")
    spellings = {"*": "×", "x": "×", "X": "×"}  # noqa: RUF012 - a constant, declared as one in `Task`
    foreign = "neither a bit nor the sign *: {name} questions look like {example}"
    paper = Paper(max_length=11, layers=4, heads=8, interval=500, test_length=16)
    # The product is written the other way round: its last digit has twice as far to go.
    long = Long(loops="2q", lr=5e-4, interval=450)
    steps_formula = "n1·n"
    variants = LONGEST_FIRST
    families = BIT_FAMILIES + CARRY_FAMILIES
    example = "11*110"

    def question_size(self, length: int) -> int:
        """Both factors and the sign."""
        return LONGEST_FIRST + 1 + length

    def answer_size(self, length: int) -> int:
        """The digits of both factors."""
        return LONGEST_FIRST + length

    def steps(self, length: Int[Tensor, "*B"], variant: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The product of both factors' digits."""
        return length * (variant + 1)

    def digits(self, lengths: Sizes, variants: Sizes) -> tuple[Sizes, Sizes, Sizes]:
        """v + 1, n and their sum."""
        return variants + 1, lengths, variants + 1 + lengths

    def draw(self, family: str, rows: int, max_length: int, generator: Generator) -> tuple[Digits, Digits]:
        """Both factors by themselves; for the carry distributions, three times an alternating number."""
        if family not in CARRY_FAMILIES:
            x = draws.draw_bits(family, rows, LONGEST_FIRST, generator)
            return x, draws.draw_bits(family, rows, max_length, generator)
        second = _multiplied_chains(rows, max_length, generator, born=family == "carry")
        return draws.draw_bits("ones", rows, LONGEST_FIRST, generator), second

    def answers(self, first: Digits, second: Digits, digits: Sizes) -> Digits:
        """The second factor as it is plus itself moved up a place, each where the first has that digit."""
        low, high = first[:, :1] * second, first[:, 1:] * second
        return added(pad(low, (0, 2)), pad(high, (1, 1)))

    def check_numbers(self, first: str, second: str) -> tuple[int, int]:
        """The digits of the second factor, and those of the first less one."""
        if len(first) > LONGEST_FIRST:
            raise InputError(
                f"the first factor of a multiplication has 1 or {LONGEST_FIRST} digits, not {len(first)}, "
                f"as in {self.example}"
            )
        return self.check_length(len(second)), len(first) - 1

    def meaning(self, answer: str) -> str:
        """The product in decimal: `11110` is `15, least significant first`."""
        value = decimal(answer[::-1])
        return f"{value}, least significant first" if value else ""

    def solve_numbers(self, first: str, second: str) -> str:
        """The product with as many digits as both factors together, turned round."""
        return f"{int(first, 2) * int(second, 2):0{len(first) + len(second)}b}"[::-1]


def _multiplied_chains(rows: int, size: int, generator: Generator, *, born: bool) -> Digits:
    """Second factors b for which adding b and 2b passes a carry on at every place.

    That is so where each digit differs from the one below. With `born` the two lowest digits are both 1
    instead, and the carry they make travels to the top: …101011. Else no carry is made: …0101 or …1010.
    """
    places = torch.arange(size, device=generator.device)
    if born:
        return ((places == 0) | (places % 2 == 1)).long().repeat(rows, 1)
    return (places + draws.uniform(rows, 1, generator)) % 2
