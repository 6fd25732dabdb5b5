"""The ways a hand-written kernel can run, for tests that hold it to its meaning.

| way         | what runs                                                     | where              |
|-------------|---------------------------------------------------------------|--------------------|
| plain       | the kernel's twin in plain PyTorch (`fast_reference.py`)      | anywhere           |
| interpreted | the kernel itself, by Triton's interpreter (see `conftest.py`) | without a GPU      |
| cuda        | the kernel itself, compiled                                    | on a GPU           |

The interpreter knows no bf16 and takes a thousand times as long: rows are short there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import fast_reference
import pytest
import torch

from looped.fast import kernels

GPU = torch.cuda.is_available() and kernels.available()
NEEDS_GPU = pytest.mark.skipif(not GPU, reason="needs a GPU and Triton")
INTERPRETED = pytest.param(
    "interpreted", marks=pytest.mark.skipif(GPU or not kernels.available(), reason="needs Triton, and no GPU")
)
CUDA = pytest.param("cuda", marks=NEEDS_GPU)

WAYS = ["plain", INTERPRETED, CUDA]
KERNELS = [INTERPRETED, CUDA]


def cases_and_ways(cases: Iterable[str], quick: Container[str]) -> list[Any]:
    """Every case by every way; the interpreter takes `quick` cases alone where slow tests are left out."""
    return [
        pytest.param(case, *way.values, marks=[*way.marks, *([] if case in quick else [pytest.mark.slow])])
        if way is INTERPRETED
        else pytest.param(case, *way.values, marks=way.marks)
        for case in cases
        for way in (pytest.param("plain"), INTERPRETED, CUDA)
    ]


def device_of(way: str) -> str:
    """Where tensors have to be."""
    return "cuda" if way == "cuda" else "cpu"


def ops_of(way: str) -> Any:
    """What has the functions."""
    return fast_reference if way == "plain" else kernels
