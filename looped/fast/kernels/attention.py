"""Attention for short rows, one kernel each way.

A row of up to 128 positions fits one tile, so a program takes one head of one row: it reads queries, keys and values
straight from the joint product, forms all scores, and writes the output; backward it forms the scores again. Nothing
of size L² is stored, tiny heads (4 numbers in the paper's parity model) are padded inside the tile only, and a head's
band is just another mask. A packed row takes the largest row's tile, a half or a quarter of it, as it needs.

In fp32 a large tile of scores does not fit the registers, and a kernel that spills them waits for memory to be set
aside whenever another has run in between (measured: 53 ms a loop step of 1,927 rows of 68, of which 38 are that). It
takes some queries at a time.
"""

# mypy: ignore-errors
from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from looped.fast.layer_ops import Layer
from looped.fast.packing import Packing
from looped.model.config import ModelConfig

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without
    triton = None

LONGEST = 128  # positions that still fit one tile
WIDEST = 128  # numbers of a head that do
SOME = 32  # queries whose scores are formed at once where those of all would not fit
WIDTHS = (16, 32)  # of a narrow layer: one layer's matrices fit a program's registers
POSITIONS = 64  # of it that one program takes


def available() -> bool:
    """Whether Triton is installed."""
    return triton is not None


def knows(config: ModelConfig) -> bool:
    """Whether the kernels are there and compute this block: the paper's, if positions do not act on its attention."""
    acts = config.positions in ("rotary", "alibi")
    return available() and config.ordinary and not acts and config.head_size <= WIDEST


def suits(config: ModelConfig, qkv: Tensor) -> bool:
    """Whether `attend` can take these rows."""
    return knows(config) and qkv.is_cuda and qkv.shape[1] <= LONGEST and qkv.dtype != torch.float64


def attend(config: ModelConfig, qkv: Tensor) -> Tensor:
    """Causal attention of [N, L, 3D] queries, keys and values with each head's band; differentiable."""
    return _KernelAttention.apply(qkv.contiguous(), config)


