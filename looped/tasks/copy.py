"""Copy: say the bit string again. Binary on purpose: with repeated tokens no token marks its own place.

question   1 0 1 > # # # #
answer     * * * 1 0 1 # #
"""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from looped.tasks.base import Long, Paper
from looped.tasks.bits import BitStringTask


class Copy(BitStringTask):
    """The question itself. Everything moves one place to the right each step: T = n."""

    name = "copy"
    summary = "the same bits again"
    paper = Paper(max_length=19, layers=2, heads=8, interval=1000, ema=0.0, test_length=35)
    # nothing has to be heard of from afar
    long = Long(layers=1, width=32, bands=(2, 2, 2, 2), lr=3e-3, steps=4_000, interval=105)
    example = "0110"

    def answer_size(self, length: int) -> int:
        """As many bits as the question."""
        return length

    def row_size(self, length: int) -> int:
        """Question and answer with room to spare, as the authors pad it."""
        return 2 * (length + 2)

    def answers(
        self, bits: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]
    ) -> tuple[Int[Tensor, "B N"], Int[Tensor, "B"]]:
        """The bits themselves."""
        return bits, lengths

    def solve_bits(self, bits: str) -> str:
        """The bits themselves."""
        return bits
