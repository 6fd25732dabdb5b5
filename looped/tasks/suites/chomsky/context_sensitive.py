"""The context-sensitive tasks: a tape as long as the question is enough.

Numbers are rows of digits, least significant first, as in `looped.tasks.arithmetic`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from looped.tasks import distributions as draws
from looped.tasks.arithmetic import added
from looped.tasks.distributions import BITS, UNIFORM, Ids, Sizes, filled, mirrored, within
from looped.tasks.suites.chomsky.context_free import ReverseString
from looped.tasks.suites.chomsky.regular import DIGITS, LOCAL, ChomskyTask, OneTokenTask

MISSING, FILLER = "_", "-"
WIDER = replace(LOCAL, width=48, loops="2q", lr=2e-3, batch=16, padding_loss="own")


class DuplicateString(ReverseString):
    """The bits twice."""

    example = "0110"
    block = replace(WIDER, max_length=13, steps=5_000, interval=200)

    def answer_size(self, length: int) -> int:
        """Twice the question."""
        return 2 * length

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """The row after itself."""
        return draws.joined([(question, lengths)] * 2, 2 * question.shape[1], 0), 2 * lengths

    def answer(self, question: list[str]) -> list[str]:
        """Twice."""
        return question * 2


class OddsFirst(ReverseString):
    """Every second bit, then the others."""

    example = "011010"

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """Place k holds bit 2k + 1 while there is one, then 0, 2, 4, …"""
        places, half = torch.arange(question.shape[1], device=question.device), (lengths // 2)[:, None]
        at = torch.where(places < half, 2 * places + 1, 2 * (places - half))
        return taken(question, at, places < lengths[:, None]), lengths

    def answer(self, question: list[str]) -> list[str]:
        """Two slices."""
        return question[1::2] + question[::2]


class MissingDuplicate(OneTokenTask):
    """The bit that is missing (_) from a string written twice; an odd length ends with the filler -."""

    symbols = (*BITS, MISSING, FILLER)
    example = "01100_10"
    block = replace(WIDER, max_length=12, steps=6_000, interval=300)

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """A string twice with one place blanked; `1` where n = 1."""
        places, half = torch.arange(size, device=lengths.device), (lengths // 2)[:, None]
        bits = draws.draw_symbols(family, len(lengths), size, generator)
        twice = bits.gather(1, torch.where(places < half, places, places - half).clamp(min=0))
        blank = draws.drawn_below((2 * half).clamp(min=1), generator)
        twice = torch.where(places == blank, self.vocab.id(MISSING), twice)
        ended = torch.where(places < 2 * half, twice, self.vocab.id(FILLER))
        return torch.where(lengths[:, None] == 1, 1, ended)

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """The bit half a question away from the blank."""
        half = lengths // 2
        blank = (question == self.vocab.id(MISSING)).long().argmax(1)
        other = torch.where(blank < half, blank + half, blank - half)
        return question.gather(1, other[:, None])[:, 0]

    def answer(self, question: list[str]) -> list[str]:
        """Compares both halves."""
        half = len(question) // 2
        pairs = zip(question[:half], question[half : 2 * half], strict=True)
        return [(set(pair) - {MISSING}).pop() for pair in pairs if MISSING in pair] or ["1"]

    def check(self, question: list[str]) -> None:
        """Two halves that agree but for one blank, and the filler after them if the length is odd."""
        half = len(question) // 2
        if half == 0:
            if question != ["1"]:
                raise self.refused("a question of one token is 1")
            return
        if question.count(MISSING) != 1:
            raise self.refused(f"one bit is missing, written {MISSING}")
        if question[2 * half :] != [FILLER] * (len(question) % 2) or FILLER in question[: 2 * half]:
            raise self.refused(f"a filler {FILLER} ends a question of odd length, and no other")
        halves = zip(question[:half], question[half : 2 * half], strict=True)
        if any(a != b and MISSING not in (a, b) for a, b in halves):
            raise self.refused("both halves are the same but for the missing bit")


class BucketSort(ChomskyTask):
    """The symbols 0 to 4, sorted."""

    symbols = DIGITS
    drawn = (0, len(DIGITS))
    families = draws.SYMBOL_FAMILIES
    example = "421302214"

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """Sorted; the padding is larger than every symbol."""
        return question.sort(1).values, lengths

    def answer(self, question: list[str]) -> list[str]:
        """By counting."""
        return [digit for digit in DIGITS for _ in range(question.count(digit))]


# --- numbers ---------------------------------------------------------------------------------------------------


def not_zero(bits: Ids, lengths: Sizes, generator: Generator) -> Ids:
    """Random bits changed so that no row's number is 0 and all others of its length are equally likely.

    The first 1 stands at place k with probability 2^-(k+1) / (1 - 2^-n); what follows it stays.
    """
    u = torch.rand(len(lengths), generator=generator, device=generator.device, dtype=torch.float64)
    first = (-torch.log2(1 - u * (1 - torch.exp2(-lengths.double())))).long()
    first = torch.minimum(first, lengths - 1)[:, None]
    places = torch.arange(bits.shape[1], device=bits.device)
    return torch.where(places == first, 1, torch.where(places < first, 0, bits))


def digits_used(bits: Ids) -> Sizes:
    """Digits of each number without leading zeros, at least one; least significant digit first."""
    places = torch.arange(1, bits.shape[1] + 1, device=bits.device)
    return (places * bits).amax(1).clamp(min=1)


def taken(values: Ids, at: Int[Tensor, "B K"], inside: Bool[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """The values at these places where `inside` holds, 0 elsewhere."""
    return torch.where(inside, values.gather(1, at.clamp(0, values.shape[1] - 1)), 0)


class BinaryAddition(ChomskyTask):
    """The sum of two binary numbers of any lengths, least significant digit first."""

    symbols = (*BITS, "+")
    families: ClassVar[tuple[str, ...]] = draws.BIT_FAMILIES + draws.CARRY_FAMILIES
    ended = True
    sign = "+"
    example = "01001+011"

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Two numbers and the sign between them; one number where n < 3."""
        digits = 1 + draws.drawn_below((lengths - 2).clamp(min=1), generator)
        digits = torch.where(lengths < 3, lengths, digits)
        others = (lengths - 1 - digits).clamp(min=0)
        first, second = self._numbers(family, digits, others, size, generator)
        sign = torch.full_like(lengths, self.vocab.id(self.sign))[:, None]
        parts = [(first, digits), (sign, (others > 0).long()), (second, others)]
        return draws.joined(parts, size, 0)

    def _numbers(
        self, family: str, digits: Sizes, others: Sizes, size: int, generator: Generator
    ) -> tuple[Ids, Ids]:
        if family not in draws.CARRY_FAMILIES:
            first, second = (draws.draw_symbols(family, len(digits), size, generator) for _ in range(2))
            if family != UNIFORM:
                return first, second
            return not_zero(first, digits, generator), not_zero(second, others.clamp(min=1), generator)
        # Every place passes a carry on: digits that both have differ, digits that one has are 1.
        drawn, both = draws.draw_symbols(UNIFORM, len(digits), size, generator), torch.minimum(digits, others)
        first, second = filled(drawn, both, 1), filled(1 - drawn, both, 1)
        if family == "carry":  # and one comes from the lowest
            first[:, 0] = second[:, 0] = 1
        return first, second

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """All places at once."""
        first, second = self.numbers(question, lengths)
        total = added(pad(first, (0, 1)), pad(second, (0, 1)))
        return total, digits_used(total)

    def numbers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Ids]:
        """The digits of both numbers, zeros after them."""
        places = torch.arange(question.shape[1], device=question.device).expand_as(question)
        is_sign, ends = question == self.vocab.id(self.sign), lengths[:, None]
        sign = torch.where(is_sign, places, ends).amin(1, keepdim=True)
        after = places + sign + 1
        return taken(question, places, places < sign), taken(question, after, after < ends)

    def answer(self, question: list[str]) -> list[str]:
        """Python's sum."""
        first, _, second = "".join(question).partition(self.sign)
        return list(f"{int(first[::-1], 2) + int(second[::-1] or '0', 2):b}"[::-1])

    def check(self, question: list[str]) -> None:
        """Two numbers and the sign between them, or fewer than three digits."""
        if len(question) < 3:
            if self.sign in question:
                raise self.refused("a question of one or two tokens is one number")
            return
        if question.count(self.sign) != 1 or self.sign in (question[0], question[-1]):
            raise self.refused(f"exactly one {self.sign} stands between two numbers")

    def meaning(self, answer: str) -> str:
        """How to read it."""
        return "least significant first" if len(answer) > 1 else ""