class _KernelAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv: Tensor, config: ModelConfig) -> Tensor:
        n, size, width = qkv.shape
        out = qkv.new_empty(n, size, width // 3)
        attention_forward(config, Packing.padded(n, size), _one_seed(qkv), None, _one_seed(out))
        ctx.save_for_backward(qkv)
        ctx.config = config
        return out

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        (qkv,) = ctx.saved_tensors
        out, rows = torch.empty_like(qkv), Packing.padded(*qkv.shape[:2])
        given = _one_seed(grad.contiguous())
        attention_backward(ctx.config, rows, _one_seed(qkv), None, given, _one_seed(out))
        return out, None


def _one_seed(rows: Tensor) -> Tensor:
    return rows.view(1, -1, rows.shape[-1])


def attention_forward(
    config: ModelConfig, packing: Packing, qkv: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """Attention of packed rows; `bias` [S, 1, 3D] is added to the queries, keys and values."""
    _launch(_attention_forward, config, packing, qkv, bias, out)


def attention_backward(
    config: ModelConfig, packing: Packing, qkv: Tensor, bias: Tensor | None, grad: Tensor, out: Tensor
) -> None:
    """The gradient of `qkv` given that of the output."""
    _launch(_attention_backward, config, packing, qkv, bias, grad, out)


def _launch(
    kernel, config: ModelConfig, packing: Packing, qkv: Tensor, bias: Tensor | None, *others: Tensor
) -> None:
    rows, size = len(packing.sizes), packing.longest
    kernel[(len(qkv) * rows * config.heads,)](
        qkv, qkv if bias is None else bias, *others, _bands(config.head_bands, qkv.device),
        qkv if packing.even else packing.places(qkv.device), size, rows, config.heads,
        qkv.stride(0), *(other.stride(0) for other in others), PACKED=not packing.even,
        **_tile(kernel, config, size, qkv, bias),
    )  # fmt: skip


@cache
def _bands(bands: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(bands, dtype=torch.int32, device=device)


def _tile(kernel, config: ModelConfig, size: int, qkv: Tensor, bias: Tensor | None) -> dict[str, object]:
    block = max(16, triton.next_power_of_2(size))
    exact = qkv.dtype == torch.float32
    large = exact and (block == LONGEST or kernel is _attention_backward)
    return {
        "HEAD": config.head_size,
        "BLOCK": block,
        "BLOCK_HEAD": max(16, triton.next_power_of_2(config.head_size)),
        "QUERIES": min(SOME, block) if large else block,
        "BIAS": bias is not None,
        "SHARPEN": config.sharpen,
        "PRECISION": "ieee" if exact else "tf32",
        "num_warps": {16: 1, 32: 1, 64: 4, 128: 8}[block],
    }


# --- a whole layer in one kernel, for narrow blocks whose heads look one position back ----------------------------
#
# Such a block is little arithmetic between many passes over memory: queries, keys, values, scores and inner activations
# of a row of 2,000 positions, written and read again for each of 1,000 steps. Here a program takes a stretch of
# positions from the state to the state. It needs the keys and values of the position before each of its own, and makes
# them again from that position's state; nothing but the state is ever written.
#
# Only forward and in fp32: `layer_ops.apply_layer` is the definition, and a test holds the two equal.
def suits_narrow(config: ModelConfig, layer: Layer, h: Tensor) -> bool:
    """Whether `narrow_layer` can take this state: no gradients are asked for, and every head has a band of 2."""
    narrow = config.width in WIDTHS and config.head_bands == (2,) * config.heads
    fine = h.dtype == layer.qkv.dtype == torch.float32
    return knows(config) and h.is_cuda and fine and narrow and not torch.is_grad_enabled()


def narrow_layer(config: ModelConfig, layer: Layer, h: Tensor) -> Tensor:
    """The layer's output for states [S, B, L, D]."""
    seeds, rows, size, width = h.shape
    h, out = h.contiguous(), torch.empty_like(h, memory_format=torch.contiguous_format)
    matrices = [each.contiguous() for each in layer]
    blocks = triton.cdiv(rows * size, POSITIONS)
    _narrow_layer[(seeds * blocks,)](
        h, *matrices, out, rows * size, size, blocks,
        WIDTH=width, HEAD=config.head_size, INNER=width * config.expansion, POSITIONS=POSITIONS, num_warps=4,
    )  # fmt: skip
    return out


if triton is not None:

    @triton.jit
    def _row(places, row, rows, size, PACKED: tl.constexpr):
        """The seed of the row-th row of all seeds, where the row starts there, and its size."""
        seed, row = (row // rows).to(tl.int64), (row % rows).to(tl.int64)
        start = row * size
        if PACKED:
            start = tl.load(places + 2 * row).to(tl.int64)
            size = tl.load(places + 2 * row + 1)
        return seed, start, size

    @triton.jit
    def _scale(at, band, HEAD: tl.constexpr, SHARPEN: tl.constexpr):
        """What each query's scores are multiplied by."""
        scale = tl.full(at.shape, 1.0, tl.float32) / tl.sqrt(HEAD * 1.0)
        if SHARPEN:
            scale = tl.where(band == 0, scale * tl.log2(at + 2.0) / 4.0, scale)
        return scale

    @triton.jit
    def _load(place, at_bias, d, inside, HEAD: tl.constexpr, BIAS: tl.constexpr):
        """Queries, keys or values of one head, with their bias where it is still to be added."""
        x = tl.load(place, mask=inside, other=0.0)
        if BIAS:
            x += tl.load(at_bias, mask=d < HEAD, other=0.0)[None, :]
        return x

    @triton.jit
    def _share(q, k, at, band, scale, size, BLOCK: tl.constexpr, PRECISION: tl.constexpr):
        """Softmax over the keys that the queries at these places see."""
        keys = tl.arange(0, BLOCK)
        distance = at[:, None] - keys[None, :]
        seen = (distance >= 0) & ((band == 0) | (distance < band)) & (keys[None, :] < size)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale[:, None]
        scores = tl.where(seen, scores, -1.0e30)
        share = tl.exp(scores - tl.max(scores, axis=1)[:, None])
        share = tl.where(seen, share, 0.0)
        return share / tl.maximum(tl.sum(share, axis=1), 1e-30)[:, None]

    @triton.jit
    def _attention_forward(
        qkv, bias, out, bands, places, size, rows, heads, qkv_stride, out_stride,
        HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, QUERIES: tl.constexpr,
        BIAS: tl.constexpr, SHARPEN: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
    ):  # fmt: skip
        """One head of one row: scores, softmax, output."""
        pid = tl.program_id(0)
        head = pid % heads
        seed, start, size = _row(places, pid // heads, rows, size, PACKED)
        width = heads * HEAD
        qkv += seed * qkv_stride + start * 3 * width + head * HEAD
        bias += seed * 3 * width + head * HEAD
        out += seed * out_stride + start * width + head * HEAD
        band = tl.load(bands + head)
        if PACKED and BLOCK >= 64 and size <= BLOCK // 4:
            _forward_tile(
                qkv, bias, out, band, size, width,
                HEAD, BLOCK // 4, BLOCK_HEAD, QUERIES, BIAS, SHARPEN, PRECISION,
            )  # fmt: skip
        elif PACKED and BLOCK >= 32 and size <= BLOCK // 2:
            _forward_tile(
                qkv, bias, out, band, size, width,
                HEAD, BLOCK // 2, BLOCK_HEAD, QUERIES, BIAS, SHARPEN, PRECISION,
            )  # fmt: skip
        else:
            _forward_tile(
                qkv, bias, out, band, size, width,
                HEAD, BLOCK, BLOCK_HEAD, QUERIES, BIAS, SHARPEN, PRECISION,
            )  # fmt: skip

    @triton.jit
    def _forward_tile(
        qkv, bias, out, band, size, width,
        HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, QUERIES: tl.constexpr,
        BIAS: tl.constexpr, SHARPEN: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """The same for a row that fits a tile; every pointer at its head's first number."""
        PART: tl.constexpr = min(QUERIES, BLOCK)
        keys, d = tl.arange(0, BLOCK), tl.arange(0, BLOCK_HEAD)
        place = qkv + keys[:, None] * 3 * width + d[None, :]
        inside = (keys[:, None] < size) & (d[None, :] < HEAD)
        k = _load(place + width, bias + width + d, d, inside, HEAD, BIAS)
        v = _load(place + 2 * width, bias + 2 * width + d, d, inside, HEAD, BIAS)
        for first in range(0, BLOCK, PART):
            if first < size:
                at = first + tl.arange(0, PART)
                asked = (at[:, None] < size) & (d[None, :] < HEAD)
                q = _load(qkv + at[:, None] * 3 * width + d[None, :], bias + d, d, asked, HEAD, BIAS)
                share = _share(q, k, at, band, _scale(at, band, HEAD, SHARPEN), size, BLOCK, PRECISION)
                mixed = tl.dot(share.to(v.dtype), v, input_precision=PRECISION)
                tl.store(out + at[:, None] * width + d[None, :], mixed.to(v.dtype), mask=asked)

    @triton.jit
    def _attention_backward(
        qkv, bias, grad, out, bands, places, size, rows, heads, qkv_stride, grad_stride, out_stride,
        HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, QUERIES: tl.constexpr,
        BIAS: tl.constexpr, SHARPEN: tl.constexpr, PRECISION: tl.constexpr, PACKED: tl.constexpr,
    ):  # fmt: skip
        """One head of one row: the gradients of its queries, keys and values."""
        pid = tl.program_id(0)
        head = pid % heads
        seed, start, size = _row(places, pid // heads, rows, size, PACKED)
        width = heads * HEAD
        qkv += seed * qkv_stride + start * 3 * width + head * HEAD
        bias += seed * 3 * width + head * HEAD
        grad += seed * grad_stride + start * width + head * HEAD
        out += seed * out_stride + start * 3 * width + head * HEAD
        band = tl.load(bands + head)
        if PACKED and BLOCK >= 64 and size <= BLOCK // 4:
            _backward_tile(
                qkv, bias, grad, out, band, size, width,
                HEAD, BLOCK // 4, BLOCK_HEAD, QUERIES, BIAS, SHARPEN, PRECISION,
            )  # fmt: skip
        elif PACKED and BLOCK >= 32 and size <= BLOCK // 2:
            _backward_tile(
                qkv, bias, grad, out, band, size, width,
                HEAD, BLOCK // 2, BLOCK_HEAD, QUERIES, BIAS, SHARPEN, PRECISION,
            )  # fmt: skip
        else:
            _backward_tile(
                qkv, bias, grad, out, band, size, width,
                HEAD, BLOCK, BLOCK_HEAD, QUERIES, BIAS, SHARPEN, PRECISION,
            )  # fmt: skip

    @triton.jit
    def _backward_tile(
        qkv, bias, grad, out, band, size, width,
        HEAD: tl.constexpr, BLOCK: tl.constexpr, BLOCK_HEAD: tl.constexpr, QUERIES: tl.constexpr,
        BIAS: tl.constexpr, SHARPEN: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        """The same for a row that fits a tile; every pointer at its head's first number."""
        PART: tl.constexpr = min(QUERIES, BLOCK)
        keys, d = tl.arange(0, BLOCK), tl.arange(0, BLOCK_HEAD)
        spot = keys[:, None] * 3 * width + d[None, :]
        inside = (keys[:, None] < size) & (d[None, :] < HEAD)
        k = _load(qkv + spot + width, bias + width + d, d, inside, HEAD, BIAS)
        v = _load(qkv + spot + 2 * width, bias + 2 * width + d, d, inside, HEAD, BIAS)
        dk = tl.zeros((BLOCK, BLOCK_HEAD), tl.float32)
        dv = tl.zeros((BLOCK, BLOCK_HEAD), tl.float32)
        for first in range(0, BLOCK, PART):
            if first < size:
                at = first + tl.arange(0, PART)
                asked = (at[:, None] < size) & (d[None, :] < HEAD)
                own = at[:, None] * 3 * width + d[None, :]
                q = _load(qkv + own, bias + d, d, asked, HEAD, BIAS)
                g = tl.load(grad + at[:, None] * width + d[None, :], mask=asked, other=0.0)
                scale = _scale(at, band, HEAD, SHARPEN)
                share = _share(q, k, at, band, scale, size, BLOCK, PRECISION)
                dv += tl.dot(tl.trans(share.to(v.dtype)), g, input_precision=PRECISION)
                ds = tl.dot(g, tl.trans(v), input_precision=PRECISION)
                ds = share * (ds - tl.sum(ds * share, axis=1)[:, None]) * scale[:, None]
                ds = ds.to(v.dtype)
                dk += tl.dot(tl.trans(ds), q, input_precision=PRECISION)
                dq = tl.dot(ds, k, input_precision=PRECISION)
                tl.store(out + own, dq.to(v.dtype), mask=asked)
        tl.store(out + spot + width, dk.to(v.dtype), mask=inside)
        tl.store(out + spot + 2 * width, dv.to(v.dtype), mask=inside)

    @triton.jit
    def _normal(x, WIDTH: tl.constexpr):
        """Zero mean and unit variance."""
        centred = x - (tl.sum(x, axis=1) / WIDTH)[:, None]
        variance = tl.sum(centred * centred, axis=1) / WIDTH
        return centred * tl.rsqrt(variance + 1e-5)[:, None]

    @triton.jit
    def _times(x, matrix, bias, row, column, first, across):
        """x·W + b for the columns of W from `first` on."""
        weight = tl.load(matrix + row[:, None] * across + first + column[None, :])
        return tl.dot(x, weight, input_precision="tf32x3") + tl.load(bias + first + column)[None, :]

    @triton.jit
    def _narrow_layer(
        h, qkv, qkv_bias, out, out_bias, up, up_bias, down, down_bias, result, tokens, size, blocks,
        WIDTH: tl.constexpr, HEAD: tl.constexpr, INNER: tl.constexpr, POSITIONS: tl.constexpr,
    ):  # fmt: skip
        """A stretch of one seed's positions through the layer."""
        pid = tl.program_id(0)
        seed = (pid // blocks).to(tl.int64)
        at = (pid % blocks) * POSITIONS + tl.arange(0, POSITIONS)
        d = tl.arange(0, WIDTH)
        qkv += seed * 3 * WIDTH * WIDTH
        qkv_bias += seed * 3 * WIDTH
        place = seed * tokens * WIDTH + at[:, None] * WIDTH + d[None, :]
        inside = (at < tokens)[:, None]
        u = tl.load(h + place, mask=inside, other=0.0)
        earlier = tl.load(h + place - WIDTH, mask=inside & (at > 0)[:, None], other=0.0)
        n, m = _normal(u, WIDTH), _normal(earlier, WIDTH)
        q = _times(n, qkv, qkv_bias, d, d, 0, 3 * WIDTH)
        k = _times(n, qkv, qkv_bias, d, d, WIDTH, 3 * WIDTH)
        v = _times(n, qkv, qkv_bias, d, d, 2 * WIDTH, 3 * WIDTH)
        k_back = _times(m, qkv, qkv_bias, d, d, WIDTH, 3 * WIDTH)
        v_back = _times(m, qkv, qkv_bias, d, d, 2 * WIDTH, 3 * WIDTH)
        # A product with the heads' own blocks of ones sums each head and hands every entry of it the sum. Of two
        # scores only the difference matters.
        own_head = (d[:, None] // HEAD == d[None, :] // HEAD).to(tl.float32)
        nearer = tl.dot(q * (k - k_back), own_head, input_precision="tf32x3") / tl.sqrt(HEAD * 1.0)
        back = tl.where((at % size == 0)[:, None], 0.0, 1.0 / (1.0 + tl.exp(nearer)))
        mixed = v + back * (v_back - v)
        x = u + _times(mixed, out + seed * WIDTH * WIDTH, out_bias + seed * WIDTH, d, d, 0, WIDTH)
        n = _normal(x, WIDTH)
        x += tl.load(down_bias + seed * WIDTH + d)[None, :]
        for first in tl.static_range(0, INNER, WIDTH):
            inner = _times(n, up + seed * WIDTH * INNER, up_bias + seed * INNER, d, d, first, INNER)
            curved = 2 * 0.7978845608028654 * (inner + 0.044715 * inner * inner * inner)
            inner = inner / (1.0 + tl.exp(-curved))  # GELU by its tanh, written as a sigmoid
            weight = tl.load(down + seed * INNER * WIDTH + (first + d[:, None]) * WIDTH + d[None, :])
            x += tl.dot(inner, weight, input_precision="tf32x3")
        tl.store(result + place, x, mask=inside)
