"""Addition: two binary numbers of n digits each, and their sum of n + 1 digits.

question   1 0 + 1 1 > # # # # # #
answer     * * * * * 1 0 1 # # # #      2 + 3 = 5, most significant digit first, leading zeros kept
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import pad

from looped.errors import InputError
from looped.tasks.base import LONGEST, Long, Paper
from looped.tasks.bits import BITS, TwoNumbersTask, added, decimal
from looped.tasks.families import BIT_FAMILIES, CARRY_FAMILIES, draw_bits
from looped.tasks.padded import mirrored
from looped.vocab import Vocab


class Addition(TwoNumbersTask):
    """The sum of two n-digit numbers. All carries move one place each step; the paper trains with T = n."""

    name = "addition"
    summary = "the sum of two binary numbers of n digits each"
    sign = "+"
    spellings = "+"
    vocab = Vocab((*BITS, "+"))
    paper = Paper(max_length=19, layers=3, heads=8, interval=1600, ema=0.0, test_length=30)
    long = Long(interval=320, steady=2.0, ema=0.999)  # every seed has to learn to carry
    families = BIT_FAMILIES + CARRY_FAMILIES
    example = "1011+0110"

    def question_size(self, length: int) -> int:
        """Two numbers and the sign."""
        return 2 * length + 1

    def answer_size(self, length: int) -> int:
        """One digit more than the numbers have."""
        return length + 1

    def row_size(self, length: int) -> int:
        """Question and answer with room to spare, as the authors pad it."""
        return 3 * (length + 2)

    def digits(
        self, lengths: Int[Tensor, "B"], variants: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"], Int[Tensor, "B"]]:
        """n, n and n + 1."""
        return lengths, lengths, lengths + 1

    def draw(
        self, family: str, rows: int, max_length: int, generator: torch.Generator
    ) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"]]:
        """Both numbers by themselves; for the carry distributions, the second from the first."""
        if family not in CARRY_FAMILIES:
            x, y = (draw_bits(family, rows, max_length, generator) for _ in range(2))
            return x, y
        return _carry_chains(rows, max_length, generator, born=family == "carry")

    def answers(
        self, first: Int[Tensor, "B N"], second: Int[Tensor, "B N"], digits: Int[Tensor, "B"]
    ) -> Int[Tensor, "B A"]:
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

    def meaning(self, answer: str) -> str:
        """The sum in decimal."""
        return decimal(answer)

    def solve_numbers(self, first: str, second: str) -> str:
        """The sum with one digit more than the numbers have."""
        return f"{int(first, 2) + int(second, 2):0{len(first) + 1}b}"


def _carry_chains(
    rows: int, size: int, generator: torch.Generator, *, born: bool
) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B N"]]:
    """Numbers whose every place passes a carry on; with `born`, the lowest place makes one: `0110 + 1010`, …

    In half of the rows one number has all the ones (`1111 + 0001`), in the others they are spread at random.
    """
    lumped, spread = (draw_bits(family, rows, size, generator) for family in ("repeated", "uniform"))
    x = torch.where(draw_bits("repeated", rows, size, generator).bool(), lumped, spread)
    lowest = torch.arange(size, device=x.device) == 0
    y = 1 - x
    if born:
        x, y = x.masked_fill(lowest, 1), y.masked_fill(lowest, 1)
    return x, y
