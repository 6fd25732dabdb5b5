"""The demo with a few steps of training: everything it shows is there. That it learns is for `make demo` to see."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looped import tasks
from looped.cli import demo
from looped.model.weights import Layout


def test_the_two_models_are_of_equal_size() -> None:
    looped, fixed = demo.contestants()
    assert Layout(looped.config.model).parameters == Layout(fixed.config.model).parameters
    assert looped.config.max_length == fixed.config.max_length
    assert looped.config.steps <= fixed.config.steps, "the ordinary model gets no fewer gradient steps"
    assert not fixed.config.model.bands, "at fixed depth every head must see everything"
    assert demo.contestants(7)[0].config.steps == 7


def test_programs_are_checked_and_drawn() -> None:
    assert set(demo.check_programs(5)) == set(tasks.TASKS)
    assert [name for name, _, _ in demo.illustrations()] == ["copy", "parity", "addition"]


def test_a_short_demo_leaves_pictures_and_runs(tmp_path: Path, cli: Callable[..., Any]) -> None:
    words = ("demo", "--out", tmp_path, "--steps", 4, "--samples", 2)
    code, out, err = cli(*words, "--json")
    assert code == 0
    found = json.loads(out)
    methods = [each.config.method for each in demo.contestants()]
    asked = [(method, length) for method in methods for length in (*demo.LENGTHS, demo.FARTHEST)]
    assert [(row["method"], row["length"]) for row in found["rows"]] == asked
    assert {row["length"]: row["samples"] for row in found["rows"]}[demo.FARTHEST] == 1, (
        "a quarter of 2, at least 1"
    )
    for name in ("demo.png", "demo.svg", "programs.svg", "looped/seed-0.safetensors", "fixed/metrics.jsonl"):
        assert (tmp_path / name).stat().st_size > 0, name
    assert "all legal, all right" in err
    assert json.loads((tmp_path / "results.json").read_text())["rows"] == found["rows"]
    assert cli("figure", tmp_path / "results.json", "--out", tmp_path / "again.svg").code == 0

    code, out, err = cli(*words)  # both runs are there: straight to the exam
    assert code == 0
    assert "trained to here" in out
    assert "At ten times the training length" in err
    assert [line.split()[0] for line in out.splitlines()[2:]] == [
        str(length) for _, length in asked[: len(asked) // 2]
    ]


@pytest.mark.slow
def test_a_slow_machine_sits_the_exam_when_the_time_is_up(tmp_path: Path, cli: Callable[..., Any]) -> None:
    code, _, err = cli("demo", "--out", tmp_path, "--steps", 100_000, "--samples", 1, "--seconds", 0.001)
    assert code == 0
    assert err.count("time was up after") == 2
    for name in ("demo.png", "demo.svg", "programs.svg", "results.json"):
        assert (tmp_path / name).exists()
        assert str(tmp_path / name) in err, "what was written is named"


@pytest.mark.parametrize(
    "words", [("--seconds", "0"), ("--seconds", "nan"), ("--samples", "0"), ("--steps", "-1")]
)
def test_refuses(words: tuple[str, str], tmp_path: Path, cli: Callable[..., Any]) -> None:
    code, out, err = cli("demo", "--out", tmp_path, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