class BinaryMultiplication(BinaryAddition):
    """The product of two binary numbers of any lengths, least significant digit first."""

    symbols = (*BITS, "×")
    families = draws.BIT_FAMILIES
    sign = "×"
    spellings = {"*": "×"}  # noqa: RUF012 - a constant of the class, declared as one in `Task`
    steps_formula = "2n"
    example = "01001*011"

    def steps(self, length: Int[Tensor, "*B"], variant: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """One step for every digit to multiply by, and one for every place that a carry can travel."""
        return 2 * length

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """`0` where n = 2 and nothing where n = 1, as there is nothing to multiply by."""
        answer = product(*self.numbers(question, lengths))
        return answer, torch.where(lengths == 1, 0, digits_used(answer))

    def answer(self, question: list[str]) -> list[str]:
        """Python's product."""
        if len(question) < 3:
            return ["0"] * (len(question) - 1)
        first, _, second = "".join(question).partition(self.sign)
        return list(f"{int(first[::-1], 2) * int(second[::-1], 2):b}"[::-1])


class SquareRoot(ReverseString):
    """The whole part of the square root of a binary number, both most significant digit first."""

    families = (*draws.BIT_FAMILIES, "squares")
    example = "100101"

    def answer_size(self, length: int) -> int:
        """Half as many digits, rounded up."""
        return (length + 1) // 2

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Numbers that are not 0; `squares` are squares and the numbers right below them."""
        bits = draws.draw_symbols(UNIFORM if family == "squares" else family, len(lengths), size, generator)
        if family == "squares":
            root = not_zero(bits, lengths // 2, generator) * within(lengths // 2, size)
            less = pad(draws.draw_symbols(UNIFORM, len(lengths), 1, generator), (0, size - 1))
            square = 1 - added(1 - product(root, root)[:, :size], less * root.amax(1, keepdim=True))
            return mirrored(square, lengths)
        return not_zero(bits, lengths, generator) if family == UNIFORM else bits

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """The schoolbook's: pair after pair of digits is taken down; a digit is 1 if 4·root + 1 can be taken away."""
        inside = within(lengths, question.shape[1])
        number = pad(mirrored(question, lengths) * inside, (0, 1))
        size = self.answer_size(question.shape[1])
        rest = number.new_zeros(len(lengths), size + 4)
        root = torch.zeros_like(rest)
        for i in reversed(range(size)):
            rest = torch.cat([number[:, 2 * i : 2 * i + 2], rest[:, :-2]], 1)
            trial = torch.cat([torch.ones_like(rest[:, :1]), torch.zeros_like(rest[:, :1]), root[:, :-2]], 1)
            left = 1 - added(1 - rest, trial)  # rest - trial: negative if its highest digit is 1
            digit = 1 - left[:, -1:]
            rest = torch.where(digit == 1, left, rest)
            root = torch.cat([digit, root[:, :-1]], 1)
        return mirrored(root[:, :size], (lengths + 1) // 2), (lengths + 1) // 2

    def answer(self, question: list[str]) -> list[str]:
        """Python's whole square root."""
        return list(f"{math.isqrt(int(''.join(question), 2)):0{(len(question) + 1) // 2}b}")


def product(x: Ids, y: Ids) -> Int[Tensor, "B 2N"]:
    """x · y: how many ones fall on each place, then the binary digits of these counts added up."""
    size = x.shape[1]
    counts = x.new_zeros(len(x), 2 * size)
    for i in range(size):
        counts[:, i : i + size] += x[:, i : i + 1] * y
    total = counts & 1
    for bit in range(1, size.bit_length()):
        total = added(total, pad(counts >> bit & 1, (bit, 0))[:, : 2 * size])
    return total
