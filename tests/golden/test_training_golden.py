"""The first gradient steps of every recipe are as recorded; `python -m tests.golden.training` records them again."""

from __future__ import annotations

import json

import pytest
import training


@pytest.fixture(scope="module")
def recorded() -> training.Recorded:
    found: training.Recorded = json.loads(training.FILE.read_text(encoding="utf-8"))
    return found


def test_every_case_is_recorded(recorded: training.Recorded) -> None:
    assert set(recorded) == {f"{task} {recipe}" for task, recipe in training.CASES}


@pytest.mark.parametrize(("task", "recipe"), training.CASES)
def test_the_first_steps(task: str, recipe: str, recorded: training.Recorded) -> None:
    found, right = training.first_steps(task, recipe), recorded[f"{task} {recipe}"]
    for got, expected in zip(found["loss"], right["loss"], strict=True):
        assert got == pytest.approx(expected, rel=2e-4)
    for got, expected in zip(found["norm"], right["norm"], strict=True):
        assert got == pytest.approx(expected, rel=5e-3)
