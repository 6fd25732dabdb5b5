"""The figure of who knows when to stop: drawn from rows alone, every line in its three panels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looped.errors import InputError
from looped.figures import halting, is_halting


def row(**changes: Any) -> dict[str, Any]:
    return {
        "task": "parity", "method": "fop-loop-adaptive", "recipe": "quick", "seed": 0, "length": 5, "stop": "oracle",
        "accuracy": 1.0, "samples": 10, "mean_steps": 5.0, "needed": 5, "first_right": 4.0, "held_from": 5.0,
        "held": 1.0, "random_exit": 0.5,
    } | changes  # fmt: skip


ROWS = [
    *(
        row(length=n, seed=s, mean_steps=float(n), needed=n, held_from=n - 1.0)
        for n in (5, 10)
        for s in (0, 1)
    ),
    *(row(length=n, stop="converged", mean_steps=n + 3.0, needed=n, accuracy=0.5) for n in (5, 10)),
    *(
        row(length=n, variant="ponder", stop="halt", mean_steps=n / 2, needed=n, held_from=None)
        for n in (5, 10)
    ),
    *(
        row(length=n, method="ut", stop="halt", mean_steps=2.5, needed=n, held_from=None, random_exit=None)
        for n in (5, 10)
    ),
]


def test_a_line_is_a_method_or_its_variant_under_its_first_rule() -> None:
    figure = halting(ROWS, {"parity": 5}, "title")
    accuracy, steps, compute = figure.axes
    labels = [line.get_label() for line in accuracy.get_lines() if not str(line.get_label()).startswith("_")]
    assert labels == ["fop-loop-adaptive (oracle)", "fop-loop-adaptive, ponder (halt)", "ut (halt)"]
    drawn = [[list(line.get_xdata()), list(line.get_ydata())] for line in steps.get_lines()]
    assert drawn[0] == [[5, 10], [5, 10]]
    assert drawn[1] == [[5, 10], [4, 9]], "dotted: from where it is held"
    assert [[5, 10], [5, 10]] in drawn[2:], "T(n) itself"
    rules = [[list(line.get_xdata()), list(line.get_ydata())] for line in compute.get_lines()]
    assert rules[0] == [[1.0, 1.3], [1.0, 0.5]], "past the training length: 10 of 10 steps, 13 of 10"
    assert rules[1] == [[1.0, 1.3], [0.5, 0.5]], "the control beside it"
    assert rules[5] == [[], []], "a Universal Transformer has none"


@pytest.mark.parametrize("odd", [{"needed": 0}, {"mean_steps": None}, {"random_exit": "high"}])
def test_rows_that_tell_nothing_are_refused(odd: dict[str, Any]) -> None:
    assert is_halting(row())
    assert not is_halting(row(**odd))
    with pytest.raises(InputError, match="do not tell what was discovered"):
        halting([row(), row(**odd)])


def test_the_command_draws_it_from_a_file(cli: Callable[..., Any], tmp_path: Path) -> None:
    file, out = tmp_path / "rows.json", tmp_path / "halting.svg"
    file.write_text(json.dumps({"rows": ROWS}))
    code, told, _ = cli("figure", str(file), "--out", str(out), "--json")
    assert code == 0
    assert json.loads(told)["kind"] == "halting"
    first = out.read_bytes()
    cli("figure", str(file), "--out", str(out), "--kind", "halting")
    assert out.read_bytes() == first, "the same rows, the same bytes"
