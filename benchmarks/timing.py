"""How time, memory and the device's own limit are measured, on any device.

Time is the median of repeated, synchronised readings after a warm-up. Memory is the peak of the bytes of allocated
tensors: on CUDA the allocator counts them, on the CPU `Ledger` does, tensor by tensor. The ceiling is the largest
matrix product rate seen on this device, in the same precision and minute.
"""

from __future__ import annotations

import gc
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from looped.errors import InputError
from looped.fast import onednn

T = TypeVar("T")

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def precision_of(name: str, device: torch.device) -> torch.dtype:
    """The precision a person means by `auto`, `fp32` or `bf16`."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in PRECISIONS:
        raise InputError(f"unknown precision {name[:20]!r}; there are auto, {', '.join(PRECISIONS)}")
    return PRECISIONS[name]


def precision_name(precision: torch.dtype) -> str:
    """`bf16` for torch.bfloat16."""
    return next(name for name, dtype in PRECISIONS.items() if dtype == precision)


# --- time --------------------------------------------------------------------------------------------------


def synchronise(device: torch.device) -> None:
    """Wait until the device has done all it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(action: Callable[[], object], device: torch.device, times: int = 1) -> float:
    """How long one call takes, on average over `times` calls in a row."""
    synchronise(device)
    start = time.perf_counter()
    for _ in range(times):
        action()
    synchronise(device)
    return (time.perf_counter() - start) / times


def median_seconds(action: Callable[[], object], device: torch.device, rounds: int, times: int = 1) -> float:
    """The median of `rounds` readings of `seconds`, after one call to warm up."""
    action()
    return statistics.median(seconds(action, device, times) for _ in range(rounds))


# --- memory ------------------------------------------------------------------------------------------------


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of every tensor made while it is on, from its birth to its death."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation and note the storages it made."""
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._enter(tensor.untyped_storage(), args)
        return out

    def _enter(self, storage: torch.UntypedStorage, given: tuple[Any, ...]) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        if place in self._seen or not size or any(_holds(x, place) for x in tree_leaves(given)):
            return  # a view, or changed in place
        self._seen.add(place)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._leave, place, size).atexit = False

    def _leave(self, place: int, size: int) -> None:
        self._seen.discard(place)
        self.now -= size


def _holds(value: object, place: int) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == place


def peak_bytes(action: Callable[[], T], device: torch.device) -> tuple[T, int]:
    """What an action gives, and the most bytes of tensors that it had alive at once, beyond those before it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = action()
        synchronise(device)
        return result, torch.cuda.max_memory_allocated(device) - before
    with Ledger() as ledger:
        result = action()
    return result, ledger.peak


# --- the ceiling -------------------------------------------------------------------------------------------


def ceiling_tflops(device: torch.device, precision: torch.dtype, rounds: int = 10) -> float:
    """The best rate of one large square matrix product of random numbers, in 10¹² operations per second.

    The best of all rounds, and of both libraries where the fast engine has a choice: what the neighbours take away is
    no part of a ceiling.
    """
    size = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(size, size, device=device, dtype=torch.float32).to(precision) for _ in range(2))
    ways = [partial(torch.matmul, a, b), partial(onednn.multiply, a[None], b[None])]
    ways = ways if onednn.suits(a[None], b[None]) else ways[:1]
    for way in ways:
        way()  # warms up
    fastest = min(seconds(way, device, times=4) for _ in range(rounds) for way in ways)
    return float(2 * size**3 / fastest / 1e12)
