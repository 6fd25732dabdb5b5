"""AdamW over flat weights in one pass: clip, moments, decay, update, average."""

# mypy: ignore-errors
from __future__ import annotations

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without
    triton = None

WIDE = 2048  # numbers of a tile


def adamw(
    weights: Tensor, grad: Tensor, mean: Tensor, square: Tensor, average: Tensor | None,
    rates: Tensor, betas: tuple[float, float], decay: float, epsilon: float, ema: float,
) -> None:  # fmt: skip
    """One AdamW step in place, and the weights' average; `rates` [S, 5]: see `plain.adamw`."""
    s, size = weights.shape
    _adamw[(-(-size // WIDE), s)](
        weights, grad, mean, square, weights if average is None else average, rates, size,
        B1=betas[0], B2=betas[1], DECAY=decay, EPSILON=epsilon, EMA=ema if average is not None else 0.0,
        BLOCK=WIDE, num_warps=8,
    )  # fmt: skip


if triton is not None:

    @triton.jit
    def _adamw(
        weights, grad, mean, square, average, rates, size,
        B1: tl.constexpr, B2: tl.constexpr, DECAY: tl.constexpr, EPSILON: tl.constexpr, EMA: tl.constexpr,
        BLOCK: tl.constexpr,
    ):  # fmt: skip
        """See `adamw`."""
        seed = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        place = seed * size + at
        lr = tl.load(rates + seed * 5)
        correct1 = tl.load(rates + seed * 5 + 1)
        correct2 = tl.load(rates + seed * 5 + 2)
        clip = tl.load(rates + seed * 5 + 3)
        alive = tl.load(rates + seed * 5 + 4) > 0
        g = tl.load(grad + place, mask=inside, other=0.0) * clip
        g = tl.where(alive, g, 0.0)
        m = tl.load(mean + place, mask=inside, other=0.0)
        m += (g - m) * (1.0 - B1)
        v = tl.load(square + place, mask=inside, other=0.0) * B2 + g * g * (1.0 - B2)
        w = tl.load(weights + place, mask=inside, other=0.0) * (1.0 - lr * DECAY)
        w -= (lr / correct1) * m / (tl.sqrt(v / correct2) + EPSILON)
        tl.store(mean + place, m, mask=inside)
        tl.store(square + place, v, mask=inside)
        tl.store(weights + place, w, mask=inside)
        if EMA > 0.0:
            a = tl.load(average + place, mask=inside, other=0.0)
            tl.store(average + place, tl.where(alive, a + (w - a) * (1.0 - EMA), a), mask=inside)
