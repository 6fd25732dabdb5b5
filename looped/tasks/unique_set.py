"""Unique set: the different symbols of a row, in the order in which they first occur.

question   1 4 2 2 4 3 > # # # # #
answer     * * * * * * 1 4 2 3 # #
"""

from __future__ import annotations

import re

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped.errors import InputError
from looped.tasks import families as draws
from looped.tasks.base import Long, Paper, Problems, Task
from looped.tasks.bits import shown
from looped.tasks.padded import compacted, filled, within
from looped.vocab import Vocab

ALPHABET = 50
FEW = 3  # symbols of a row in the family of that name


class UniqueSet(Task):
    """First occurrences out of an alphabet of 50. One symbol is looked at each step: T = n."""

    name = "unique_set"
    summary = "the different symbols (0 to 49), in order of appearance"
    vocab = Vocab(tuple(str(i) for i in range(ALPHABET)))
    paper = Paper(
        max_length=19, layers=3, heads=8, interval=1000, ema=0.0, test_length=35, vocab=60, embedding=True
    )
    long = Long(layers=3, width=128, heads=8, bands=(2, 2, 2, 2))  # fifty symbols have to be told apart
    families = (draws.UNIFORM, "repeated", "mixed", "few", "distinct")
    example = "1 4 2 2 4 3"

    def question_size(self, length: int) -> int:
        """One token per symbol."""
        return length

    def answer_size(self, length: int) -> int:
        """No more than there are symbols."""
        return min(length, ALPHABET)

    def row_size(self, length: int) -> int:
        """Question and answer with room to spare, as the authors pad it."""
        return 2 * (length + 2)

    def sample(
        self,
        lengths: Int[Tensor, "B"],
        generator: torch.Generator,
        *,
        max_length: int,
        variants: Int[Tensor, "B"] | None = None,
        family: str = draws.UNIFORM,
    ) -> Problems:
        """Random symbols of the given lengths and their first occurrences."""
        self.check_family(family)
        rows = lengths.shape[0]
        (symbols,) = draws.blended(
            family, rows, generator, lambda name: (draw_symbols(name, rows, max_length, generator),)
        )
        firsts = first_occurrences(symbols, lengths)
        return Problems(
            question=filled(symbols, lengths, self.vocab.eos),
            question_length=lengths,
            answer=compacted(symbols, firsts, self.answer_size(max_length), self.vocab.eos),
            answer_length=firsts.sum(1),
            length=lengths,
            steps=self.steps(lengths, torch.zeros_like(lengths)),
        )

    def solve(self, question: list[str]) -> list[str]:
        """The different tokens, in order."""
        self.measure(question)
        return list(dict.fromkeys(question))

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

    def format_question(self, question: list[str]) -> str:
        """The symbols, separated by spaces."""
        return " ".join(question)

    def format_answer(self, answer: list[str]) -> str:
        """The symbols, separated by spaces."""
        return " ".join(answer)


def draw_symbols(family: str, rows: int, size: int, generator: torch.Generator) -> Int[Tensor, "B N"]:
    """Random symbols of one of the task's input distributions."""
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


def first_occurrences(symbols: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]) -> Bool[Tensor, "B N"]:
    """Where a symbol stands for the first time in its row: at the smallest of all places that hold it."""
    rows, size = symbols.shape
    places = torch.arange(size, device=symbols.device).repeat(rows, 1)
    first_place = places.new_full((rows, ALPHABET), size).scatter_reduce(1, symbols, places, "amin")
    return (first_place.gather(1, symbols) == places) & within(lengths, size)
