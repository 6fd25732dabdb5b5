"""Tasks whose question is one string of symbols: parity, copy, binary sum and unique set. T(n) = n for all four."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from random import Random

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from looped.errors import InputError
from looped.tasks import families as draws
from looped.tasks.base import Long, Paper, Problems, Task, Twin, shown
from looped.tasks.families import BIT_FAMILIES, BITS, UNIFORM, blended, draw_bits
from looped.tasks.padded import compacted, filled, within
from looped.vocab import Vocab

Ids = Int[Tensor, "B N"]
Sizes = Int[Tensor, "B"]

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

    @abstractmethod
    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Random questions of these lengths in rows of `size`, as ids; anything past a question's end."""

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
        (drawn,) = blended(
            family, len(lengths), generator, lambda name: (self.draw(name, lengths, room, generator),)
        )
        question = filled(drawn, lengths, self.vocab.eos)
        answer, answer_length = self.answers(question, lengths)
        size = self.answer_size(max_length)
        answer = pad(answer, (0, size - answer.shape[1])) if answer.shape[1] < size else answer[:, :size]
        return Problems(
            question=question,
            question_length=lengths,
            answer=filled(answer, answer_length, self.vocab.eos),
            answer_length=answer_length,
            length=lengths,
            steps=self.steps(lengths, torch.zeros_like(lengths)),
        )

    def solve(self, question: list[str]) -> list[str]:
        """The answer to one question, refused if it is none."""
        self.measure(question)
        return list(self.answer(question))


class BitStringTask(StringTask):
    """A task on one string of bits."""

    vocab = Vocab(BITS)
    families = BIT_FAMILIES

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Bits of one of the input distributions."""
        return draw_bits(family, len(lengths), size, generator)

    def measure(self, question: list[str]) -> tuple[int, int]:
        """The number of bits; there is one variant."""
        if not question:
            raise InputError(f"an empty question: {self.name} needs at least one bit, as in {self.example}")
        for token in question:
            if token not in BITS:
                raise InputError(f"{shown(token)} is no bit: {self.name} questions look like {self.example}")
        return self.check_length(len(question)), 0


class Parity(BitStringTask):
    """1 if a bit string has an odd number of ones, else 0. The running parity, one bit per step.

    question   0 0 0 1 1 > # #
    answer     * * * * * 0 # #
    """

    name = "parity"
    summary = "is the number of ones odd? (1 yes, 0 no)"
    paper = Paper(max_length=20, layers=1, heads=64, interval=500, ema=0.9999, test_length=40)
    # nothing has to be heard of from afar
    long = Long(layers=1, width=32, bands=(2, 2, 2, 2), lr=3e-3, steps=4_000, interval=100)
    example = "1101"

    def answer_size(self, length: int) -> int:
        """One bit."""
        return 1

    def row_size(self, length: int) -> int:
        """Question, answer and one `#`."""
        return length + 2

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

    name = "copy"
    summary = "the same bits again"
    paper = Paper(max_length=19, layers=2, heads=8, interval=1000, ema=0.0, test_length=35)
    # nothing has to be heard of from afar
    long = Long(layers=1, width=32, bands=(2, 2, 2, 2), lr=3e-3, steps=4_000, interval=105)
    example = "0110"

    def row_size(self, length: int) -> int:
        """Question and answer with room to spare, as the authors pad it."""
        return 2 * (length + 2)

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

    name = "binary_sum"
    summary = "the number of ones in binary, least significant first"
    paper = Paper(max_length=19, layers=2, heads=16, interval=500, ema=0.9999, test_length=24)
    # 2q: the last bit has to arrive, and its carry to travel
    long = Long(width=128, heads=8, bands=(2, 2, 2, 2), loops="2q", lr=6e-4, steps=10_000, interval=200,
                steady=2.0, ema=0.999)  # fmt: skip
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

    name = "unique_set"
    summary = "the different symbols (0 to 49), in order of appearance"
    vocab = Vocab(tuple(str(i) for i in range(ALPHABET)))
    paper = Paper(
        max_length=19, layers=3, heads=8, interval=1000, ema=0.0, test_length=35, vocab=60, embedding=True
    )
    long = Long(layers=3, width=128, heads=8, bands=(2, 2, 2, 2))  # fifty symbols have to be told apart
    families = (UNIFORM, "repeated", "mixed", "few", "distinct")
    example = "1 4 2 2 4 3"

    def answer_size(self, length: int) -> int:
        """No more than there are symbols."""
        return min(length, ALPHABET)

    def row_size(self, length: int) -> int:
        """Question and answer with room to spare, as the authors pad it."""
        return 2 * (length + 2)

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Symbols of one of the input distributions."""
        rows = len(lengths)
        if family == "repeated":
            return draws.repeated(rows, size, generator, ALPHABET)
        if family == "few":
            palette = draws.uniform(rows, FEW, generator, ALPHABET)
            return palette.gather(1, draws.uniform(rows, size, generator, FEW))
        if family == "mixed":  # a shuffled alphabet, of which each row uses its own number of symbols
            shuffled = torch.rand(rows, ALPHABET, generator=generator, device=generator.device).argsort(1)
            used = draws.uniform(rows, 1, generator, ALPHABET) + 1
            which = torch.rand(rows, size, generator=generator, device=generator.device) * used
            return shuffled.gather(1, torch.minimum(which.long(), used - 1))
        if family == "distinct":  # a shuffled alphabet, over and over
            shuffled = torch.rand(rows, ALPHABET, generator=generator, device=generator.device).argsort(1)
            return shuffled.repeat(1, -(-size // ALPHABET))[:, :size]
        return draws.uniform(rows, size, generator, ALPHABET)

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

    def measure(self, question: list[str]) -> tuple[int, int]:
        """The number of symbols; there is one variant."""
        if not question:
            raise InputError(
                f"an empty question: {self.name} needs at least one symbol, as in {self.example}"
            )
        known = set(self.vocab.symbols)
        for token in question:
            if token not in known:
                raise InputError(
                    f"{shown(token)} is not in the alphabet of {self.name}: "
                    f"the symbols are the numbers 0 to {ALPHABET - 1}, separated by spaces"
                )
        return self.check_length(len(question)), 0


def first_occurrences(symbols: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]) -> Bool[Tensor, "B N"]:
    """Where a symbol stands for the first time in its row: at the smallest of all places that hold it."""
    rows, size = symbols.shape
    places = torch.arange(size, device=symbols.device).repeat(rows, 1)
    first_place = places.new_full((rows, ALPHABET), size).scatter_reduce(1, symbols, places, "amin")
    return (first_place.gather(1, symbols) == places) & within(lengths, size)
