"""What a task is: a question, an answer, the number of steps between them.

A task owns its quirks (vocabulary, lengths, T(n), how people write its questions); nothing outside its own
class spells its name. It is stated twice, on purpose: `solve` is plain Python on arbitrary-precision integers
and `sample` is vectorised over a batch on any device. A test holds the two equal.

The least that a task says is its symbols and `solve`; questions are then n random symbols, drawn in Python:

    class Reverse(Task):
        symbols = "0123456789"

        def solve(self, question: list[str]) -> list[str]:
            return question[::-1]

Shapes: B problems, Q question positions, A answer positions.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import ClassVar, Literal

import torch
from jaxtyping import Int
from torch import Tensor

from looped.errors import InputError
from looped.tasks.distributions import Digits, Sizes, is_known
from looped.vocab import Vocab

Twin = tuple[list[str], dict[str, str]]  # another question, and how tokens of the answer are renamed
LONGEST = 4096  # the longest problem anybody may ask for: a bound on memory, not on the algorithms
LARGEST_SEED = 2**32 - 1  # a CPU's generator looks at 32 bits: beyond, two seeds could be one


def shown(text: str) -> str:
    """Something a person typed, quoted for an error message and cut to a readable length."""
    return repr(text if len(text) <= 20 else text[:20] + "…")


@dataclass(frozen=True)
class Problems:
    """B questions and their answers, left-aligned and padded with the end-of-sequence id.

    `3` bits of copy in a batch padded for length 5:  question `1 0 1 # #` (3 of 5 used), answer the same.
    """

    question: Int[Tensor, "B Q"]
    question_length: Int[Tensor, "B"]
    answer: Int[Tensor, "B A"]
    answer_length: Int[Tensor, "B"]
    length: Int[Tensor, "B"]  # n, the problem's length in the paper's sense
    steps: Int[Tensor, "B"]  # T(n), the number of loop steps the problem needs


@dataclass(frozen=True)
class Paper:
    """What the paper fixes for a task: training lengths, block and schedule; a task it does not have takes these."""

    max_length: int = 20  # longest training length
    layers: int = 2  # layers of the looped block
    heads: int = 4  # attention heads, width 256
    interval: int = 1000  # gradient steps between two increases of the maximum length
    ema: float = 0.0  # decay of the weight average, 0 for none
    test_length: int = 40  # the length at which the paper shows accuracy ≈ 1
    vocab: int = 6  # token ids of the authors' model, those that the task does not use included
    embedding: bool = False  # tokens are read in through an Embedding there, not a Linear on one-hot tokens


@dataclass(frozen=True)
class Long:
    """The block that recipe `long` trains on a task, for how long, and how many steps a problem gets."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    bands: tuple[int, ...] = (2, 2)  # how far heads see; the rest of them see everything
    loops: str = "q"  # a rule of `looped.methods.Loops`: one step for every token of the question
    lr: float = 8e-4
    steps: int = 16_000  # gradient steps
    interval: int = 300  # of them at each length, while it grows
    growth_clip: float = 0.0  # this and the rest: see `TrainConfig`
    ema: float = 0.0
    batch: int = 32
    stage_steps: tuple[int, ...] = ()
    padding_loss: Literal["batch", "own"] = "batch"
    max_length: int = 0  # longest training length; 0: the paper's


