"""How threads are used: one for a small computation, one each for parcels that do not need each other.

A loop of a thousand steps on a narrow model is thousands of products that take microseconds each. Sharing those
costs a wait for the slowest thread every time, which on a busy machine is a time slice: measured with three other
processes on two cores, a compiled parity of 1,000 bits took 32 s with two threads and 7 s with one. Many parcels of
work are better shared than each of their products: threads that never wait for each other. Knows no model but its
width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from looped.model.config import ModelConfig

T = TypeVar("T")
R = TypeVar("R")
# Multiplications of a product of a third of a millisecond: waking others gains little, waiting for them may cost.
SMALL = 1 << 24


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


def side_by_side(action: Callable[[T], R], parcels: Sequence[T], device: torch.device) -> Iterator[R]:
    """What an action gives for each parcel, in order; on a CPU as many at a time as there are threads."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or len(parcels) == 1:
        yield from map(action, parcels)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield from pool.map(action, parcels)
    finally:
        torch.set_num_threads(threads)
