from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from looped import tasks
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.rollout import unroll_grid
from looped.explorer import queries
from looped.explorer.queries import TOP, LoopStep, ModelRegistry, WatchedLoop, read_query
from looped.explorer.security import Limits
from looped.model.weights import Layout
from looped.runs import Run
from looped.training import recipes


def watched(
    registry: ModelRegistry, key: str, question: str, stretch: float = 1.25
) -> tuple[WatchedLoop, list[LoopStep]]:
    watch = WatchedLoop(read_query(registry[key], question, stretch))
    steps = []
    while part := watch.advance(0.01):
        steps += part
    return watch, steps


@pytest.mark.parametrize("name", tasks.TASKS)
def test_a_compiled_program_is_right_where_it_says_so(registry: ModelRegistry, name: str) -> None:
    watch, steps = watched(registry, f"{name}-compiled", tasks.get(name).example)
    halt = next(rule for rule in watch.rules() if rule["name"] == "halt")
    assert halt["stopped"]
    assert halt["correct"]
    assert halt["answer"] == watch.expected == steps[halt["step"] - 1].answer
    assert [step.step for step in steps] == list(range(1, watch.asked.steps + 1))


@pytest.mark.parametrize("key", ["my-copy:seed-0", "addition-compiled"])
def test_rules_and_measures_are_those_of_the_evaluation(registry: ModelRegistry, key: str) -> None:
    question = "101101" if key.startswith("my") else "1011+0110"
    watch, steps = watched(registry, key, question, 3.0)
    solver, batch = registry[key].solver, watch.batch
    grid = unroll_grid(solver.model, solver.weights, batch, len(steps), motion=True)
    needed = torch.tensor([watch.asked.needed])  # a program's own steps, perhaps more than T(n)
    grid = replace(grid, needed=needed)
    assert [step.correct for step in steps] == grid.correct[0, :, 0].tolist()
    assert [step.rewritten > 0 for step in steps] == grid.changed[0, :, 0].tolist()
    assert np.allclose([step.confidence for step in steps], (-grid.surprise[0, :, 0]).exp(), atol=1e-6)
    for rule in watch.rules():
        assert rule["step"] == int(stopping.get(str(rule["name"])).steps(grid)[0, 0])


@pytest.mark.parametrize("halting", ["ponder", "act"])
def test_a_learned_halting_head_is_followed(tmp_path: Path, halting: str) -> None:
    config = recipes.make("copy", "fop-loop-adaptive", "quick", (0,))
    config = replace(config, model=replace(config.model, halting=halting))
    with Run(tmp_path / "run", config) as run:
        layout = Layout(config.model)
        run.save_seed(0, 0.2 * torch.randn(layout.size, generator=torch.Generator().manual_seed(1)), 1)
    registry = queries.all_models([tmp_path / "run"], shipped=())
    watch, steps = watched(registry, "run:seed-0", "101101", 3.0)
    solver = registry["run:seed-0"].solver
    grid = unroll_grid(solver.model, solver.weights, watch.batch, len(steps), motion=True)
    rules = {rule["name"]: rule for rule in watch.rules()}
    assert {"halt", "halt-mode"} <= set(rules)
    for name, rule in rules.items():
        assert rule["step"] == int(
            stopping.get(str(name)).steps(replace(grid, needed=torch.tensor([6])))[0, 0]
        )


def test_a_method_of_fixed_depth_shows_its_own_steps_and_no_rule_but_the_oracle(tmp_path: Path) -> None:
    config = recipes.make("parity", "fop-loop-fixed", "quick", (3,))
    with Run(tmp_path / "run", config) as run:
        run.save_seed(3, 0.1 * torch.randn(Layout(config.model).size), 1)
    watch, steps = watched(queries.all_models([tmp_path / "run"], shipped=()), "run:seed-3", "1101", 3.0)
    assert len(steps) == config.max_length
    assert [rule["name"] for rule in watch.rules()] == ["oracle"]


def test_a_method_that_decodes_token_by_token_is_refused(tmp_path: Path) -> None:
    config = recipes.make("parity", "ntp-loop", "quick", (0,))
    with Run(tmp_path / "run", config) as run:
        run.save_seed(0, torch.zeros(Layout(config.model).size), 1)
    with pytest.raises(InputError, match="ntp-loop decodes token by token and has no loop to watch"):
        queries.all_models([tmp_path / "run"], shipped=())


