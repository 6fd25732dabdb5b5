"""How many threads a small computation should use: one. Knows no model but its width.

A loop of a thousand steps on a narrow model is thousands of products that take microseconds each. Sharing those
costs a wait for the slowest thread every time, which on a busy machine is a time slice: measured with three other
processes on two cores, a compiled parity of 1,000 bits took 32 s with two threads and 7 s with one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from looped.model.config import ModelConfig

SMALL = 1 << 22  # multiplications of a product that one thread does before others would have woken up


@contextlib.contextmanager
def fitting_threads(config: ModelConfig, tokens: int) -> Iterator[None]:
    """One thread while products are small, as many as there were for others."""
    before = torch.get_num_threads()
    if before == 1 or tokens * config.width * 3 * config.width > SMALL:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
