"""`looped bench`: what it says of a name that it does not know."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import BENCHES

Cli = Callable[..., tuple[int, str, str]]


def test_an_unknown_bench(cli: Cli) -> None:
    code, out, err = cli("bench", "nothing")
    assert (code, out) == (2, "")
    assert err == f"looped: unknown bench 'nothing'; the benches are {', '.join(BENCHES)}\n"