def test_a_rule_that_never_stops_says_so(registry: ModelRegistry) -> None:
    watch, steps = watched(registry, "copy-compiled", "1011", 1.0)
    rules = {rule["name"]: rule for rule in watch.rules()}
    assert rules["oracle"]["stopped"]
    assert not rules["converged"]["stopped"], "a copy moves on with every step"
    assert rules["converged"]["step"] == len(steps) == 4


def test_what_is_told_of_a_position_is_what_the_model_says(registry: ModelRegistry) -> None:
    model = registry["my-copy:seed-0"]
    watch, steps = watched(registry, model.key, "0110")
    solver = model.solver
    for step, h in zip(steps, solver.model.unroll(solver.weights, watch.batch.tokens[None], 3), strict=False):
        shares = solver.model.readout(solver.weights, h)[0, 0].softmax(-1)
        assert step.tokens.shape == (TOP, watch.batch.tokens.shape[1])
        assert step.tokens[0].tolist() == shares.argmax(-1).tolist()
        for k in range(TOP):
            told = torch.tensor(step.shares[k] / 65535)
            assert torch.allclose(
                told,
                shares.gather(1, torch.tensor(step.tokens[k].astype(int))[:, None])[:, 0].double(),
                atol=2e-5,
            )
        entropy = -(shares * shares.log()).sum(-1)[watch.start :].mean() / math.log(2)
        assert step.entropy == pytest.approx(float(entropy), abs=1e-4)


def test_slices_do_not_change_what_is_seen(registry: ModelRegistry) -> None:
    whole = WatchedLoop(read_query(registry["my-copy:seed-0"], "0110101"))
    at_once = whole.advance(60)
    parts = WatchedLoop(read_query(registry["my-copy:seed-0"], "0110101"))
    one_by_one = [step for _ in at_once for step in parts.advance(60, most=1)]
    assert whole.over
    assert parts.over
    assert parts.advance(60) == []
    for a, b in zip(at_once, one_by_one, strict=True):
        assert (a.step, a.answer, a.rewritten, a.correct) == (b.step, b.answer, b.rewritten, b.correct)
        assert a.change == pytest.approx(b.change, rel=1e-4)
        assert (a.tokens == b.tokens).all()


def test_every_state_is_handed_to_whoever_keeps_it(registry: ModelRegistry) -> None:
    kept = []
    watch = WatchedLoop(
        read_query(registry["copy-compiled"], "101"), lambda step, state: kept.append((step, state.shape))
    )
    while watch.advance(1):
        pass
    assert [step for step, _ in kept] == list(range(1, watch.asked.steps + 1))
    assert {shape[0] for _, shape in kept} == {watch.batch.tokens.shape[1]}


@pytest.mark.parametrize(
    ("key", "question", "stretch", "complaint"),
    [
        ("copy-compiled", "", 1.5, "empty question"),
        ("copy-compiled", "10a1", 1.5, "'a' is no bit"),
        ("addition-compiled", "10+1+1", 1.5, "stands between two numbers"),
        ("copy-compiled", "1" * 3000, 1.5, "3000 characters"),
        ("copy-compiled", "1" * 300, 1.5, "length 300 is too long to watch here: 256"),
        ("copy-compiled", "1", 1.7, "1, 1.25, 1.5, 2, 3 times"),
        ("copy-compiled", "1", math.inf, "1, 1.25, 1.5, 2, 3 times"),
    ],
)
def test_a_bad_question_is_refused_in_a_sentence(
    registry: ModelRegistry, key: str, question: str, stretch: float, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read_query(registry[key], question, stretch)


def test_steps_are_bounded_whatever_is_asked(registry: ModelRegistry) -> None:
    with pytest.raises(InputError, match="too long to watch here: 30"):
        read_query(registry["copy-compiled"], "10" * 20, 3.0, Limits(steps=30))
    asked = read_query(registry["copy-compiled"], "10" * 20, 3.0, Limits(steps=50))
    assert (asked.needed, asked.steps) == (40, 50)
