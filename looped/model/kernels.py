"""Triton kernels for CUDA: attention for short rows, norms with what stands next to them, GELU with its bias.

A row of up to 128 positions fits one tile, so an attention program takes one head of one row: it reads queries, keys
and values straight from the joint product, forms all scores, and writes the output; backward it forms the scores
again. Nothing of size L² is stored, tiny heads (4 numbers in the paper's parity model) are padded inside the tile
only, and a head's band is just another mask.

Every tensor is [S, rows, width] with contiguous rows and any stride between seeds, so that the pieces of a larger
buffer can be read and written in place. `fused.py` in training says what each one means, in plain PyTorch.
"""

# mypy: ignore-errors
from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from looped.model.config import ModelConfig

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without
    triton = None

LONGEST = 128  # positions that still fit one tile
ROWS = 4  # rows of a norm's tile
WIDE = 2048  # numbers of an element-wise tile


def available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


def suits(config: ModelConfig, qkv: Tensor) -> bool:
    """Whether `attend` can take these rows."""
    short = qkv.shape[1] <= LONGEST and config.head_size <= 128
    known = config.ordinary and qkv.dtype != torch.float64
    return available() and qkv.is_cuda and short and known and config.positions not in ("rotary", "alibi")


def attend(config: ModelConfig, qkv: Tensor) -> Tensor:
    """Causal attention of [N, L, 3D] queries, keys and values with each head's band; differentiable."""
    return _Attention.apply(qkv.contiguous(), config)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv: Tensor, config: ModelConfig) -> Tensor:
        n, size, width = qkv.shape
        out = qkv.new_empty(n, size, width // 3)
        attention_forward(config, size, _one_seed(qkv), None, _one_seed(out))
        ctx.save_for_backward(qkv)
        ctx.config = config
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (qkv,) = ctx.saved_tensors
        out = torch.empty_like(qkv)
        size = qkv.shape[1]
        attention_backward(
            ctx.config, size, _one_seed(qkv), None, _one_seed(grad.contiguous()), _one_seed(out)
        )
        return out, None


def _one_seed(rows: Tensor) -> Tensor:
    return rows.view(1, -1, rows.shape[-1])


@cache
def _bands(bands: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(bands, dtype=torch.int32, device=device)


def attention_forward(config: ModelConfig, size: int, qkv: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Attention of rows of `size` positions; `bias` [S, 1, 3D] is added to the queries, keys and values."""
    s, tokens, _ = qkv.shape
    rows = tokens // size
    _attention_forward[(s * rows * config.heads,)](
        qkv, qkv if bias is None else bias, out, _bands(config.head_bands, qkv.device),
        size, rows, config.heads, qkv.stride(0), out.stride(0), **_attention_tile(config, size, qkv, bias),
    )  # fmt: skip


def attention_backward(
    config: ModelConfig, size: int, qkv: Tensor, bias: Tensor | None, grad: Tensor, out: Tensor
) -> None:
    """The gradient of `qkv` given that of the output."""
    s, tokens, _ = qkv.shape
    rows = tokens // size
    _attention_backward[(s * rows * config.heads,)](
        qkv, qkv if bias is None else bias, grad, out, _bands(config.head_bands, qkv.device),
        size, rows, config.heads, qkv.stride(0), grad.stride(0), out.stride(0),
        **_attention_tile(config, size, qkv, bias),
    )  # fmt: skip


def _attention_tile(config: ModelConfig, size: int, qkv: Tensor, bias: Tensor | None) -> dict[str, object]:
    block = max(16, triton.next_power_of_2(size))
    return {
        "HEAD": config.head_size,
        "BLOCK": block,
        "BLOCK_HEAD": max(16, triton.next_power_of_2(config.head_size)),
        "BIAS": bias is not None,
        "SHARPEN": config.sharpen,
        "PRECISION": "ieee" if qkv.dtype == torch.float32 else "tf32",
        "num_warps": {16: 1, 32: 1, 64: 4, 128: 8}[block],
    }


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
    _norm_backward[_grid(out)](
        residual, grad, normal, rstd, out, out.shape[1],
        residual.stride(0), grad.stride(0), normal.stride(0), rstd.stride(0), out.stride(0), **_norm_tile(out),
    )  # fmt: skip


def boundary_backward(
    du: Tensor | None, final: Tensor, steps: Tensor, step: int, size: int,
    scale: Tensor, normal: Tensor, rstd: Tensor, scale_sum: Tensor, out: Tensor,
) -> None:  # fmt: skip
    """Between two loop steps: out ← gradient before the final norm of `step`, from the next step and the loss."""
    given = final if du is None else du
    _boundary_backward[_grid(out)](
        given, final, steps, scale, normal, rstd, scale_sum, out, out.shape[1], 0 if du is None else du.shape[1],
        step, size, given.stride(0), final.stride(0), steps.stride(0), normal.stride(0), rstd.stride(0),
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


def gelu_forward(pre: Tensor, bias: Tensor, out: Tensor) -> None:
    """out ← gelu(pre + bias)."""
    _gelu_forward[_wide_grid(pre)](
        pre, bias, out, pre.shape[1], pre.shape[2], pre.stride(0), out.stride(0), BLOCK=WIDE, num_warps=8
    )


def gelu_backward(grad: Tensor, pre: Tensor, bias: Tensor, out: Tensor) -> None:
    """out ← grad · gelu'(pre + bias)."""
    _gelu_backward[_wide_grid(pre)](
        grad, pre, bias, out, pre.shape[1], pre.shape[2],
        grad.stride(0), pre.stride(0), out.stride(0), BLOCK=WIDE, num_warps=8,
    )  # fmt: skip


def adamw(
    weights: Tensor, grad: Tensor, mean: Tensor, square: Tensor, average: Tensor | None,
    rates: Tensor, betas: tuple[float, float], decay: float, epsilon: float, ema: float,
) -> None:  # fmt: skip
    """One AdamW step in place, and the weights' average; `rates` [S, 5]: see `optimizer.update`."""
    s, size = weights.shape
    _adamw[(-(-size // WIDE), s)](
        weights, grad, mean, square, weights if average is None else average, rates, size,
        B1=betas[0], B2=betas[1], DECAY=decay, EPSILON=epsilon, EMA=ema if average is not None else 0.0,
        BLOCK=WIDE, num_warps=8,
    )  # fmt: skip


def _grid(rows: Tensor) -> tuple[int, int]:
    return -(-rows.shape[1] // ROWS), rows.shape[0]


def _wide_grid(rows: Tensor) -> tuple[int, int]:
    return -(-rows.shape[1] * rows.shape[2] // WIDE), rows.shape[0]


def _norm_tile(rows: Tensor) -> dict[str, object]:
    width = rows.shape[2]
    return {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "TILE": ROWS, "num_warps": 4}


if triton is not None:

    @triton.jit
    def _scale(at, band, HEAD: tl.constexpr, SHARPEN: tl.constexpr):
        """What each query's scores are multiplied by."""
        scale = tl.full(at.shape, 1.0, tl.float32) / tl.sqrt(HEAD * 1.0)
        if SHARPEN:
            scale = tl.where(band == 0, scale * tl.log2(at + 2.0) / 4.0, scale)
        return scale

    @triton.jit
    def _share(q, k, band, scale, size, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
        """Softmax over the keys each query sees."""
        at = tl.arange(0, BLOCK)
        distance = at[:, None] - at[None, :]
        seen = (distance >= 0) & ((band == 0) | (distance < band)) & (at[None, :] < size)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale[:, None]
        scores = tl.where(seen, scores, -1.0e30)
        share = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        share = tl.where(seen, share, 0.0)
        return share / tl.maximum(tl.sum(share, axis=1), 1e-30)[:, None]

    @triton.jit
    def _attention_forward(
        qkv, bias, out, bands, size, rows, heads, qkv_stride, out_stride,
        HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, BIAS: tl.constexpr,
        SHARPEN: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """One head of one row: scores, softmax, output."""
        pid = tl.program_id(0)
        head, row = pid % heads, pid // heads
        seed, row = (row // rows).to(tl.int64), (row % rows).to(tl.int64)
        width = heads * HEAD
        at, d = tl.arange(0, BLOCK), tl.arange(0, BLOCK_HEAD)
        inside = (at[:, None] < size) & (d[None, :] < HEAD)
        place = qkv + seed * qkv_stride + (row * size + at[:, None]) * 3 * width + head * HEAD + d[None, :]
        q = tl.load(place, mask=inside, other=0.0)
        k = tl.load(place + width, mask=inside, other=0.0)
        v = tl.load(place + 2 * width, mask=inside, other=0.0)
        if BIAS:
            at_bias = bias + seed * 3 * width + head * HEAD + d
            q += tl.load(at_bias, mask=d < HEAD, other=0.0)[None, :]
            k += tl.load(at_bias + width, mask=d < HEAD, other=0.0)[None, :]
            v += tl.load(at_bias + 2 * width, mask=d < HEAD, other=0.0)[None, :]
        band = tl.load(bands + head)
        scale = _scale(at, band, HEAD, SHARPEN)
        share = _share(q, k, band, scale, size, BLOCK, PRECISION)
        mixed = tl.dot(share.to(v.dtype), v, input_precision=PRECISION)
        place = out + seed * out_stride + (row * size + at[:, None]) * width + head * HEAD + d[None, :]
        tl.store(place, mixed.to(v.dtype), mask=inside)

    @triton.jit
    def _attention_backward(
        qkv, bias, grad, out, bands, size, rows, heads, qkv_stride, grad_stride, out_stride,
        HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, BIAS: tl.constexpr,
        SHARPEN: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """One head of one row: the gradients of its queries, keys and values."""
        pid = tl.program_id(0)
        head, row = pid % heads, pid // heads
        seed, row = (row // rows).to(tl.int64), (row % rows).to(tl.int64)
        width = heads * HEAD
        at, d = tl.arange(0, BLOCK), tl.arange(0, BLOCK_HEAD)
        inside = (at[:, None] < size) & (d[None, :] < HEAD)
        spot = (row * size + at[:, None]) * 3 * width + head * HEAD + d[None, :]
        place = qkv + seed * qkv_stride + spot
        q = tl.load(place, mask=inside, other=0.0)
        k = tl.load(place + width, mask=inside, other=0.0)
        v = tl.load(place + 2 * width, mask=inside, other=0.0)
        if BIAS:
            at_bias = bias + seed * 3 * width + head * HEAD + d
            q += tl.load(at_bias, mask=d < HEAD, other=0.0)[None, :]
            k += tl.load(at_bias + width, mask=d < HEAD, other=0.0)[None, :]
            v += tl.load(at_bias + 2 * width, mask=d < HEAD, other=0.0)[None, :]
        at_grad = grad + seed * grad_stride + (row * size + at[:, None]) * width + head * HEAD + d[None, :]
        g = tl.load(at_grad, mask=inside, other=0.0)
        band = tl.load(bands + head)
        scale = _scale(at, band, HEAD, SHARPEN)
        share = _share(q, k, band, scale, size, BLOCK, PRECISION)
        dv = tl.dot(tl.trans(share.to(v.dtype)), g, input_precision=PRECISION)
        ds = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        ds = share * (ds - tl.sum(ds * share, axis=1)[:, None]) * scale[:, None]
        ds = ds.to(v.dtype)
        dq = tl.dot(ds, k, input_precision=PRECISION)
        dk = tl.dot(tl.trans(ds), q, input_precision=PRECISION)
        place = out + seed * out_stride + spot
        tl.store(place, dq.to(v.dtype), mask=inside)
        tl.store(place + width, dk.to(v.dtype), mask=inside)
        tl.store(place + 2 * width, dv.to(v.dtype), mask=inside)

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
        kept = h.to(start.dtype.element_ty)
        tl.store(start + seed * start_stride + at, kept, mask=inside)
        h = tl.where(inside, kept.to(tl.float32), 0.0)
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
        kept = new.to(normal.dtype.element_ty)
        if KEEP:
            tl.store(out + seed * out_stride + at, kept, mask=inside)
        new = tl.where(inside, kept.to(tl.float32), 0.0)
        result, scale_back = _normalise(new, inside, WIDTH)
        tl.store(normal + seed * normal_stride + at, result.to(normal.dtype.element_ty), mask=inside)
        tl.store(rstd + seed * rstd_stride + row, scale_back, mask=row < rows)

    @triton.jit
    def _norm_backward(
        residual, grad, normal, rstd, out, rows,
        residual_stride, grad_stride, normal_stride, rstd_stride, out_stride,
        WIDTH: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    ):  # fmt: skip
        """See `norm_backward`."""
        seed, row, _, at, inside = _tile_at(rows, WIDTH, BLOCK, TILE)
        g = tl.load(grad + seed * grad_stride + at, mask=inside, other=0.0).to(tl.float32)
        n = tl.load(normal + seed * normal_stride + at, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(rstd + seed * rstd_stride + row, mask=row < rows, other=0.0)
        g = _through_norm(g, n, r, inside, WIDTH)
        g += tl.load(residual + seed * residual_stride + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + seed * out_stride + at, g.to(out.dtype.element_ty), mask=inside)

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
        du, final, steps, scale, normal, rstd, scale_sum, out, rows, next_rows, step, size,
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
        ends = tl.load(steps + seed * steps_stride + row // size, mask=row < rows, other=0) == step
        g = g * by[None, :]
        g += tl.load(final + seed * final_stride + at, mask=inside & ends[:, None], other=0.0).to(tl.float32)
        g = _through_norm(g, n, r, inside, WIDTH)
        tl.store(out + seed * out_stride + at, g.to(out.dtype.element_ty), mask=inside)

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
