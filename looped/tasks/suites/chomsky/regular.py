"""What the fifteen tasks share, and the regular ones: a finite state, read from left to right, is enough.

A question is drawn as token ids, and answered twice, by tensors and in plain Python. A task says how questions are
drawn (`draw`), the answers to a batch of them (`answers`) and the answer to one (`answer`, the oracle, which shares no
code with the other two); `check` refuses what is no question.

Shapes: B problems, N question positions, A answer positions.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn.functional import pad

from looped.errors import InputError
from looped.tasks import distributions as draws
from looped.tasks.base import Long, Paper
from looped.tasks.distributions import BITS, UNIFORM, Ids, Sizes, filled
from looped.tasks.strings import StringTask

MODULUS = 5
TIMES = "×"
DIGITS = tuple(str(i) for i in range(MODULUS))
# Heads that see one or two positions back and nothing else: enough where a state passes through the row.
LOCAL = Long(layers=1, width=32, heads=4, bands=(2, 2, 3, 3), lr=3e-3, steps=2_000, interval=40)


class ChomskyTask(StringTask):
    """One task of the suite. Trained to 40; T(n) = n is enough for the programs that we know, unless it says more."""

    paper = Paper(max_length=40, layers=2, heads=8, interval=300, test_length=100)
    level: ClassVar[str]  # regular, context-free or context-sensitive, by the file that a task stands in
    ended: ClassVar[bool] = False  # the suite's score counts the end of the answer: its length is not known
    block: ClassVar[Long | None] = None  # what recipe `chomsky` trains, if not the suite's common block

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.summary = cls.summary[:1].lower() + cls.summary[1:].rstrip(".")  # as lists have it
        cls.block = vars(cls).get("block")  # a relative's was not seen to learn this task
        cls.level = cls.__module__.rpartition(".")[2].replace("_", "-")

    def check(self, question: list[str]) -> None:
        """Raise `InputError` where the task's symbols do not make a question."""

    def steps(self, length: Int[Tensor, "*B"], variant: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """T(n): one step for every token of the question."""
        return self.sized(length)

    def measure(self, question: list[str]) -> tuple[int, int]:
        """The number of tokens; there is one variant."""
        measured = super().measure(question)
        self.check(question)
        return measured

    def refused(self, reason: str) -> InputError:
        """The complaint about a question that is none."""
        return InputError(f"{reason}: {self.name} questions look like {self.example}")


class OneTokenTask(ChomskyTask):
    """A task whose answer is one token: a class, in the suite's words."""

    @abstractmethod
    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """The token that answers each question."""

    def answer_size(self, length: int) -> int:
        """One token."""
        return 1

    def answers(self, question: Ids, lengths: Sizes) -> tuple[Ids, Sizes]:
        """One token each."""
        return self.classes(question, lengths)[:, None], torch.ones_like(lengths)


# --- the regular tasks ------------------------------------------------------------------------------------------


class EvenPairs(OneTokenTask):
    """1 if 01 and 10 occur an odd number of times among neighbouring bits, else 0."""

    symbols = BITS
    example = "0110"
    # It stays at guessing or leaves that at short lengths, so the stages at two to four tokens are long.
    block = replace(
        LOCAL, loops="2q", max_length=10, steps=3_000, interval=60, stage_steps=(50, 600, 600, 300)
    )

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
    block = LOCAL

    def classes(self, question: Ids, lengths: Sizes) -> Sizes:
        """The sum modulo 2."""
        return filled(question, lengths, 0).sum(1) % 2

    def answer(self, question: list[str]) -> list[str]:
        """Counts the ones."""
        return [str(question.count("1") % 2)]


class CycleNavigation(OneTokenTask):
    """The place (0 to 4) on a ring of five after moves left, stay and right (L, S, R) from 0."""

    symbols = (*DIGITS, "L", "S", "R")
    drawn = (len(DIGITS), 3)
    families = draws.SYMBOL_FAMILIES
    example = "RLSLL"
    block = replace(LOCAL, max_length=16, steps=2_400, interval=80)  # 40 at each length are too few

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

    symbols = (*DIGITS, "+", "-", TIMES)
    spellings = {"*": TIMES}  # noqa: RUF012 - a constant of the class, declared as one in `Task`
    families = (UNIFORM, "repeated", "mixed", "products")
    example = "1+2*3"

    def sized(self, lengths: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The next odd length at or below."""
        return lengths - 1 + lengths % 2

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Digits and signs in turn; `products` are of digits from 1 to 4, so that every one of them matters."""
        rows, products = len(lengths), family == "products"
        law = UNIFORM if products else family
        digits = draws.draw_symbols(law, rows, size, generator, 4 if products else 5) + products
        signs = draws.draw_symbols(law, rows, size, generator, 3) + self.vocab.id("+")
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
