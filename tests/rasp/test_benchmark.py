"""The benchmark of the operations: both sides measured in one run, equal results."""

import json
import sys

import numpy as np
import pytest
import rasp_operations as bench

from looped.errors import InputError
from looped.rasp import seq


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rasp_operations.py", "--n", "16", "--json"])
    bench.main()
    fact = json.loads(capsys.readouterr().out)
    assert (fact["equal"], fact["n"]) == (True, 16)
    assert len(fact["operations"]) == len(bench.OPERATIONS)
    assert fact["speedup"] == pytest.approx(fact["plain_seconds"] / fact["ours_seconds"])


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rasp_operations.py", "--n", "16"])
    bench.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(bench.OPERATIONS) + 2
    assert "kqv, mean" in lines[1]


def test_different_results_do_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = bench.Operation("wrong", lambda x, y: seq(np.zeros(16, dtype=int)), lambda x, y: [1] * 16)
    monkeypatch.setattr(bench, "OPERATIONS", (wrong,))
    with pytest.raises(AssertionError, match="wrong differs from its double loop"):
        bench.measure(16)


def test_bad_sizes() -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        bench.measure(n=0)
