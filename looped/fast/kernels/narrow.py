"""A whole layer in one kernel, for narrow blocks whose heads look one position back.

Such a block is little arithmetic between many passes over memory: queries, keys, values, scores and inner activations
of a row of 2,000 positions, written and read again for each of 1,000 steps. Here a program takes a stretch of
positions from the state to the state. It needs the keys and values of the position before each of its own, and makes
them again from that position's state; nothing but the state is ever written.

Only forward and in fp32: `layer_ops.apply_layer` is the definition, and a test holds the two equal.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
from torch import Tensor

from looped.fast.layer_ops import Layer
from looped.model.config import ModelConfig

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of torch comes without
    triton = None

WIDTHS = (16, 32)  # one layer's matrices fit a program's registers
POSITIONS = 64  # of one program


def suits_narrow(config: ModelConfig, layer: Layer, h: Tensor) -> bool:
    """Whether `narrow_layer` can take this state: no gradients are asked for, and every head has a band of 2."""
    looks_back = config.head_bands == (2,) * config.heads and config.positions not in ("rotary", "alibi")
    narrow = config.width in WIDTHS and config.ordinary and looks_back
    fine = h.dtype == layer.qkv.dtype == torch.float32
    return triton is not None and h.is_cuda and fine and narrow and not torch.is_grad_enabled()


def narrow_layer(config: ModelConfig, layer: Layer, h: Tensor) -> Tensor:
    """The layer's output for states [S, B, L, D]."""
    seeds, rows, size, width = h.shape
    h, out = h.contiguous(), torch.empty_like(h, memory_format=torch.contiguous_format)
    matrices = [each.contiguous() for pair in layer.pairs() for each in pair]
    blocks = triton.cdiv(rows * size, POSITIONS)
    _narrow_layer[(seeds * blocks,)](
        h, *matrices, out, rows * size, size, blocks,
        WIDTH=width, HEAD=config.head_size, INNER=width * config.expansion, POSITIONS=POSITIONS, num_warps=4,
    )  # fmt: skip
    return out


if triton is not None:

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
