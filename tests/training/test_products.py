"""Matrix products in bf16 on the CPU: another precision, the same training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from looped.fast import attention
from looped.fast.engine import Engine
from looped.model import ModelConfig
from looped.training.config import TrainConfig

MakeConfig = Callable[..., TrainConfig]


@pytest.mark.parametrize(
    ("products", "device", "expected"),
    [
        ("auto", "cpu", torch.float32),
        ("fp32", "cpu", torch.float32),
        ("bf16", "cpu", torch.bfloat16),
    ],
)
def test_the_configuration_decides(
    tiny: MakeConfig, products: str, device: str, expected: torch.dtype
) -> None:
    assert Engine(tiny(products=products), device).precision == expected
    assert Engine(tiny(products=products), device, precision=torch.float64).precision == torch.float64


def test_losses_stay_close_and_are_not_the_same(tiny: MakeConfig) -> None:
    wide, narrow = (Engine(tiny(products=products, interval=3)) for products in ("fp32", "bf16"))
    apart = torch.stack([(wide.step().loss - narrow.step().loss).abs() for _ in range(40)])
    assert 0 < apart.max() < 0.02


@pytest.mark.parametrize("bands", [(), (2, 2), (2,)])
def test_bf16_rows_attend_in_fp32_on_the_cpu(bands: tuple[int, ...]) -> None:
    config = ModelConfig(vocab=5, heads=2, width=8, bands=bands)
    rows = torch.randn(3, 10, 24).bfloat16()
    out = attention.attend(config, rows)
    assert torch.equal(out, attention.attend(config, rows.float()).bfloat16())
