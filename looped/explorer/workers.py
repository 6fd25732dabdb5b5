"""A worker pool for short slices of computing, as many at a time as there are cores, first come, first served.

A long question is many slices, and other clients get theirs in between; so a hundred clients share the machine
evenly, and a short question never waits for the end of a long one. What takes a few milliseconds only has a lane of its
own and waits for no question at all. `StateCache` keeps what was computed, within bounds.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from looped.explorer.security import LIMITS, Limits

T = TypeVar("T")
MOST_WORKERS = 4  # each computes with one thread while others wait


class QueueFull(Exception):
    """Too many are waiting already."""


class WorkerPool:
    """Two queues, one of them before a few workers and one before its own."""

    def __init__(self, most_waiting: int) -> None:
        self._most = most_waiting
        self._waiting = 0
        workers = max(1, min(MOST_WORKERS, os.cpu_count() or 1))
        self._workers = ThreadPoolExecutor(workers, "explorer")  # first come, first served
        self._light = ThreadPoolExecutor(1, "explorer-light")

    @property
    def waiting(self) -> int:
        """How many have asked and not been served yet, the one being served included."""
        return self._waiting

    async def take(self, work: Callable[[], T], *, new: bool = False, light: bool = False) -> T:
        """Do some work when its turn has come; new work gets `Busy` at once where the queue is full.

        Light work, of a few milliseconds, has its own queue.

        A cancelled client leaves the queue; work that has begun is finished, its result dropped.
        """
        if new and self._waiting >= self._most:
            raise QueueFull
        self._waiting += 1
        try:
            worker = self._light if light else self._workers
            return await asyncio.get_running_loop().run_in_executor(worker, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let the workers go."""
        for worker in (self._workers, self._light):
            worker.shutdown(wait=False, cancel_futures=True)


# --- states of the last runs --------------------------------------------------------------------------------


Key = tuple[str, str]  # model and question
States = list[Float[Tensor, "L D"]]  # after step 1, 2, …


class StateCache:
    """The states of some runs, by model and question: attention at a step need not start from the beginning.

    The run that was used longest ago goes first, and one too large is not kept at all. Several threads may use it.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._runs: OrderedDict[Key, States] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0  # bytes

    def put(self, key: Key, step: int, state: Float[Tensor, "L D"]) -> None:
        """Keep the state after a step, if those before it are here; others are forgotten where room is short."""
        with self._lock:
            states = self._runs.setdefault(key, [])
            if step != len(states) + 1:
                return
            states.append(state)
            self.size += _size(state)
            self._runs.move_to_end(key)
            if len(states) * _size(state) > self._limits.cache_entry:
                self._drop(key)
            while self.size > self._limits.cache_bytes:
                self._drop(next(iter(self._runs)))

    def get(self, key: Key, step: int) -> Float[Tensor, "L D"] | None:
        """The state after a step, if it is known."""
        with self._lock:
            states = self._runs.get(key, [])
            if not 1 <= step <= len(states):
                return None
            self._runs.move_to_end(key)
            return states[step - 1]

    def _drop(self, key: Key) -> None:
        self.size -= sum(map(_size, self._runs.pop(key)))


def _size(state: Tensor) -> int:
    return state.numel() * state.element_size()
