"""States of the last runs, so that attention at a step need not be computed from the beginning.

A bounded memory: the run that was used longest ago goes first, and one too large is not cached at all. Several
threads may use it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor

from looped.explorer.security import LIMITS, Limits

Key = tuple[str, str]  # model and question
States = list[Float[Tensor, "L D"]]  # after step 1, 2, …


class StateCache:
    """The states of some runs, by model and question."""

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
