"""Folding norms into the matrices behind them, its way back, and AdamW: one pass over the weights each.

`tests/fast_reference.py` says what each means. Weights and their gradients are views into flat rows, [layers, S, …]
with the same strides between layers and between seeds; what is folded, and its gradients, are [layers, S, …] in one
piece.
"""

# mypy: ignore-errors
from __future__ import annotations

from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without
    triton = None

TALL = (32, 64)  # rows and columns of a tile that goes down its columns
WIDE = (8, 256)  # of one that goes along its rows
DEEP = 128  # rows of a program that nothing is summed in
FLAT = 2048  # numbers of a flat tile


def fold(
    weight: Tensor, bias: Tensor, norm: tuple[Tensor, Tensor] | None, matrix: Tensor, matrix_bias: Tensor
) -> None:
    """matrix, matrix_bias ← weight and bias with scale and shift of the norm before them folded in."""
    scale, shift = (bias, bias) if norm is None else norm
    layers, seeds, rows, columns = weight.shape
    deep = DEEP if norm is None else rows  # a norm's shift is summed over all rows
    _fold[(layers * seeds, -(-columns // TALL[1]), -(-rows // deep))](
        weight, bias, scale, shift, matrix, matrix_bias, seeds, rows, columns, deep,
        weight.stride(0), weight.stride(1),
        NORM=norm is not None, ROWS=TALL[0], COLUMNS=TALL[1], num_warps=4,
    )  # fmt: skip


def fold_backward(
    weight: Tensor, norm: tuple[Tensor, Tensor] | None, grad: Tensor, grad_bias: Tensor,
    d_weight: Tensor, d_bias: Tensor, d_norm: tuple[Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """d_… ← the gradients of all that `fold` was given, from those of the matrix and bias it made."""
    scale, shift = (d_bias, d_bias) if norm is None else norm
    d_scale, d_shift = (d_bias, d_bias) if d_norm is None else d_norm
    layers, seeds, rows, columns = weight.shape
    _fold_backward[(layers * seeds, -(-rows // WIDE[0]))](
        weight, scale, shift, grad.contiguous(), grad_bias.contiguous(), d_weight, d_bias, d_scale, d_shift,
        seeds, rows, columns, weight.stride(0), weight.stride(1),
        NORM=norm is not None, ROWS=WIDE[0], COLUMNS=WIDE[1], num_warps=4,
    )  # fmt: skip


def adamw(
    weights: Tensor, grad: Tensor, mean: Tensor, square: Tensor, average: Tensor | None,
    rates: Tensor, betas: tuple[float, float], decay: float, epsilon: float, ema: float,
) -> None:  # fmt: skip
    """One AdamW step in place, and the weights' average; `rates` [S, 5]: see `optimizer.adamw`."""
    s, size = weights.shape
    _adamw[(-(-size // FLAT), s)](
        weights, grad, mean, square, weights if average is None else average, rates, size,
        B1=betas[0], B2=betas[1], DECAY=decay, EPSILON=epsilon, EMA=ema if average is not None else 0.0,
        BLOCK=FLAT, num_warps=8,
    )  # fmt: skip


if triton is not None:

    @triton.jit
    def _fold(
        weight, bias, scale, shift, matrix, matrix_bias, seeds, rows, columns, deep, layer_stride, seed_stride,
        NORM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """See `fold`: a program takes some columns of one layer and seed, from their first row to their last."""
        which = tl.program_id(0).to(tl.int64)
        at = (which // seeds) * layer_stride + (which % seeds) * seed_stride
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        there = column < columns
        start = tl.program_id(2) * deep
        moved = tl.zeros([ROWS, COLUMNS], tl.float32)
        for first in range(start, start + deep, ROWS):
            row = first + tl.arange(0, ROWS)
            inside = (row < rows)[:, None] & there[None, :]
            place = row[:, None] * columns + column[None, :]
            w = tl.load(weight + at + place, mask=inside, other=0.0)
            if NORM:
                by = tl.load(scale + at + row, mask=row < rows, other=0.0)
                moved += tl.load(shift + at + row, mask=row < rows, other=0.0)[:, None] * w
                w = by[:, None] * w
            tl.store(matrix + which * rows * columns + place, w.to(matrix.dtype.element_ty), mask=inside)
        total = tl.load(bias + at + column, mask=there, other=0.0) + tl.sum(moved, axis=0)
        once = there & (start == 0)
        tl.store(matrix_bias + which * columns + column, total.to(matrix_bias.dtype.element_ty), mask=once)

    @triton.jit
    def _fold_backward(
        weight, scale, shift, grad, grad_bias, d_weight, d_bias, d_scale, d_shift,
        seeds, rows, columns, layer_stride, seed_stride,
        NORM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        """See `fold_backward`: a program takes some rows of one layer and seed, from their first column on."""
        which = tl.program_id(0).to(tl.int64)
        at = (which // seeds) * layer_stride + (which % seeds) * seed_stride
        row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        exists = row < rows
        by_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
        plus_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
        if NORM:
            by = tl.load(scale + at + row, mask=exists, other=0.0)
            plus = tl.load(shift + at + row, mask=exists, other=0.0)
        for first in range(0, columns, COLUMNS):
            column = first + tl.arange(0, COLUMNS)
            there = column < columns
            inside = exists[:, None] & there[None, :]
            place = row[:, None] * columns + column[None, :]
            g = tl.load(grad + which * rows * columns + place, mask=inside, other=0.0)
            b = tl.load(grad_bias + which * columns + column, mask=there, other=0.0)
            tl.store(d_bias + at + column, b, mask=there & (tl.program_id(1) == 0))
            if NORM:
                w = tl.load(weight + at + place, mask=inside, other=0.0)
                by_sum += g * w
                plus_sum += b[None, :] * w
                g = by[:, None] * g + plus[:, None] * b[None, :]
            tl.store(d_weight + at + place, g, mask=inside)
        if NORM:
            tl.store(d_scale + at + row, tl.sum(by_sum, axis=1), mask=exists)
            tl.store(d_shift + at + row, tl.sum(plus_sum, axis=1), mask=exists)

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
