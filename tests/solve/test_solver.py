"""A model that answers: alone or among others of any length, under every rule, step by step."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import looped
from looped import InputError, runs, solve, tasks
from looped.model.weights import Layout
from looped.solve import Solver
from looped.solve.answers import Answer, Answers
from looped.solve.solver import _parcels, answer
from looped.training import recipes

COPY = looped.load("copy-compiled")


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Solver:
    """A model with fresh weights: its answers are nonsense, so that any difference shows."""
    folder = tmp_path_factory.mktemp("run")
    config = recipes.make("copy", "fop-loop-adaptive", "quick", (3,))
    with runs.Run(folder / "r", config) as run:
        run.save_seed(3, Layout(config.model).initialise([3])[0] * 3, 0)
    return solve.load(folder / "r")


def questions(count: int, longest: int) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices("01", k=draw.randint(1, longest))) for _ in range(count)]


def test_three_lines() -> None:
    model = looped.load("addition-compiled")
    found = model.solve("1011+0110")
    assert (found.answer, found.expected, found.correct, found.stop) == ("10001", "10001", True, "halt")
    assert repr(found) == "1011+0110 → 10001 (right; 5 steps by halt; confidence 1.0000)"
    assert "10001" in found._repr_html_()


@pytest.mark.parametrize("rule", ["oracle", "confidence", "threshold", "converged"])
def test_among_others_as_alone(untrained: Solver, rule: str) -> None:
    asked = questions(40, 12)
    together = untrained.solve(asked, rule)
    for text, among in zip(asked, together, strict=True):
        alone = untrained.solve(text, rule)
        assert (among.question, among.answer, among.steps) == (text, alone.answer, alone.steps)
        assert among.confidence == pytest.approx(alone.confidence, abs=1e-4)


def test_compiled_programs_answer_mixed_lengths() -> None:
    draw = random.Random(0)
    for name, task in tasks.TASKS.items():
        generator = torch.Generator().manual_seed(0)
        lengths = torch.tensor([draw.randint(1, 9) for _ in range(12)])
        problems = task.sample(lengths, generator, max_length=9)
        rows = zip(problems.question.tolist(), problems.question_length.tolist(), strict=True)
        texts = [task.format_question(task.vocab.decode(row[:n])) for row, n in rows]
        assert looped.load(f"{name}-compiled").solve(texts).accuracy == 1, name


def test_parcels_hold_every_question_once_and_stay_bounded(untrained: Solver) -> None:
    asked = [list(text) for text in questions(300, 60)]
    oracle = solve.solver.stopping.get("oracle")
    parcels = list(_parcels(untrained, asked, oracle))
    assert sorted(i for parcel in parcels for i in parcel) == list(range(300))
    assert len(parcels) < 60, "lengths share parcels"
    for parcel in parcels:
        sizes = [untrained.task.row_size(len(asked[i])) for i in parcel]
        assert max(sizes) <= 1.15 * min(sizes)
    alone = list(_parcels(untrained, asked, solve.solver.stopping.get("confidence")))
    assert all(len({len(asked[i]) for i in parcel}) == 1 for parcel in alone)


def test_steps_end_at_the_answer(untrained: Solver) -> None:
    model = looped.load("parity-compiled")
    steps = list(model.steps("1101"))
    assert [step.answer for step in steps] == ["1", "1", "0", "1"]
    assert steps[-1].answer == model.solve("1101").answer
    assert len(steps) == model.solve("1101").steps
    first = steps[0]
    assert len(first.row) == len(first.confidence) == len(first.changed)
    assert all(first.changed)
    assert all(0 < p <= 1 for p in first.confidence)
    found = untrained.solve("10110")
    last = list(untrained.steps("10110"))[-1]
    assert (last.number, last.answer) == (5, found.answer)
    assert len(list(untrained.steps("10110", most=9))) == 9


def test_steps_are_computed_when_asked_for() -> None:
    steps = looped.load("copy-compiled").steps("1" * 2000, most=2000)
    assert [next(steps).number, next(steps).number] == [1, 2]
    assert not torch.is_inference_mode_enabled()


def test_answers_print_as_a_table() -> None:
    found = Answers([Answer("11", "0", 2, "oracle", 0.5, "0"), Answer("<1>", "", 1, "oracle", 0.25, "1")])
    assert found.accuracy == 0.5
    assert repr(found).splitlines()[1:] == [
        "<1> → empty (the answer is 1; 1 step by oracle; confidence 0.2500)",
        "1 of 2 right",
    ]
    assert "&lt;1&gt;" in found._repr_html_()
    assert "<1>" not in found._repr_html_()
    assert Answers().accuracy == 0


def test_no_questions_no_answers(untrained: Solver) -> None:
    assert untrained.solve([]) == ()
    assert answer(untrained, []) == []


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nothing", "there is no model 'nothing'"),
        ("nothing.safetensors", "there is no model nothing.safetensors"),
        ("some/where", "there is no model some/where"),
        ("long_multiplication-compiled", "there is no model 'long_multiplication-compiled'"),
        (Path("none"), "there is no model none"),
    ],
)
def test_what_cannot_be_loaded(source: str | Path, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        looped.load(source)


def test_bad_questions_are_refused() -> None:
    model = looped.load("parity-compiled")
    with pytest.raises(InputError, match="2"):
        model.solve(["1", "2"])
    with pytest.raises(InputError, match="at least 1"):
        model.steps("11", most=0)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.text("01", min_size=1, max_size=30), max_size=25))
def test_any_list_is_answered_in_its_order(texts: list[str]) -> None:
    assert [found.answer for found in COPY.solve(texts)] == texts


def test_a_device_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(InputError, match="unknown device 'abacus'"):
        looped.load("copy-compiled", device="abacus")
