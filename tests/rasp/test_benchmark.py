"""`looped bench rasp`: both sides measured in one run, equal results."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import rasp_operations as bench
from looped.errors import InputError
from looped.rasp import seq

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same benchmark on short rows: this file does not test speed."""
    monkeypatch.setattr(bench.measure, "__defaults__", (16, 0, 1))


def test_json(cli: Cli) -> None:
    code, out, _ = cli("bench", "rasp", "--json")
    fact = json.loads(out)
    assert code == 0
    assert (fact["bench"], fact["equal"], fact["n"]) == ("rasp", True, 16)
    assert len(fact["operations"]) == len(bench.OPERATIONS)
    assert fact["speedup"] == pytest.approx(fact["plain_seconds"] / fact["ours_seconds"])


def test_a_table(cli: Cli) -> None:
    code, out, _ = cli("bench", "rasp")
    assert code == 0
    assert "kqv, mean" in out
    assert out.splitlines()[-1].startswith("speedup ")


def test_different_results_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = bench.Operation("wrong", lambda x, y: seq(np.zeros(16, dtype=int)), lambda x, y: [1] * 16)
    monkeypatch.setattr(bench, "OPERATIONS", (wrong,))
    with pytest.raises(AssertionError, match="wrong differs from its double loop"):
        bench.measure()


def test_bad_sizes() -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        bench.measure(n=0)
