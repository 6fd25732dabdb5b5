"""The regular tasks: a finite state, read from left to right, is enough."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from looped.tasks.families import BITS, UNIFORM
from looped.tasks.padded import filled
from looped.tasks.strings import Ids, Sizes
from looped.tasks.suites.chomsky.base import DIGITS, MODULUS, SYMBOL_FAMILIES, OneTokenTask, draw_symbols

TIMES = "×"


class EvenPairs(OneTokenTask):
    """1 if 01 and 10 occur an odd number of times among neighbouring bits, else 0."""

    level = "regular"
    symbols = BITS
    example = "0110"

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """The first and the last bit differ exactly if the number of changes is odd."""
        last = question.gather(1, lengths[:, None] - 1)[:, 0]
        return question[:, 0] ^ last

    def answer(self, question: list[str]) -> list[str]:
        """Counts the changes."""
        return [str(sum(a != b for a, b in pairwise(question)) % 2)]


class ParityCheck(EvenPairs):
    """1 if the number of ones is odd, else 0."""

    example = "1101"

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """The sum modulo 2."""
        return filled(question, lengths, 0).sum(1) % 2

    def answer(self, question: list[str]) -> list[str]:
        """Counts the ones."""
        return [str(question.count("1") % 2)]


class CycleNavigation(OneTokenTask):
    """The place (0 to 4) on a ring of five after moves left, stay and right (L, S, R) from 0."""

    level = "regular"
    symbols = (*DIGITS, "L", "S", "R")
    drawn = (len(DIGITS), 3)
    families = SYMBOL_FAMILIES
    example = "RLSLL"

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """The sum of -1, 0 and 1 modulo 5."""
        stay = self.vocab.id("S")
        return (filled(question, lengths, stay) - stay).sum(1) % MODULUS

    def answer(self, question: list[str]) -> list[str]:
        """Walks."""
        place = 0
        for move in question:
            place = (place + {"L": 4, "S": 0, "R": 1}[move]) % 5
        return [str(place)]

    def check(self, question: list[str]) -> None:
        """Moves only."""
        if set(question) & set(DIGITS):
            raise self.refused("a place is no move")


class ModularArithmetic(OneTokenTask):
    """The value modulo 5 of digits 0 to 4 with +, - and * between them, * first."""

    level = "regular"
    symbols = (*DIGITS, "+", "-", TIMES)
    spellings = {"*": TIMES}  # noqa: RUF012 - a constant of the class, declared as one in `ChomskyTask`
    families = (UNIFORM, "repeated", "mixed", "products")
    example = "1+2*3"

    def sized(self, lengths: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The next odd length at or below."""
        return lengths - 1 + lengths % 2

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Digits and signs in turn; `products` are of digits from 1 to 4, so that every one of them matters."""
        rows, products = len(lengths), family == "products"
        law = UNIFORM if products else family
        digits = draw_symbols(law, rows, size, generator, 4 if products else 5) + products
        signs = draw_symbols(law, rows, size, generator, 3) + self.vocab.id("+")
        signs = torch.full_like(signs, self.vocab.id(TIMES)) if products else signs
        return torch.where(torch.arange(size, device=lengths.device) % 2 == 0, digits, signs)

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """Every term by the logarithms of its factors, summed where the term is; then the terms with their signs."""
        plus, minus = self.vocab.id("+"), self.vocab.id("-")
        digits = filled(question, lengths, 1)[:, ::2]  # what is added to the last term by padding is times 1
        signs = filled(question, lengths, self.vocab.id(TIMES))[:, 1::2]
        starts = pad((signs == plus) | (signs == minus), (1, 0))[:, : digits.shape[1]]
        negative = pad(signs == minus, (1, 0))[:, : digits.shape[1]]
        term = starts.long().cumsum(1)
        zero = torch.zeros_like(digits)
        logarithm = torch.where(digits == 3, 3, digits // 2)  # to the base 2, modulo 5
        logs = zero.scatter_add(1, term, logarithm)
        zeros = zero.scatter_add(1, term, (digits == 0).long())
        minuses = zero.scatter_add(1, term, (starts & negative).long())
        value = (1 << logs % 4) * (1 - 2 * minuses)
        present = torch.arange(digits.shape[1], device=digits.device) <= term[:, -1:]
        return torch.where(present & (zeros == 0), value, 0).sum(1) % MODULUS

    def answer(self, question: list[str]) -> list[str]:
        """Goes through term after term."""
        total, term = 0, int(question[0])
        for sign, digit in zip(question[1::2], question[2::2], strict=True):
            if sign == TIMES:
                term *= int(digit)
            else:
                total, term = total + term, int(digit) if sign == "+" else -int(digit)
            term = term % 5  # keeps long products small
        return [str((total + term) % 5)]

    def check(self, question: list[str]) -> None:
        """Digits and signs in turn."""
        if len(question) % 2 == 0 or any(
            (token in DIGITS) != (i % 2 == 0) for i, token in enumerate(question)
        ):
            raise self.refused("digits and signs take turns, a digit first and last")
