"""Parity: is the number of ones odd?

question   0 0 0 1 1 > # #
answer     * * * * * 0 # #
"""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from looped.tasks.base import Long, Paper
from looped.tasks.bits import BitStringTask


class Parity(BitStringTask):
    """1 if a bit string has an odd number of ones, else 0. The running parity, one bit per step: T = n."""

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

    def answers(
        self, bits: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B 1"], Int[Tensor, "B"]]:
        """The sum of the bits modulo 2."""
        return bits.sum(1, keepdim=True) % 2, torch.ones_like(lengths)

    def meaning(self, answer: str) -> str:
        """`odd` or `even`."""
        return {"0": "even", "1": "odd"}.get(answer, "")

    def solve_bits(self, bits: str) -> str:
        """Counts the ones of the integer the bits spell."""
        return str(int(bits, 2).bit_count() % 2)
