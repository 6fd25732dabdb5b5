"""`looped bench solve`: all ways are there, answers agree, what was extrapolated is said."""

from __future__ import annotations

import json

import pytest

from benchmarks import solve
from looped.errors import InputError


def test_every_way_is_measured(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve, "ONE_BY_ONE", 5)
    monkeypatch.setattr(solve, "COMMANDS", 1)
    words = (
        "--task",
        "parity",
        "--model",
        "parity-compiled",
        "--samples",
        "30",
        "--length",
        "9",
        "--device",
        "cpu",
    )
    code, out, _ = cli("bench", "solve", *words, "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["questions"], found["lengths"], found["model"]) == (30, [1, 9], "parity-compiled")
    assert (found["right"], found["same_answers"]) == (1.0, True)
    assert (found["one_by_one_timed"], found["commands_timed"]) == (5, 1)
    assert found["speedup"] == pytest.approx(found["one_by_one_seconds"] / found["together_seconds"])
    columns, rows = solve.table(found)
    assert [len(row) for row in rows] == [len(columns)] * 3
    assert "extrapolated" in rows[1][-1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"samples": 0}, "at least 1"), ({"model": "parity-compiled"}, "is a model for parity, not for copy")],
)
def test_bad_options(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        solve.measure(task="copy", device="cpu", **options)  # type: ignore[arg-type]