class Task(ABC):
    """One algorithmic problem. Subclasses are stateless; the registry holds one instance of each."""

    name: ClassVar[str]  # unless given, the class's: BitSum is bit_sum
    summary: ClassVar[str]  # one line: what is asked; unless given, the docstring's first
    symbols: ClassVar[Sequence[str]]  # of questions and answers; gives `vocab`
    vocab: ClassVar[Vocab]
    paper: ClassVar[Paper] = Paper()
    long: ClassVar[Long] = Long()
    row_multiple: ClassVar[int] = 0  # rows are this times n + 2, as the authors pad them; 0: what is needed
    steps_formula: ClassVar[str] = "n"  # T(n) as people read it
    variants: ClassVar[int] = 1  # kinds of problem a length has, drawn evenly in training; tests use the last
    families: ClassVar[tuple[str, ...]] = (
        "uniform",
    )  # input distributions `sample` knows: `tasks.distributions`
    example: ClassVar[str]  # a question as people type it; unless given, four symbols
    empty: ClassVar[str] = "{name} questions look like {example}"  # said of an empty question
    foreign: ClassVar[str] = "no symbol of {name}: questions look like {example}"  # what any other token is
    spellings: ClassVar[
        dict[str, str]
    ] = {}  # what people type for a token that no keyboard has, the usual first

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if "symbols" in own:
            cls.vocab = Vocab(tuple(cls.symbols))
        if "name" not in own:
            cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if "summary" not in own:
            cls.summary = (cls.__doc__ or cls.name).strip().split("\n")[0]
        if not hasattr(cls, "example") and hasattr(cls, "vocab"):
            cls.example = cls._gap().join(islice(cycle(cls.vocab.symbols), 4))

    @classmethod
    def _gap(cls) -> str:
        """What stands between tokens that people type: nothing where all are single characters."""
        return " " if any(len(symbol) > 1 for symbol in cls.vocab.symbols) else ""

    # --- sizes ---------------------------------------------------------------------------------------------
    def question_size(self, length: int) -> int:
        """Tokens of the longest question of this length, without the end-of-question token."""
        return length

    def answer_size(self, length: int) -> int:
        """Tokens of the longest answer of this length, without the end-of-sequence token."""
        return length

    def row_size(self, length: int) -> int:
        """Tokens of a whole row when `length` is the longest in the batch."""
        needed = self.question_size(length) + self.answer_size(length) + 1
        return self.row_multiple * (length + 2) or needed

    def steps(self, length: Int[Tensor, "*B"], variant: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """T(n): the loop steps a problem of this length and variant needs."""
        return length

    # --- sampling ------------------------------------------------------------------------------------------
    def question(self, length: int, random: Random) -> list[str]:
        """One random question of a length, for a task that has no `sample` of its own."""
        return random.choices(self.vocab.symbols, k=length)

    def sample(
        self,
        lengths: Int[Tensor, "B"],
        generator: torch.Generator,
        *,
        max_length: int,
        variants: Int[Tensor, "B"] | None = None,
        family: str = "uniform",
    ) -> Problems:
        """Random problems of the given lengths, on the device of `lengths`.

        `max_length` bounds `lengths` and fixes every shape, so that no value has to travel to the host.
        `variants` defaults to the last variant for all. `generator` lives on the same device. A task overrides this to
        draw a whole batch on the device; here each question comes from `question` and its answer from `solve`.
        """
        self.check_family(family)
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        random, wanted = Random(int(seed)), lengths.tolist()
        questions = [self.question(length, random) for length in wanted]
        drawn = self.problems(questions, lengths.device, max_length)
        for question, n, length in zip(questions, drawn.length.tolist(), wanted, strict=True):
            if n != length:
                asked = self.format_question(question)
                raise InputError(f"{self.name}: {asked} was drawn for length {length} and measures {n}")
        return drawn

    # --- the oracle ----------------------------------------------------------------------------------------
    @abstractmethod
    def solve(self, question: list[str]) -> list[str]:
        """The answer's token names to a question's token names, in plain Python."""

    def twin(self, question: list[str], random: Random) -> Twin | None:
        """Another question whose answer is this one's with tokens renamed, and how; None where none is known.

        Addition: `b + a` for `a + b`, and no token is renamed. Copy: every bit flipped, and `0` is renamed `1`.
        """
        return None

    # --- people --------------------------------------------------------------------------------------------
    def parse(self, text: str) -> list[str]:
        """A question as people type it, to token names; raises `InputError` with a sentence."""
        for typed, token in self.spellings.items():
            text = text.replace(typed, token)
        question = text.split() if self._gap() else list("".join(text.split()))
        self.measure(question)
        return question

    def measure(self, question: list[str]) -> tuple[int, int]:
        """The (length n, variant) of a question's token names; raises `InputError` where it is no question."""
        self._check_tokens(question)
        return self.check_length(len(question)), 0

    def _check_tokens(self, question: list[str]) -> None:
        known, names = set(self.vocab.symbols), {"name": self.name, "example": self.example}
        if not question:
            raise InputError(f"an empty question: {self.empty.format(**names)}")
        for token in question:
            if token not in known:
                raise InputError(f"{shown(token)} is {self.foreign.format(**names)}")

    def format_question(self, question: list[str]) -> str:
        """Token names of a question, as people type them; `parse` is its inverse."""
        text = self._gap().join(question)
        for typed, token in self.spellings.items():
            text = text.replace(token, typed)
        return text

    def format_answer(self, answer: list[str]) -> str:
        """Token names of an answer, as people read them."""
        return self._gap().join(answer)

    def meaning(self, answer: str) -> str:
        """What an answer stands for, to be read after "=": `15, least significant first`; empty if it is clear."""
        return ""

    # --- shared --------------------------------------------------------------------------------------------
    def steps_of(self, question: list[str]) -> int:
        """T of one question."""
        length, variant = self.measure(question)
        return int(self.steps(torch.tensor(length), torch.tensor(variant)))

    def check_length(self, length: int) -> int:
        """The length itself, if a problem can have it."""
        if not 1 <= length <= LONGEST:
            raise InputError(f"a {self.name} problem's length must be between 1 and {LONGEST}, not {length}")
        return length

    def check_family(self, family: str) -> None:
        """Raises if `sample` has no such input distribution."""
        if not is_known(family, self.families):
            known = ", ".join(self.families)
            raise InputError(f"{self.name} has no input distribution {family[:40]!r}; it has {known}")

    def problems(
        self, questions: list[list[str]], device: torch.device | str = "cpu", max_length: int | None = None
    ) -> Problems:
        """Given questions (token names) as a padded batch, answered by the oracle; as wide as `max_length` asks."""
        answers = [self._answer(question) for question in questions]
        shapes = [self.measure(question) for question in questions]
        for asked, said, (n, _) in zip(questions, answers, shapes, strict=True):
            sizes = self.question_size(n), self.answer_size(n)
            if len(asked) > sizes[0] or len(said) > sizes[1]:
                raise InputError(
                    f"{self.name} {self.format_question(asked)[:40]}: a question of {len(asked)} and an answer of "
                    f"{len(said)} tokens, but question_size({n}) is {sizes[0]} and answer_size({n}) is {sizes[1]}"
                )
        most = max_length
        sizes = (0, 0) if most is None else (self.question_size(most), self.answer_size(most))
        lengths, variants = torch.tensor(shapes, device=device, dtype=torch.long).view(-1, 2).unbind(1)
        question, answer = self._pad(questions, device, sizes[0]), self._pad(answers, device, sizes[1])
        return Problems(*question, *answer, lengths, self.steps(lengths, variants))

    def _answer(self, question: list[str]) -> list[str]:
        """The oracle's answer, of which a task of a user's own may return anything."""
        said: object = self.solve(question)
        if not isinstance(said, Iterable):
            asked = self.format_question(question)[:40]
            raise InputError(f"{self.name} {asked}: solve must return the answer's tokens, not {said!r:.40}")
        return list(said)

    def _pad(self, rows: list[list[str]], device: torch.device | str, size: int) -> tuple[Digits, Sizes]:
        sizes = [len(row) for row in rows]
        padded = torch.full((len(rows), size or max([*sizes, 1])), self.vocab.eos)
        for i, row in enumerate(rows):
            padded[i, : len(row)] = torch.tensor(self.vocab.encode(row), dtype=torch.long)
        return padded.to(device), torch.tensor(sizes, device=device)
