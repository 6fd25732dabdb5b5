"""`bench survive`: the program itself survives, noise beyond all measure does not, and the table says so."""

from __future__ import annotations

import json

import pytest

from benchmarks import robustness
from looped.errors import InputError

TINY = {"seeds": 1, "train_steps": 2, "samples": 8, "length": 2, "batch": 4}


def test_what_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "NOISES", (0.0, 3.0))
    found = robustness.measure(**TINY)  # type: ignore[arg-type]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["lengths"] == [2, 4, 10]
    by_way = {(row["noise"], row["way"]): row["accuracy"] for row in found["rows"]}
    assert len(by_way) == 2 * 4
    assert by_way[0.0, "not trained"] == by_way[0.0, "its own, 1e-4"] == [1.0, 1.0, 1.0]
    assert min(by_way[3.0, "not trained"]) < 1.0
    columns, rows = robustness.table(found)
    assert columns == ("noise", "not trained", "all weights, 1e-6", "all weights, 1e-4", "its own, 1e-4")
    assert list(rows[0][:2]) == ["0", "1.00 1.00 1.00"]


def test_what_cannot_be_measured() -> None:
    with pytest.raises(InputError, match="must be at least 1"):
        robustness.measure(seeds=0)
