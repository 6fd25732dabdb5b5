"""Stopping by what a halting head says, on grids and on the fly; controls that know nothing; Universal Transformers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from looped import batches, methods, tasks
from looped.errors import InputError
from looped.evaluation import decode, stopping
from looped.evaluation.decode import run_adaptive
from looped.evaluation.measure import Subject, draw_batches, measure, oracle_steps, reach
from looped.evaluation.rollout import StepGrid, held_from, random_exit, unroll_grid
from looped.fast import build
from looped.fast.universal import PreparedUniversal, StackedUniversal
from looped.model import ModelConfig

Y, N = True, False


def grid_of(halting: list[list[float]], correct: list[list[bool]] | None = None) -> StepGrid:
    """One seed's grid from example × step."""
    chances = torch.tensor(halting).T[None]
    right = torch.ones_like(chances, dtype=torch.bool) if correct is None else torch.tensor(correct).T[None]
    needed = torch.full((len(halting),), 1)
    return StepGrid(right, torch.zeros_like(chances), torch.ones_like(right), needed, halting=chances)


HALTING = [[0.1, 0.3, 0.5, 0.9], [0.6, 0.7, 0.8, 0.9], [0.0, 0.0, 0.1, 0.2]]


@pytest.mark.parametrize(
    ("rule", "steps"),
    [
        ("halt", [3, 1, 4]),  # the third never gets there: the last step
        ("halt=0.7", [4, 2, 4]),
        ("halt=0.1", [1, 1, 3]),
        ("halt-mode", [4, 1, 3]),  # .4 at step 4; .6 at step 1; .1 at steps 3 and 4, the earlier
    ],
)
def test_steps_by_hand(rule: str, steps: list[int]) -> None:
    assert stopping.get(rule).steps(grid_of(HALTING)).tolist() == [steps]


def test_a_parameter_is_part_of_the_name() -> None:
    assert stopping.get("halt=0.5").name == "halt"
    assert stopping.get("halt=0.90").name == "halt=0.9"
    for bad in ("halt=0", "halt=1.1", "halt=x", "halt-mode=1"):
        with pytest.raises(InputError):
            stopping.get(bad)


def test_a_model_without_a_head_has_no_such_rule(subject) -> None:
    for rule in ("halt", "halt-mode"):
        with pytest.raises(InputError, match="models that say when they are done"):
            measure(subject(), [2], 4, seed=0, stops=[rule])


@pytest.mark.parametrize("kind", ["act", "ponder"])
@pytest.mark.parametrize("rule", ["halt", "halt=0.8", "converged", "oracle"])
def test_rows_that_leave_the_loop_stop_where_the_grid_says(subject, batch_for, kind: str, rule: str) -> None:
    model = subject(halting=kind, halt_bias=-1.0)
    batch = batch_for(model, [1, 2, 3, 4, 5, 5])
    grid = unroll_grid(model.model, model.weights, batch, 12)
    assert grid.halting is not None
    assert bool((grid.halting.diff(dim=1) >= 0).all())
    chosen = stopping.get(rule).steps(grid)
    answers = run_adaptive(model.model, model.weights, batch, stopping.get(rule), 12)
    assert torch.equal(answers.steps, chosen)
    assert torch.equal(decode.exact(answers, batch), grid.correct.gather(1, chosen[:, None] - 1)[:, 0])
    if rule == "halt":
        assert len(set(chosen.flatten().tolist())) > 1, "an example that tells nothing"


def test_measured_rows_of_a_head(subject) -> None:
    rows = measure(subject(halting="ponder"), [2, 3], 6, seed=0, stops=["oracle", "halt", "halt-mode"])
    assert [row.stop for row in rows[::2]] == ["oracle", "halt", "halt-mode"] * 2
    assert all(1 <= row.mean_steps <= 6 for row in rows)


# --- what a trajectory tells --------------------------------------------------------------------------------


def test_from_where_an_answer_is_held() -> None:
    right = [[N, Y, N, Y], [N, Y, Y, Y], [Y, Y, Y, Y], [Y, Y, Y, N], [N, N, N, N]]
    assert held_from(grid_of([[0.0] * 4] * 5, right)).tolist() == [[4, 2, 1, 0, 0]]


@pytest.mark.parametrize(
    ("mean", "expected"),
    [
        (1.0, 0.0),
        (2.0, 1 / 3),
        (2.5, 0.5),
        (1.5, 0.0),
        (1.75, 0.5 / 2.5),
        (3.0, 2 / 3),
        (3.25, 0.8),
        (4.0, 1.0),
    ],
)
def test_a_random_exit_by_hand(mean: float, expected: float) -> None:
    grid = grid_of([[0.0] * 4], [[N, N, Y, Y]])
    assert random_exit(grid, torch.tensor([mean])).tolist() == pytest.approx([expected])


def test_steps_of_a_model_that_was_not_trained_at_t(subject) -> None:
    base: Subject = subject("addition")
    free = replace(base, loops=methods.parse_loops("q..2q"))
    assert (oracle_steps(base, 5), reach(base, 5)) == (5, 10)
    assert (oracle_steps(free, 5), reach(free, 5)) == (11, 22)
    (batch,) = draw_batches(free, 5, 3, seed=0)
    assert batch.steps.tolist() == [11] * 3
    late = replace(base, loops=methods.parse_loops("T+2"))
    assert (oracle_steps(late, 5), reach(late, 5)) == (7, 14)


