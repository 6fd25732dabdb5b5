"""What the fifteen tasks share: a question is drawn as token ids, and answered twice, by tensors and in plain Python.

A task says how questions are drawn (`draw`), the answers to a batch of them (`answers`) and the answer to one
(`answer`, the oracle, which shares no code with the other two); `check` refuses what is no question.

Shapes: B problems, N question positions, A answer positions.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from looped.errors import InputError
from looped.tasks.base import Paper
from looped.tasks.families import BIT_FAMILIES, UNIFORM, draw_bits, repeated, uniform
from looped.tasks.strings import Ids, Sizes, StringTask

Flags = Bool[Tensor, "B N"]

SYMBOL_FAMILIES = (UNIFORM, "repeated", "mixed")  # of more than two symbols
MODULUS = 5
DIGITS = tuple(str(i) for i in range(MODULUS))


class ChomskyTask(StringTask):
    """One task of the suite. Trained to 40; T(n) = n is enough for the programs that we know, unless it says more."""

    paper = Paper(max_length=40, layers=2, heads=8, interval=300, test_length=100)
    level: ClassVar[str]  # regular, context-free or context-sensitive
    ended: ClassVar[bool] = False  # the suite's score counts the end of the answer: its length is not known
    spellings: ClassVar[dict[str, str]] = {}  # what people type for a token that no keyboard has
    drawn: ClassVar[tuple[int, int]] = (0, 2)  # what most questions are made of: the first id, and how many
    families: ClassVar[tuple[str, ...]] = BIT_FAMILIES

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.summary = cls.summary[:1].lower() + cls.summary[1:].rstrip(".")  # as lists have it

    def draw(self, family: str, lengths: Sizes, size: int, generator: Generator) -> Ids:
        """Random questions of these lengths in rows of `size`, as ids; anything past a question's end."""
        first, symbols = self.drawn
        return draw_symbols(family, len(lengths), size, generator, symbols) + first

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

    def parse(self, text: str) -> list[str]:
        """A question as people type it."""
        for typed, token in self.spellings.items():
            text = text.replace(typed, token)
        return super().parse(text)

    def format_question(self, question: list[str]) -> str:
        """Token names of a question, as people type them."""
        text = super().format_question(question)
        for typed, token in self.spellings.items():
            text = text.replace(token, typed)
        return text

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


def draw_symbols(family: str, rows: int, size: int, generator: Generator, symbols: int = 2) -> Ids:
    """Symbols of one of `BIT_FAMILIES`, or of `SYMBOL_FAMILIES` where there are more than two."""
    if symbols == 2:
        return draw_bits(family, rows, size, generator)
    if family == "repeated":
        return repeated(rows, size, generator, symbols)
    if family == "mixed":  # every question has its own share of each symbol, all shares equally likely
        shares = -torch.rand(rows, symbols, generator=generator, device=generator.device).clamp(1e-6).log()
        bounds = (shares / shares.sum(1, keepdim=True)).cumsum(1)[:, None, :-1]
        return (torch.rand(rows, size, 1, generator=generator, device=generator.device) > bounds).sum(-1)
    return uniform(rows, size, generator, symbols)


def drawn_below(limits: Int[Tensor, "*B"], generator: Generator) -> Int[Tensor, "*B"]:
    """Whole numbers from 0 up to, and without, each limit, all equally likely."""
    u = torch.rand(limits.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return torch.minimum((u * limits).long(), limits - 1)


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
