"""Kernels against their plain twins: attention of rows of every size a tile can have, and AdamW.

What else there is of them is held to its meaning by the passes that are made of it: `test_forward.py`,
`tests/training/test_fused.py` and `test_folding.py`.
"""

from __future__ import annotations

import fast_reference
import pytest
import torch
from torch import Tensor
from ways import KERNELS, device_of

from looped.fast import kernels
from looped.fast.packing import Packing
from looped.model import ModelConfig

MODELS = {
    "heads of four": ModelConfig(vocab=5, width=16, heads=4),
    "bands, sharpened": ModelConfig(vocab=5, width=32, heads=4, bands=(2, 3), sharpen=True),
    "wide heads": ModelConfig(vocab=5, width=80, heads=2),
}
SIZES = {
    "one position": (1, 1),
    "a small tile": (7, 7),
    "a tile filled": (32, 32),
    "a large tile": (68,),
    "the largest": (128,),
    "small rows": (30, 20, 9),
    "all tiles": (128, 65, 64, 33, 5, 1),
}
TOLERANCE = {
    torch.float32: 1e-5,
    torch.float16: 5e-3,
}  # the interpreter knows no bf16; fp16 goes the same way


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.parametrize(
    ("dtype", "biased"),
    [
        (torch.float32, False),
        (torch.float16, True),
        pytest.param(torch.float32, True, marks=pytest.mark.slow),
        pytest.param(torch.float16, False, marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_attention_forward_and_backward(
    model: ModelConfig, sizes: tuple[int, ...], biased: bool, dtype: torch.dtype, way: str
) -> None:
    packing, width = Packing(sizes), model.width
    generator = torch.Generator().manual_seed(3)

    def drawn(rows: int, columns: int) -> Tensor:
        return torch.randn(2, rows, columns, generator=generator).to(device_of(way), dtype)

    positions = packing.ends[-1]
    qkv, grad = drawn(positions, 3 * width), drawn(positions, width)
    bias = drawn(1, 3 * width) if biased else None
    found, right = [], []
    for ops, kept, precision in ((kernels, found, dtype), (fast_reference, right, torch.float32)):
        given = [None if t is None else t.to(precision) for t in (qkv, bias)]
        mixed, back = (torch.full_like(t, float("nan"), dtype=precision) for t in (grad, qkv))
        ops.attention_forward(model, packing, *given, mixed)
        ops.attention_backward(model, packing, *given, grad.to(precision), back)
        kept += [mixed, back]
    for mine, expected in zip(found, right, strict=True):
        assert mine.isfinite().all(), "what nobody writes to shows"
        assert (mine.float() - expected).norm() <= TOLERANCE[dtype] * expected.norm()


@pytest.mark.parametrize("way", KERNELS)
@pytest.mark.parametrize("averaged", [False, True], ids=["last", "averaged"])
@pytest.mark.parametrize("size", [50, 2048, 5000])
def test_adamw(size: int, averaged: bool, way: str) -> None:
    generator = torch.Generator().manual_seed(4)
    weights, grad, mean, average = (torch.randn(3, size, generator=generator) for _ in range(4))
    square = torch.rand(3, size, generator=generator)
    grad[1, 7] = float("nan")  # of a seed that has been stopped
    rates = torch.tensor(
        [[1e-2, 0.2, 0.1, 0.5, 1.0], [0.0, 0.2, 0.1, float("nan"), 0.0], [1e-3, 0.9, 0.5, 1.0, 1.0]]
    )
    ended = []
    for ops in (kernels, fast_reference):
        state = [t.clone().to(device_of(way)) for t in (weights, mean, square, average)]
        ops.adamw(
            state[0], grad.to(device_of(way)), state[1], state[2], state[3] if averaged else None,
            rates.to(device_of(way)), (0.9, 0.98), 0.1, 1e-8, 0.99,
        )  # fmt: skip
        ended.append(state)
    for mine, expected in zip(*ended, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(ended[0][0][1].cpu(), weights[1]), "a stopped seed stays where it was"
    assert torch.equal(ended[0][3].cpu(), average) != averaged
