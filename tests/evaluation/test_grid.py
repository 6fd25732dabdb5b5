"""The step grid against a slow, obvious implementation, in any chunks, and the questions asked of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import rollout as grids
from looped.evaluation.measure import Subject
from looped.evaluation.rollout import StepGrid, unroll_grid

MakeBatch = Callable[[Subject, list[int]], Batch]


def obvious(subject: Subject, batch: Batch, max_steps: int) -> StepGrid:
    """One seed, one example, one position at a time, with torch's own cross entropy."""
    seeds, (rows, size) = len(subject.seeds), batch.tokens.shape
    correct = torch.zeros(seeds, max_steps, rows, dtype=torch.bool)
    surprise, changed = torch.zeros(seeds, max_steps, rows), torch.zeros_like(correct)
    for i in range(rows):
        tokens = batch.tokens[i].expand(seeds, 1, size)
        before: list[list[int]] = [[] for _ in range(seeds)]
        for t, h in enumerate(subject.model.unroll(subject.weights, tokens, max_steps)):
            logits = subject.model.readout(subject.weights, h)
            for s in range(seeds):
                places = [p for p in range(size) if batch.loss_mask[i, p]]
                answer = [int(logits[s, 0, p].argmax()) for p in places]
                losses = [float(F.cross_entropy(logits[s, 0, p], logits[s, 0, p].argmax())) for p in places]
                correct[s, t, i] = answer == [int(batch.targets[i, p]) for p in places]
                surprise[s, t, i] = sum(losses) / len(losses)
                changed[s, t, i] = answer != before[s]
                before[s] = answer
    return StepGrid(correct, surprise, changed, batch.steps)


