from __future__ import annotations

import torch

from looped.explorer.app import StateCache
from looped.explorer.security import Limits

STATE = torch.zeros(4, 8)  # 128 bytes


def test_states_are_kept_in_order_and_found_again() -> None:
    kept = StateCache()
    for step in (1, 2, 3):
        kept.put(("m", "q"), step, STATE + step)
    assert float(kept.get(("m", "q"), 2)[0, 0]) == 2
    assert kept.get(("m", "q"), 0) is None
    assert kept.get(("m", "q"), 4) is None
    assert kept.get(("m", "other"), 1) is None


def test_a_run_that_starts_again_changes_nothing() -> None:
    kept = StateCache()
    kept.put(("m", "q"), 1, STATE)
    kept.put(("m", "q"), 1, STATE + 9)
    kept.put(("m", "q"), 5, STATE)
    assert float(kept.get(("m", "q"), 1)[0, 0]) == 0
    assert kept.size == 128


def test_memory_is_bounded_and_the_longest_unseen_goes_first() -> None:
    kept = StateCache(Limits(cache_bytes=3 * 128, cache_entry=2 * 128))
    for name in "abc":
        kept.put(("m", name), 1, STATE)
    kept.get(("m", "a"), 1)
    kept.put(("m", "d"), 1, STATE)
    assert kept.get(("m", "b"), 1) is None
    assert kept.get(("m", "a"), 1) is not None
    assert kept.size == 3 * 128


def test_a_run_that_is_too_large_is_not_kept() -> None:
    kept = StateCache(Limits(cache_bytes=10 * 128, cache_entry=2 * 128))
    for step in range(1, 9):
        kept.put(("m", "q"), step, STATE)
    assert kept.get(("m", "q"), 1) is None
    assert kept.size == 0
