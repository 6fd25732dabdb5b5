"""Bytes are counted as they live and die; precisions have names; a rate is a rate."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from benchmarks import timing
from looped.errors import InputError
from looped.fast import onednn

CPU = torch.device("cpu")
KB = 256  # numbers of four bytes


def chain(keep: bool) -> torch.Tensor:
    x = torch.zeros(KB)
    kept = []
    for _ in range(10):
        x = x + 1
        kept.append(x)
        if not keep:
            kept.clear()
    return x


def backward() -> None:
    w = torch.randn(KB, requires_grad=True)
    h = w
    for _ in range(8):
        h = h.tanh()  # keeps its output for the way back
    h.sum().backward()


@pytest.mark.parametrize(
    ("action", "least", "most"),
    [
        (lambda: torch.zeros(KB), 1, 1),
        (lambda: torch.zeros(KB).view(2, -1)[0], 1, 1),  # views weigh nothing
        (lambda: torch.zeros(KB).add_(1).mul_(2), 1, 1),  # nor does what is done in place
        (lambda: chain(keep=False), 2, 2),
        (lambda: chain(keep=True), 10, 10),
        (lambda: [torch.zeros(KB) for _ in range(3)] and torch.zeros(1), 3, 3.1),
        (backward, 9, 12),
    ],
)
def test_peak_is_what_lives_at_once(action: Callable[[], object], least: float, most: float) -> None:
    _, peak = timing.peak_bytes(action, CPU)
    assert least * 1024 <= peak <= most * 1024


def test_what_was_there_before_does_not_count() -> None:
    before = torch.zeros(100 * KB)
    result, peak = timing.peak_bytes(lambda: before[:KB] + 1, CPU)
    assert result.shape == (KB,)
    assert peak == 1024


@pytest.mark.parametrize(
    ("name", "device", "expected"),
    [
        ("auto", "cpu", torch.float32),
        ("auto", "cuda", torch.bfloat16),
        ("bf16", "cpu", torch.bfloat16),
        ("fp32", "cuda", torch.float32),
    ],
)
def test_precisions_by_name(name: str, device: str, expected: torch.dtype) -> None:
    assert timing.precision_of(name, torch.device(device)) == expected
    assert timing.PRECISIONS[timing.precision_name(expected)] == expected


def test_an_unknown_precision_is_named() -> None:
    with pytest.raises(InputError, match="unknown precision 'fp8'; there are auto, fp32, bf16"):
        timing.precision_of("fp8", CPU)


def test_a_reading_is_the_mean_of_its_calls_and_the_median_of_its_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter([0.0, 6.0, 10.0, 14.0, 20.0, 120.0])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    calls: list[int] = []
    assert timing.median_seconds(lambda: calls.append(1), CPU, rounds=3, times=2) == 3.0
    assert len(calls) == 1 + 3 * 2


@pytest.mark.parametrize(("both", "rounds"), [(False, 4), (True, 2)])
def test_a_ceiling_is_the_best_of_its_rounds_and_libraries(
    both: bool, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([0.0, 8.0, 10.0, 14.0, 20.0, 120.0, 130.0, 150.0])  # 2, 1, 25 and 5 s a product
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(onednn, "available", lambda: both)
    assert timing.ceiling_tflops(CPU, torch.float32, rounds) == pytest.approx(2 * 1024**3 / 1e12)
    assert next(ticks, None) is None
