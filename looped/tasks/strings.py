"""Tasks whose question is one string of symbols: parity, copy, binary sum and unique set. T(n) = n for all four."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from random import Random
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from looped.tasks import distributions as draws
from looped.tasks.base import Long, Paper, Problems, Task, Twin
from looped.tasks.distributions import (
    BIT_FAMILIES,
    BITS,
    UNIFORM,
    Flags,
    Ids,
    Sizes,
    compacted,
    filled,
    within,
)

LONGEST_DECIMAL = 64  # digits in binary of a number that is also shown in decimal
ALPHABET = 50  # symbols of unique set
FEW = 3  # of them in a row of its distribution of that name


def decimal(bits: str) -> str:
    """A binary number, most significant digit first, in decimal; empty if it is none or too long to be read."""
    if not bits or len(bits) > LONGEST_DECIMAL or set(bits) - set(BITS):
        return ""
    return f"{int(bits, 2):,}"


class StringTask(Task):
    """A task on one string of n symbols: how questions are drawn, and the answers, by tensors and in plain Python."""

    families: ClassVar[tuple[str, ...]] = BIT_FAMILIES
    drawn: ClassVar[tuple[int, int]] = (0, 2)  # what most questions are made of: the first id, and how many

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Random questions of these lengths in rows of `size`, as ids; anything past a question's end."""
        first, symbols = self.drawn
        ids = draws.draw_symbols(family, len(lengths), size, generator, symbols)
        return ids + first if first else ids

    @abstractmethod
    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """The answers to questions padded with `#`, and their lengths; anything past an answer's end."""

    @abstractmethod
    def answer(self, question: list[str]) -> Iterable[str]:
        """The oracle: the answer to one question that has been checked, in plain Python."""

    def sized(self, lengths: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The lengths that questions have which are asked for by these."""
        return lengths

    def sample(
        self,
        lengths: Sizes,
        generator: Generator,
        *,
        max_length: int,
        variants: Sizes | None = None,
        family: str = UNIFORM,
    ) -> Problems:
        """Random questions and their answers."""
        self.check_family(family)
        lengths, room = self.sized(lengths), self.question_size(max_length)
        rows = len(lengths)
        (drawn,) = draws.blended(family, rows, generator, lambda f: (self.draw(f, lengths, room, generator),))
        question = filled(drawn, lengths, self.vocab.eos)
        answer, answer_length = self.answers(question, lengths)
        answer = pad(answer, (0, self.answer_size(max_length) - answer.shape[1]))  # or cut to that size
        answer, steps = filled(answer, answer_length, self.vocab.eos), self.steps(lengths, 0 * lengths)
        return Problems(question, lengths, answer, answer_length, lengths, steps)

    def solve(self, question: list[str]) -> list[str]:
        """The answer to one question, refused if it is none."""
        self.measure(question)
        return list(self.answer(question))


class BitStringTask(StringTask):
    """A task on one string of bits."""

    symbols = BITS
    empty = "{name} needs at least one bit, as in {example}"
    foreign = "no bit: {name} questions look like {example}"


class Parity(BitStringTask):
    """1 if a bit string has an odd number of ones, else 0. The running parity, one bit per step.

    question   0 0 0 1 1 > # #
    answer     * * * * * 0 # #
    """

    summary = "is the number of ones odd? (1 yes, 0 no)"
    paper = Paper(max_length=20, layers=1, heads=64, interval=500, ema=0.9999, test_length=40)
    # nothing has to be heard of from afar
    long = Long(layers=1, width=32, bands=(2, 2, 2, 2), lr=3e-3, steps=4_000, interval=100)
    example = "1101"

    def answer_size(self, length: int) -> int:
        """One bit."""
        return 1

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """The sum of the bits modulo 2."""
        return filled(question, lengths, 0).sum(1, keepdim=True) % 2, torch.ones_like(lengths)

    def answer(self, question: list[str]) -> str:
        """Counts the ones."""
        return str(question.count("1") % 2)

    def twin(self, question: list[str], random: Random) -> Twin:
        """The order of the bits does not change their parity."""
        return random.sample(question, len(question)), {}

    def meaning(self, answer: str) -> str:
        """`odd` or `even`."""
        return {"0": "even", "1": "odd"}.get(answer, "")


class Copy(BitStringTask):
    """The same bits again. Every bit moves one place to the right each step.

    Binary on purpose: where tokens are repeated, none marks its own place.

    question   1 0 1 > # # # #
    answer     * * * 1 0 1 # #
    """

    summary = "the same bits again"
    row_multiple = 2
    paper = Paper(max_length=19, layers=2, heads=8, interval=1000, test_length=35)
    # nothing has to be heard of from afar
    long = Long(layers=1, width=32, bands=(2, 2, 2, 2), lr=3e-3, steps=4_000, interval=105)
    example = "0110"

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """The bits themselves."""
        return question, lengths

    def answer(self, question: list[str]) -> list[str]:
        """The bits themselves."""
        return question

    def twin(self, question: list[str], random: Random) -> Twin:
        """Every bit flipped."""
        flipped = {"0": "1", "1": "0"}
        return [flipped[bit] for bit in question], flipped


class BinarySum(BitStringTask):
    """The count of ones in binary, least significant digit first, no zeros at the end. One bit is counted each step.

    question   1 0 1 1 > # # # #
    answer     * * * * 1 1 # # #      three, and of no ones at all the answer is empty: `#` at once
    """

    summary = "the number of ones in binary, least significant first"
    paper = Paper(max_length=19, layers=2, heads=16, interval=500, ema=0.9999, test_length=24)
    # 2q: the last bit has to arrive, and its carry to travel
    long = Long(width=128, heads=8, bands=(2, 2, 2, 2), loops="2q", lr=6e-4, steps=10_000, interval=200,
                growth_clip=2.0, ema=0.999)  # fmt: skip
    example = "1011"

    def answer_size(self, length: int) -> int:
        """The digits of n itself, the largest count."""
        return length.bit_length()

    def row_size(self, length: int) -> int:
        """The authors' n + 9, which holds eight digits and a `#`; from n = 256 on, as much as that needs."""
        return length + max(9, self.answer_size(length) + 1)

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """The digits of the count; as many as it takes until nothing is left."""
        places = torch.arange(self.answer_size(question.shape[1]), device=question.device)
        shifted = filled(question, lengths, 0).sum(1, keepdim=True) >> places
        return shifted & 1, (shifted > 0).sum(1)

    def answer(self, question: list[str]) -> str:
        """Counts the ones."""
        return f"{question.count('1'):b}"[::-1].rstrip("0")

    def twin(self, question: list[str], random: Random) -> Twin:
        """The order of the bits does not change their count."""
        return random.sample(question, len(question)), {}

    def meaning(self, answer: str) -> str:
        """The count in decimal: `011` is `6 ones, least significant first`."""
        value = decimal(answer[::-1] or "0")
        return f"{value} {'one' if value == '1' else 'ones'}, least significant first" if value else ""


class UniqueSet(StringTask):
    """The different symbols out of an alphabet of 50, in order of first occurrence. One is looked at each step.

    question   1 4 2 2 4 3 > # # # # #
    answer     * * * * * * 1 4 2 3 # #
    """

    summary = "the different symbols (0 to 49), in order of appearance"
    row_multiple = 2
    symbols = tuple(str(i) for i in range(ALPHABET))
    empty = "{name} needs at least one symbol, as in {example}"
    foreign = f"not in the alphabet of {{name}}: the symbols are the numbers 0 to {ALPHABET - 1}, separated by spaces"
    paper = Paper(max_length=19, layers=3, heads=8, interval=1000, test_length=35, vocab=60, embedding=True)
    long = Long(layers=3, width=128, heads=8, bands=(2, 2, 2, 2))  # fifty symbols have to be told apart
    families = (UNIFORM, "repeated", "mixed", "few", "distinct")
    example = "1 4 2 2 4 3"

    def answer_size(self, length: int) -> int:
        """No more than there are symbols."""
        return min(length, ALPHABET)

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Symbols of one of the input distributions."""
        rows = len(lengths)
        if family == "repeated":
            return draws.repeated(rows, size, generator, ALPHABET)
        if family == "few":
            palette = draws.uniform(rows, FEW, generator, ALPHABET)
            return palette.gather(1, draws.uniform(rows, size, generator, FEW))
        if family not in ("mixed", "distinct"):
            return draws.uniform(rows, size, generator, ALPHABET)
        shuffled = torch.rand(rows, ALPHABET, generator=generator, device=generator.device).argsort(1)
        if family == "mixed":  # a shuffled alphabet, of which each row uses its own number of symbols
            used = draws.uniform(rows, 1, generator, ALPHABET) + 1
            which = torch.rand(rows, size, generator=generator, device=generator.device) * used
            return shuffled.gather(1, torch.minimum(which.long(), used - 1))
        # `distinct`: a shuffled alphabet, over and over
        return shuffled.repeat(1, -(-size // ALPHABET))[:, :size]

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """The first occurrences, moved left."""
        firsts = first_occurrences(filled(question, lengths, 0), lengths)
        return compacted(question, firsts, self.answer_size(question.shape[1]), self.vocab.eos), firsts.sum(1)

    def answer(self, question: list[str]) -> Iterable[str]:
        """The different tokens, in order."""
        return dict.fromkeys(question)

    def twin(self, question: list[str], random: Random) -> Twin:
        """The symbols renamed at random."""
        symbols = self.vocab.symbols
        names = dict(zip(symbols, random.sample(symbols, len(symbols)), strict=True))
        return [names[symbol] for symbol in question], names

    def parse(self, text: str) -> list[str]:
        """Symbols separated by spaces or commas: `1 4 2 2 4 3` or `1,4,2`."""
        question = [word for word in re.split(r"[\s,]+", text) if word]
        self.measure(question)
        return question


def first_occurrences(symbols: Ids, lengths: Sizes) -> Flags:
    """Where a symbol stands for the first time in its row: at the smallest of all places that hold it."""
    rows, size = symbols.shape
    places = torch.arange(size, device=symbols.device).repeat(rows, 1)
    first_place = places.new_full((rows, ALPHABET), size).scatter_reduce(1, symbols, places, "amin")
    return (first_place.gather(1, symbols) == places) & within(lengths, size)
