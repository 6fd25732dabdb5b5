"""Multiplication: a binary number of one or two digits times one of n.

    question   1 1 × 1 1 0 > # # # # #
    answer     * * * * * * 0 1 0 0 1 #      3 × 6 = 18, least significant digit first

The answer has as many digits as both factors together, zeros at the end kept: five here. (The example printed
in the paper shows a sixth, against its own text, in a row one token longer than the input's.)
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from looped.errors import InputError
from looped.tasks.base import Long, Paper
from looped.tasks.bits import BITS, TwoNumbersTask, added, decimal
from looped.tasks.families import BIT_FAMILIES, CARRY_FAMILIES, UNIFORM, draw_bits
from looped.vocab import Vocab

LONGEST_FIRST = 2  # digits of the first factor at most


class Multiplication(TwoNumbersTask):
    """The product of n1 digits (variant 0 has one, variant 1 has two) and n digits: T = n1·n."""

    name = "multiplication"
    summary = "1 or 2 binary digits times n digits, least significant first"
    sign = "×"
    spellings = "*×xX"
    vocab = Vocab((*BITS, "×"))
    paper = Paper(max_length=11, layers=4, heads=8, interval=500, ema=0.0, test_length=16)
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

    def row_size(self, length: int) -> int:
        """Question and answer with room to spare, as the authors pad it."""
        return 4 * (length + 2)

    def steps(self, length: Int[Tensor, "*B"], variant: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The product of both factors' digits."""
        return length * (variant + 1)

    def digits(
        self, lengths: Int[Tensor, "B"], variants: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"], Int[Tensor, "B"]]:
        """v + 1, n and their sum."""
        return variants + 1, lengths, variants + 1 + lengths

    def draw(
        self, family: str, rows: int, max_length: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "B X"], Int[Tensor, "B N"]]:
        """Both factors by themselves; for the carry distributions, three times an alternating number."""
        if family not in CARRY_FAMILIES:
            x = draw_bits(family, rows, LONGEST_FIRST, generator)
            return x, draw_bits(family, rows, max_length, generator)
        second = _carry_chains(rows, max_length, generator, born=family == "carry")
        return draw_bits("ones", rows, LONGEST_FIRST, generator), second

    def answers(
        self, first: Int[Tensor, "B X"], second: Int[Tensor, "B N"], digits: Int[Tensor, "B"]
    ) -> Int[Tensor, "B A"]:
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


def _carry_chains(rows: int, size: int, generator: torch.Generator, *, born: bool) -> Int[Tensor, "B N"]:
    """Second factors b for which adding b and 2b passes a carry on at every place.

    That is so where each digit differs from the one below. With `born` the two lowest digits are both 1
    instead, and the carry they make travels to the top: …101011. Else no carry is made: …0101 or …1010.
    """
    places = torch.arange(size, device=generator.device)
    if born:
        return ((places == 0) | (places % 2 == 1)).long().repeat(rows, 1)
    return (places + draw_bits(UNIFORM, rows, 1, generator)) % 2
