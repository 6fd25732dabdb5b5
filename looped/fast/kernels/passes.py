"""One pass over memory where PyTorch needs several: norms with what stands next to them, GELU, folding, AdamW.

`tests/fast_reference.py` says what each one means. Weights and their gradients are views into flat rows, [layers, S, …]
with the same strides between layers and between seeds; what is folded, and its gradients, are [layers, S, …] in one
piece.
"""

# mypy: ignore-errors
from __future__ import annotations

from torch import Tensor

from looped.fast.packing import Packing

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without
    triton = None

ROWS = 4  # rows of a norm's tile
FLAT = 2048  # numbers of a flat tile
TALL = (32, 64)  # rows and columns of a weight's tile that goes down its columns
WIDE = (8, 256)  # of one that goes along its rows
DEEP = 128  # rows of a program that nothing is summed in


def inject_norm(
    state: Tensor | None,
    x: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    start: Tensor,
    normal: Tensor,
    rstd: Tensor,
) -> None:
    """start ← state·scale + shift + x (just x without a state); normal, rstd ← its norm."""
    given = x if state is None else state
    plain = given if x is None else x
    _inject_norm[_grid(start)](
        given, plain, scale, shift, start, normal, rstd, start.shape[1],
        given.stride(0), plain.stride(0), start.stride(0), normal.stride(0), rstd.stride(0),
        STATE=state is not None, INPUT=x is not None, **_norm_tile(start),
    )  # fmt: skip


def residual_norm(
    h: Tensor, y: Tensor, bias: Tensor, out: Tensor | None, normal: Tensor, rstd: Tensor
) -> None:
    """out ← h + y + bias (not stored if None); normal, rstd ← its norm."""
    kept = normal if out is None else out
    _residual_norm[_grid(h)](
        h, y, bias, kept, normal, rstd, h.shape[1],
        h.stride(0), y.stride(0), kept.stride(0), normal.stride(0), rstd.stride(0),
        KEEP=out is not None, **_norm_tile(h),
    )  # fmt: skip


def norm_backward(residual: Tensor, grad: Tensor, normal: Tensor, rstd: Tensor, out: Tensor) -> None:
    """out ← residual + the gradient through the norm."""
    input_backward(residual, grad, normal, rstd, out, None)


def boundary_backward(
    du: Tensor | None, final: Tensor, steps: Tensor, step: int,
    scale: Tensor, normal: Tensor, rstd: Tensor, scale_sum: Tensor, out: Tensor,
) -> None:  # fmt: skip
    """Between two loop steps: out ← gradient before the final norm of `step`, from the next step and the loss."""
    given = final if du is None else du
    _boundary_backward[_grid(out)](
        given, final, steps, scale, normal, rstd, scale_sum, out, out.shape[1], 0 if du is None else du.shape[1],
        step, given.stride(0), final.stride(0), steps.stride(0), normal.stride(0), rstd.stride(0),
        scale_sum.stride(0), out.stride(0), **_norm_tile(out),
    )  # fmt: skip


def input_backward(
    residual: Tensor, grad: Tensor, normal: Tensor, rstd: Tensor, out: Tensor, total: Tensor | None
) -> None:
    """out ← residual + the gradient through the norm; total += out."""
    into = out if total is None else total
    _input_backward[_grid(out)](
        residual, grad, normal, rstd, out, into, out.shape[1],
        residual.stride(0), grad.stride(0), normal.stride(0), rstd.stride(0), out.stride(0), into.stride(0),
        ADD=total is not None, **_norm_tile(out),
    )  # fmt: skip


def hold(packing: Packing, flow: Tensor, highest: Tensor, total: Tensor) -> None:
    """Rows of `flow`, which is part of `total`, are scaled down to norms of at most `highest` [S, B]; both know it."""
    places = packing.places(flow.device)
    _hold[(len(places), flow.shape[0])](
        flow, highest, total, places, packing.longest,
        flow.stride(0), highest.stride(0), total.stride(0), **_norm_tile(flow),
    )  # fmt: skip


def gelu_forward(pre: Tensor, bias: Tensor, out: Tensor) -> None:
    """out ← gelu(pre + bias)."""
    _gelu_forward[_wide_grid(pre)](
        pre, bias, out, pre.shape[1], pre.shape[2], pre.stride(0), out.stride(0), BLOCK=FLAT, num_warps=8
    )


def gelu_backward(grad: Tensor, pre: Tensor, bias: Tensor, out: Tensor) -> None:
    """out ← grad · gelu'(pre + bias)."""
    _gelu_backward[_wide_grid(pre)](
        grad, pre, bias, out, pre.shape[1], pre.shape[2],
        grad.stride(0), pre.stride(0), out.stride(0), BLOCK=FLAT, num_warps=8,
    )  # fmt: skip


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


