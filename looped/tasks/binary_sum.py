"""Binary sum: how many ones, written in binary with the least significant digit first.

question   1 0 1 1 > # # # #
answer     * * * * 1 1 # # #      three, and of no ones at all the answer is empty: `#` at once
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from looped.tasks.base import Long, Paper
from looped.tasks.bits import BitStringTask, decimal


class BinarySum(BitStringTask):
    """The count of ones, without leading zeros. One bit is added to the count each step: T = n."""

    name = "binary_sum"
    summary = "the number of ones in binary, least significant first"
    paper = Paper(max_length=19, layers=2, heads=16, interval=500, ema=0.9999, test_length=24)
    long = Long(  # 2q: the last bit has to arrive, and its carry to travel
        width=128,
        heads=8,
        bands=(2, 2, 2, 2),
        loops="2q",
        lr=6e-4,
        steps=10_000,
        interval=200,
        steady=2.0,
        ema=0.999,
    )
    example = "1011"

    def answer_size(self, length: int) -> int:
        """The digits of n itself, the largest count."""
        return length.bit_length()

    def row_size(self, length: int) -> int:
        """The authors' n + 9, which holds eight digits and a `#`; from n = 256 on, as much as that needs."""
        return length + max(9, self.answer_size(length) + 1)

    def answers(
        self, bits: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B A"], Int[Tensor, "B"]]:
        """The digits of the count; as many as it takes until nothing is left."""
        places = torch.arange(self.answer_size(bits.shape[1]), device=bits.device)
        shifted = bits.sum(1, keepdim=True) >> places
        return shifted & 1, (shifted > 0).sum(1)

    def meaning(self, answer: str) -> str:
        """The count in decimal: `011` is `6 ones, least significant first`."""
        value = decimal(answer[::-1] or "0")
        return f"{value} {'one' if value == '1' else 'ones'}, least significant first" if value else ""

    def solve_bits(self, bits: str) -> str:
        """Counts the ones of the integer the bits spell."""
        return f"{int(bits, 2).bit_count():b}"[::-1].rstrip("0")