# --- Universal Transformers ---------------------------------------------------------------------------------


def universal_subject(name: str, task_name: str = "copy") -> Subject:
    """An untrained one of two seeds whose answers vary."""
    task, method = tasks.get(task_name), methods.get(name)
    model = build(
        ModelConfig(
            vocab=len(task.vocab), layers=1, heads=2, width=16, kind="universal", halting=method.halting,
            injection=False, embedding_std=1.0, init_std=0.5,
        )
    )  # fmt: skip
    weights = model.prepare(model.layout.initialise([3, 4]))
    return Subject(task, method, model, weights, (3, 4), trained_max_length=3)


@pytest.mark.parametrize("name", ["ut", "pondernet"])
@pytest.mark.parametrize("task", ["copy", "parity", "binary_sum"])
def test_one_glance_tells_which_greedy_answers_are_exact(name: str, task: str) -> None:
    made = universal_subject(name, task)
    assert isinstance(made.model, StackedUniversal)
    assert isinstance(made.weights, PreparedUniversal)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 4, (300,), generator=generator)
    problems = made.task.sample(lengths, generator, max_length=3)
    batch = batches.lay_out(problems, made.task.vocab, made.task.row_size(3), "ntp")
    eos = made.task.vocab.eos
    answers = decode.generate(made.model, made.weights, batch, 3, eos)
    right, steps = decode.generates_exactly(made.model, made.weights, batch, 3, eos)
    assert torch.equal(decode.exact(answers, batch), right)
    assert float(steps.min()) >= 1
    assert float(steps.max()) <= 3
    assert bool(answers.surprise.isfinite().all())
    # what the first seed says itself, taken for the right answer: it must be found exact, and nothing else
    said = answers.tokens[0]
    fed = torch.where(batch.loss_mask.roll(1, 1) & batch.loss_mask, said.roll(1, 1), batch.tokens)
    own = replace(batch, tokens=fed, targets=said)
    assert bool(decode.generates_exactly(made.model, made.weights, own, 3, eos)[0][0].all())
    once = answers.tokens == eos
    after = (once & batch.loss_mask).long().cumsum(-1) > 0
    assert bool((once | ~after | ~batch.loss_mask).all()), "nothing but # follows the first #"


@pytest.mark.parametrize("name", ["ut", "pondernet"])
def test_a_greedy_answer_does_not_read_the_right_one(name: str) -> None:
    made = universal_subject(name)
    (batch,) = draw_batches(made, 3, 8, seed=0)
    other = replace(
        batch, tokens=torch.where(batch.loss_mask & (batch.tokens < 2), 1 - batch.tokens, batch.tokens)
    )
    assert not torch.equal(other.tokens, batch.tokens)
    eos = made.task.vocab.eos
    first, second = (decode.generate(made.model, made.weights, each, 3, eos) for each in (batch, other))
    shown = batch.loss_mask.expand(2, -1, -1)
    assert torch.equal(first.tokens[shown], second.tokens[shown])


@pytest.mark.parametrize("name", ["ut", "pondernet"])
def test_rows_of_a_universal_transformer(name: str) -> None:
    made = universal_subject(name)
    rows = measure(made, [1, 5], 6, seed=0)
    assert [(row.length, row.stop) for row in rows[::2]] == [(1, "halt"), (5, "halt")]
    assert all(1 <= row.mean_steps <= 5 for row in rows)
    with pytest.raises(InputError, match="decides itself when to stop: only halt"):
        measure(made, [1], 6, seed=0, stops=["oracle"])


# --- at a fixed point ---------------------------------------------------------------------------------------


def test_settled_stops_where_nothing_moves() -> None:
    grid = grid_of(HALTING)
    motion = torch.tensor([[9.0, 0.5, 0.05, 0.2], [9.0, 0.2, 0.15, 0.11], [9.0, 0.01, 0.0, 0.0]]).T[None]
    moving = replace(grid, motion=motion)
    assert stopping.get("settled").steps(moving).tolist() == [[3, 4, 2]]
    assert stopping.get("settled=0.18").steps(moving).tolist() == [[3, 3, 2]]
    assert stopping.get("settled=0.1").name == "settled"
    with pytest.raises(InputError, match="above 0"):
        stopping.get("settled=0")


def test_settled_rows_leave_where_the_grid_says(subject, batch_for) -> None:
    model = subject()
    batch = batch_for(model, [1, 2, 3, 4, 5, 5])
    grid = unroll_grid(model.model, model.weights, batch, 12, motion=True)
    assert grid.motion is not None
    assert bool(grid.motion[:, 0].isinf().all()), "nothing to compare the first step with"
    below = float(grid.motion[:, 1:].median())
    rule = stopping.get(f"settled={below:g}")
    chosen = rule.steps(grid)
    assert len(set(chosen.flatten().tolist())) > 1, "an example that tells nothing"
    answers = run_adaptive(model.model, model.weights, batch, rule, 12)
    assert torch.equal(answers.steps, chosen)
    rows = measure(model, [3], 4, seed=0, stops=["settled", "oracle"])
    assert [row.stop for row in rows[::2]] == ["settled", "oracle"]