def _grid(rows: Tensor) -> tuple[int, int]:
    return -(-rows.shape[1] // ROWS), rows.shape[0]


def _wide_grid(rows: Tensor) -> tuple[int, int]:
    return -(-rows.shape[1] * rows.shape[2] // FLAT), rows.shape[0]


def _norm_tile(rows: Tensor) -> dict[str, object]:
    width = rows.shape[2]
    return {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "TILE": ROWS, "num_warps": 4}


if triton is not None:

    @triton.jit
    def _tile_at(rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr):
        """This program's seed, rows, places inside the seed's rows, and which of them exist."""
        row = tl.program_id(0) * TILE + tl.arange(0, TILE)
        column = tl.arange(0, BLOCK)
        inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
        return tl.program_id(1).to(tl.int64), row, column, row[:, None] * WIDTH + column[None, :], inside

    @triton.jit
    def _normalise(h, inside, WIDTH: tl.constexpr):
        """Zero mean, unit variance, and the reciprocal deviation."""
        mean = tl.sum(h, axis=1) / WIDTH
        centred = tl.where(inside, h - mean[:, None], 0.0)
        rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=1) / WIDTH + 1e-5)
        return centred * rstd[:, None], rstd

    @triton.jit
    def _through_norm(grad, normal, rstd, inside, WIDTH: tl.constexpr):
        """The gradient before a norm from the one behind it."""
        mean = tl.sum(grad, axis=1) / WIDTH
        along = tl.sum(grad * normal, axis=1) / WIDTH
        return tl.where(inside, (grad - mean[:, None] - normal * along[:, None]) * rstd[:, None], 0.0)

    @triton.jit
    def _inject_norm(
        state, x, scale, shift, start, normal, rstd, rows,
        state_stride, x_stride, start_stride, normal_stride, rstd_stride,
        STATE: tl.constexpr, INPUT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """See `inject_norm`."""
        seed, row, column, at, inside = _tile_at(rows, WIDTH, BLOCK, TILE)
        h = tl.zeros([TILE, BLOCK], tl.float32)
        if INPUT:
            h += tl.load(x + seed * x_stride + at, mask=inside, other=0.0).to(tl.float32)
        if STATE:
            there = column < WIDTH
            by = tl.load(scale + seed * WIDTH + column, mask=there, other=0.0).to(tl.float32)
            plus = tl.load(shift + seed * WIDTH + column, mask=there, other=0.0).to(tl.float32)
            h += (
                tl.load(state + seed * state_stride + at, mask=inside, other=0.0).to(tl.float32) * by[None, :]
            )
            h += plus[None, :]
        tl.store(start + seed * start_stride + at, h.to(start.dtype.element_ty), mask=inside)
        h = tl.where(inside, h, 0.0)
        out, scale_back = _normalise(h, inside, WIDTH)
        tl.store(normal + seed * normal_stride + at, out.to(normal.dtype.element_ty), mask=inside)
        tl.store(rstd + seed * rstd_stride + row, scale_back, mask=row < rows)

    @triton.jit
    def _residual_norm(
        h, y, bias, out, normal, rstd, rows, h_stride, y_stride, out_stride, normal_stride, rstd_stride,
        KEEP: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """See `residual_norm`."""
        seed, row, column, at, inside = _tile_at(rows, WIDTH, BLOCK, TILE)
        plus = tl.load(bias + seed * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        new = tl.load(h + seed * h_stride + at, mask=inside, other=0.0).to(tl.float32)
        new += tl.load(y + seed * y_stride + at, mask=inside, other=0.0).to(tl.float32) + plus[None, :]
        if KEEP:
            tl.store(out + seed * out_stride + at, new.to(out.dtype.element_ty), mask=inside)
        new = tl.where(inside, new, 0.0)
        result, scale_back = _normalise(new, inside, WIDTH)
        tl.store(normal + seed * normal_stride + at, result.to(normal.dtype.element_ty), mask=inside)
        tl.store(rstd + seed * rstd_stride + row, scale_back, mask=row < rows)

    @triton.jit
    def _input_backward(
        residual, grad, normal, rstd, out, total, rows,
        residual_stride, grad_stride, normal_stride, rstd_stride, out_stride, total_stride,
        ADD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """See `input_backward`."""
        seed, row, _, at, inside = _tile_at(rows, WIDTH, BLOCK, TILE)
        g = tl.load(grad + seed * grad_stride + at, mask=inside, other=0.0).to(tl.float32)
        n = tl.load(normal + seed * normal_stride + at, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(rstd + seed * rstd_stride + row, mask=row < rows, other=0.0)
        g = _through_norm(g, n, r, inside, WIDTH)
        g += tl.load(residual + seed * residual_stride + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + seed * out_stride + at, g.to(out.dtype.element_ty), mask=inside)
        if ADD:
            place = total + seed * total_stride + at
            tl.store(place, tl.load(place, mask=inside, other=0.0) + g, mask=inside)

    @triton.jit
    def _boundary_backward(
        du, final, steps, scale, normal, rstd, scale_sum, out, rows, next_rows, step,
        du_stride, final_stride, steps_stride, normal_stride, rstd_stride, sum_stride, out_stride,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """See `boundary_backward`."""
        seed, row, column, at, inside = _tile_at(rows, WIDTH, BLOCK, TILE)
        by = tl.load(scale + seed * WIDTH + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        n = tl.load(normal + seed * normal_stride + at, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(rstd + seed * rstd_stride + row, mask=row < rows, other=0.0)
        goes_on = inside & (row[:, None] < next_rows)
        g = tl.load(du + seed * du_stride + at, mask=goes_on, other=0.0).to(tl.float32)
        place = scale_sum + seed * sum_stride + at
        tl.store(place, tl.load(place, mask=goes_on, other=0.0) + g * n, mask=goes_on)
        ends = tl.load(steps + seed * steps_stride + row, mask=row < rows, other=0) == step
        g = g * by[None, :]
        g += tl.load(final + seed * final_stride + at, mask=inside & ends[:, None], other=0.0).to(tl.float32)
        g = _through_norm(g, n, r, inside, WIDTH)
        tl.store(out + seed * out_stride + at, g.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _hold(
        flow, highest, total, places, longest, flow_stride, highest_stride, total_stride,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """See `hold`: a program takes one row, first its norm, then, if that is too large, all of it again."""
        row, seed = tl.program_id(0), tl.program_id(1).to(tl.int64)
        start, size = tl.load(places + 2 * row), tl.load(places + 2 * row + 1)
        column = tl.arange(0, BLOCK)
        flow += seed * flow_stride + start * WIDTH
        total += seed * total_stride + start * WIDTH
        squares = tl.zeros([TILE, BLOCK], tl.float32)
        for first in range(0, longest, TILE):
            at = first + tl.arange(0, TILE)
            inside = (at < size)[:, None] & (column < WIDTH)[None, :]
            g = tl.load(flow + at[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(tl.float32)
            squares += g * g
        norm = tl.sqrt(tl.sum(tl.sum(squares, axis=1), axis=0))
        most = tl.load(highest + seed * highest_stride + row)
        if norm > most:
            share = most / norm
            for first in range(0, longest, TILE):
                at = first + tl.arange(0, TILE)
                inside = (at < size)[:, None] & (column < WIDTH)[None, :]
                spot = at[:, None] * WIDTH + column[None, :]
                g = tl.load(flow + spot, mask=inside, other=0.0).to(tl.float32)
                t = tl.load(total + spot, mask=inside, other=0.0).to(tl.float32)
                tl.store(flow + spot, (g * share).to(flow.dtype.element_ty), mask=inside)
                tl.store(total + spot, (t + (share - 1.0) * g).to(total.dtype.element_ty), mask=inside)

    @triton.jit
    def _tanh(x):
        return 2.0 / (1.0 + tl.exp(-2.0 * x)) - 1.0

    @triton.jit
    def _gelu_forward(pre, bias, out, rows, width, pre_stride, out_stride, BLOCK: tl.constexpr):
        """See `gelu_forward`."""
        seed = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < rows * width
        x = tl.load(pre + seed * pre_stride + at, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(bias + seed * width + at % width, mask=inside, other=0.0).to(tl.float32)
        y = 0.5 * x * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
        tl.store(out + seed * out_stride + at, y.to(out.dtype.element_ty), mask=inside)

    @triton.jit
    def _gelu_backward(
        grad, pre, bias, out, rows, width, grad_stride, pre_stride, out_stride, BLOCK: tl.constexpr
    ):
        """See `gelu_backward`."""
        seed = tl.program_id(1).to(tl.int64)
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < rows * width
        x = tl.load(pre + seed * pre_stride + at, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(bias + seed * width + at % width, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(grad + seed * grad_stride + at, mask=inside, other=0.0).to(tl.float32)
        t = _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))
        slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3 * 0.044715 * x * x)
        tl.store(out + seed * out_stride + at, (g * slope).to(out.dtype.element_ty), mask=inside)

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