def same(one: StepGrid, two: StepGrid) -> None:
    assert torch.equal(one.correct, two.correct)
    assert torch.equal(one.changed, two.changed)
    assert torch.equal(one.needed, two.needed)
    torch.testing.assert_close(one.surprise, two.surprise, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("task", ["copy", "multiplication", "unique_set"])
@pytest.mark.parametrize("method", ["fop-loop-adaptive", "fop-loop-adaptive-wo", "fop-pause"])
def test_the_grid_is_what_the_obvious_implementation_says(
    task: str, method: str, subject: Callable[..., Subject], batch_for: MakeBatch
) -> None:
    who = subject(task, method)
    batch = batch_for(who, [3, 3, 1, 2, 3])
    got = unroll_grid(who.model, who.weights, batch, 6)
    same(got, obvious(who, batch, 6))
    assert got.max_steps == 6
    assert 0 < int(got.changed[:, 1:].sum()) < got.changed[:, 1:].numel(), (
        "the answers must move, but not always"
    )


def test_a_correct_cell_is_one_whose_answer_is_the_target(
    subject: Callable[..., Subject], batch_for: MakeBatch
) -> None:
    """An untrained model is never right by itself, so its own answer after step 3 becomes the target."""
    who = subject()
    batch = batch_for(who, [4] * 9)
    states = list(who.model.unroll(who.weights, batch.tokens.expand(2, -1, -1), 5))
    answer = who.model.readout(who.weights, states[2]).argmax(-1)[0]
    aimed = Batch(batch.tokens, answer, batch.loss_mask, batch.steps)
    got = unroll_grid(who.model, who.weights, aimed, 5)
    assert bool(got.correct[0, 2].all())
    same(got, obvious(who, aimed, 5))
    spoiled = answer.clone()
    spoiled[0, -1] = (
        spoiled[0, -1] + 1
    ) % who.model.config.vocab  # the last position counts as the others do
    spoiled[1, 0] = (spoiled[1, 0] + 1) % who.model.config.vocab  # the first does not
    wrong = unroll_grid(who.model, who.weights, Batch(batch.tokens, spoiled, batch.loss_mask, batch.steps), 5)
    assert wrong.correct[0, 2].tolist() == [False] + [True] * 8


@pytest.mark.parametrize("chunk", [1, 2, 5, 11, 100])
def test_parts_make_no_difference(
    chunk: int, subject: Callable[..., Subject], batch_for: MakeBatch, at_once: Callable[[int], None]
) -> None:
    who = subject("addition", bands=(2,))
    batch = batch_for(who, [5] * 11)
    whole = unroll_grid(who.model, who.weights, batch, 7)
    at_once(chunk)
    same(unroll_grid(who.model, who.weights, batch, 7), whole)


def test_the_memory_bound_decides_the_chunk(
    subject: Callable[..., Subject], batch_for: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = subject()
    batch = batch_for(who, [4] * 20)
    seen: list[int] = []
    embed = who.model.embed
    monkeypatch.setattr(
        who.model, "embed", lambda w, tokens, at=None: seen.append(tokens.shape[1]) or embed(w, tokens, at)
    )
    unroll_grid(who.model, who.weights, batch, 2)
    assert seen == [20]
    monkeypatch.setattr(grids, "CPU_BUDGET", 100_000)
    rows = grids.rows_at_once(who.model.config, 2, batch.tokens.shape[1], batch.tokens.device)
    assert 1 < rows < 20
    seen.clear()
    unroll_grid(who.model, who.weights, batch, 2)
    assert seen == [rows] * (20 // rows) + [20 % rows] * (20 % rows > 0)
    monkeypatch.setattr(grids, "CPU_BUDGET", 1)
    assert grids.rows_at_once(who.model.config, 2, 10_000, batch.tokens.device) == 1


def test_surprise_tells_steps_apart_that_a_log_softmax_rounds_to_zero(
    subject: Callable[..., Subject],
) -> None:
    who = subject()
    h = torch.zeros(2, 1, 1, 32)
    counted = torch.ones(1, 1, 1, dtype=torch.bool)
    values = []
    for gap in (20.0, 40.0):
        bias = torch.zeros_like(who.weights.readout_bias)
        bias[..., 0] = gap
        weights = who.weights.with_tensors(
            [bias if tensor is who.weights.readout_bias else tensor for tensor in who.weights.tensors()]
        )
        values.append(float(grids.read(who.model, weights, h, counted).surprise[0, 0]))
    others = who.model.config.vocab - 1
    torch.testing.assert_close(
        torch.tensor(values), others * torch.tensor([-20.0, -40.0]).exp(), rtol=1e-4, atol=0.0
    )


def test_bfloat16_weights_give_a_grid_in_fp32(subject: Callable[..., Subject], batch_for: MakeBatch) -> None:
    who = subject()
    weights = who.weights.in_precision(torch.bfloat16)
    got = unroll_grid(who.model, weights, batch_for(who, [3] * 4), 3)
    assert got.surprise.dtype == torch.float32
    assert bool(got.surprise.isfinite().all())


def test_grids_join_along_the_examples(subject: Callable[..., Subject], batch_for: MakeBatch) -> None:
    who = subject()
    batch = batch_for(who, [4, 3, 2, 1])
    parts = [unroll_grid(who.model, who.weights, batch.rows(slice(i, i + 2)), 4) for i in (0, 2)]
    same(grids.join(parts), unroll_grid(who.model, who.weights, batch, 4))


def test_no_steps_are_no_grid(subject: Callable[..., Subject], batch_for: MakeBatch) -> None:
    who = subject()
    with pytest.raises(InputError, match="at least 1, not 0"):
        unroll_grid(who.model, who.weights, batch_for(who, [2]), 0)


def hand_made() -> StepGrid:
    correct = torch.tensor([[0, 0, 1, 1, 0], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]]).bool().T[None]
    return StepGrid(correct, torch.zeros(1, 5, 3), torch.ones(1, 5, 3).bool(), torch.tensor([3, 2, 4]))


@pytest.mark.parametrize(("extra", "accuracy"), [(-1, 0.0), (0, 2 / 3), (1, 1 / 3)])
def test_accuracy_is_taken_at_each_examples_own_step(extra: int, accuracy: float) -> None:
    grid = hand_made()
    assert grids.accuracy(grid, grid.needed[None] + extra).tolist() == pytest.approx([accuracy])


def test_first_correct_is_the_first_step_that_is_right() -> None:
    assert grids.first_correct(hand_made()).tolist() == [[3, 2, 0]]
