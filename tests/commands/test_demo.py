"""The demo with a few steps of training: everything it shows is there. That it learns is for `make demo` to see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looped import demo, tasks
from looped.model.weights import Layout


def test_the_two_models_are_of_equal_size() -> None:
    looped, fixed = demo.contestants()
    assert Layout(looped.config.model).parameters == Layout(fixed.config.model).parameters
    assert looped.config.steps == fixed.config.steps
    assert looped.config.max_length == fixed.config.max_length
    assert not fixed.config.model.bands, "at fixed depth every head must see everything"


def test_programs_are_checked_and_drawn() -> None:
    assert set(demo.check_programs(5)) == set(tasks.TASKS)
    assert [name for name, _, _ in demo.illustrations()] == ["copy", "parity", "addition"]


def test_a_short_demo_leaves_pictures_and_runs(tmp_path: Path, cli: Callable[..., Any]) -> None:
    words = ("demo", "--out", tmp_path, "--steps", 4, "--samples", 2)
    code, out, err = cli(*words, "--json")
    assert code == 0
    found = json.loads(out)
    trained = demo.contestants()[0].config.max_length
    assert {row["length"] for row in found["rows"]} == {times * trained for times in demo.TIMES}
    assert len(found["rows"]) == 2 * len(demo.TIMES)
    for name in ("demo.png", "demo.svg", "programs.svg", "looped/seed-0.safetensors", "fixed/metrics.jsonl"):
        assert (tmp_path / name).stat().st_size > 0, name
    assert "all legal, all right" in err

    code, out, err = cli(*words)  # both runs are there: straight to the exam
    assert code == 0
    assert "trained to here" in out
    assert "At ten times the training length" in err


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--samples", "0"), ("--steps", "-1")])
def test_refuses(words: tuple[str, str], tmp_path: Path, cli: Callable[..., Any]) -> None:
    code, out, err = cli("demo", "--out", tmp_path, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
