"""A model that answers: alone or among others of any length, under every rule, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import looped
from looped import InputError, methods, runs, solve, tasks
from looped.fast import build
from looped.model.weights import Layout
from looped.rasp import programs
from looped.serial import override
from looped.solve import Solver
from looped.solve.solver import Answer, Answers, _batches, answer
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


def never_done(steps: str) -> Solver:
    """An untrained model that could say when it is done and never does; `steps` is what its training gave."""
    changes = ["model.halting=eoq", "model.halt_bias=-50", "model.positions=start", f"loops={steps}"]
    lively = ["model.init_std=0.8", "model.embedding_std=1"]
    config = override(recipes.make("copy", "fop-loop-adaptive", "quick", (0,)), changes + lively)
    model = build(config.model)
    weights = model.prepare(model.layout.initialise([3]))
    task, method = tasks.get(config.task), methods.get(config.method)
    return Solver("untrained", task, method, model, weights, 10, loops=methods.parse_loops(config.loops))


def questions(count: int, longest: int) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices("01", k=draw.randint(1, longest))) for _ in range(count)]


def test_three_lines() -> None:
    model = looped.load("addition-compiled")
    found = model.solve("1011+0110")
    assert (found.answer, found.expected, found.correct, found.stop) == ("10001", "10001", True, "halt")
    assert (
        repr(found) == "1011+0110 → 10001 = 17 (right; 5 steps by halt; confidence 1.0000; addition-compiled)"
    )
    assert "10001" in found._repr_html_()


@pytest.mark.parametrize(
    "rule", ["oracle", "confidence", "confidence-batch", "threshold", "converged", "settled"]
)
def test_among_others_as_alone(untrained: Solver, rule: str) -> None:
    asked = questions(40, 12)
    together = untrained.solve(asked, rule)
    for text, among in zip(asked, together, strict=True):
        alone = untrained.solve(text, rule)
        assert (among.question, among.answer, among.steps) == (text, alone.answer, alone.steps)
        assert among.confidence == pytest.approx(alone.confidence, abs=1e-4)


@pytest.mark.parametrize("rule", ["halt", "halt=0.9", "halt-mode", "confidence", "threshold=1e-9"])
def test_who_never_stops_waits_no_longer_beside_a_longer_question(rule: str) -> None:
    model, draw = never_done("q"), random.Random(2)
    asked = ["".join(draw.choices("01", k=k)) for k in (8, 9, 8, 9, 8, 8)]
    for text, among in zip(asked, model.solve(asked, rule), strict=True):
        alone = model.solve(text, rule)
        assert (among.answer, among.steps) == (alone.answer, alone.steps)


def test_the_model_above_goes_on_changing_its_mind() -> None:
    """Keeps the test above honest: a few steps more would have been seen."""
    rows = [step.row for step in never_done("q").steps("10110100", most=24)]
    assert len(set(rows[-6:])) > 1


@pytest.mark.parametrize(
    ("given", "most"),
    [("T", 14), ("T+1", 16), ("2T", 24), ("T..3T", 34), ("16", 36), ("q", 14), ("q..2q", 24), ("4q..5q", 54)],
)
def test_who_never_stops_ends_after_twice_what_training_gave(given: str, most: int) -> None:
    model = never_done(given)
    assert model.solve("10110").steps == most
    assert len(list(model.steps("10110"))) == most


@pytest.mark.parametrize("name", tasks.TASKS)
@pytest.mark.parametrize("rule", ["halt", "oracle"])
def test_compiled_programs_answer_mixed_lengths(name: str, rule: str) -> None:
    task, program, draw = tasks.get(name), programs.get(name), random.Random(0)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([draw.randint(1, 9) for _ in range(12)])
    problems = task.sample(lengths, generator, max_length=9)
    rows = zip(problems.question.tolist(), problems.question_length.tolist(), strict=True)
    asked = [task.vocab.decode(row[:n]) for row, n in rows]
    found = looped.load(f"{name}-compiled").solve(map(task.format_question, asked), rule)
    assert found.accuracy == 1
    own = [program.total(program.sizes(program.row(question).tolist())) for question in asked]
    assert [each.steps for each in found] == own


@pytest.mark.parametrize("method", sorted(methods.BEYOND))
def test_who_decides_itself_takes_no_other_rule(
    method: str, tmp_path: Path, cli: Callable[..., tuple[int, str, str]]
) -> None:
    config = recipes.make("parity", method, "quick", (0,))
    with runs.Run(tmp_path / "r", config) as run:
        run.save_seed(0, Layout(config.model).initialise([0])[0], 0)
    model = solve.load(tmp_path / "r")
    assert model.solve("1011") == model.solve("1011", "halt")
    assert model.solve("1011").stop == "halt"
    sentence = f"{method} decides itself when to stop: only halt applies to it"
    for rule in ("oracle", "confidence", "converged=5", "halt=0.9", "halt-mode"):
        with pytest.raises(InputError, match=sentence):
            model.solve("1011", rule)
    code, out, err = cli("solve", "parity", "1011", "--model", tmp_path / "r", "--stop", "confidence")
    assert (code, out) == (2, "")
    assert sentence in err


def test_batches_hold_every_question_once_and_stay_bounded(untrained: Solver) -> None:
    asked = [list(text) for text in questions(300, 60)]
    oracle = solve.solver.stopping.get("oracle")
    batches = list(_batches(untrained, asked, oracle))
    assert sorted(i for batch in batches for i in batch) == list(range(300))
    assert len(batches) < 60, "lengths share batches"
    for batch in batches:
        sizes = [untrained.task.row_size(len(asked[i])) for i in batch]
        assert max(sizes) <= 1.15 * min(sizes)
    alone = list(_batches(untrained, asked, solve.solver.stopping.get("confidence")))
    assert all(len({len(asked[i]) for i in batch}) == 1 for batch in alone)


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
