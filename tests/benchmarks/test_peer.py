"""The peer computes what we compute, from rows it makes itself, and says so when its library is missing."""

from __future__ import annotations

import random
import sys

import pytest
import torch

from benchmarks import peer
from looped import batches, tasks
from looped.batches import Batch
from looped.errors import InputError
from looped.fast import StackedTransformer
from looped.model import ModelConfig
from looped.training import plain

EVERY_TASK = sorted(tasks.TASKS)


@pytest.fixture
def shape() -> ModelConfig:
    return ModelConfig(vocab=5, layers=2, heads=2, width=8)


@pytest.mark.parametrize("same", [True, False])
def test_loss_and_gradients_are_those_of_our_loop(shape: ModelConfig, same: bool) -> None:
    pytest.importorskip("transformers")
    task = tasks.get("copy")
    batch = peer.make_rows(task, 5, 6, random.Random(1))
    model = StackedTransformer(shape)
    flat = model.layout.initialise([3]) + 0.1 * torch.randn(1, model.layout.size)
    flat.requires_grad_()
    loss = our_loss(model, flat, batch)
    (grad,) = torch.autograd.grad(loss, flat)
    theirs = peer.Peer(shape, task.row_size(5))
    theirs.load(model.layout.to_dict(flat[0]))
    if not same:  # the comparison must notice
        theirs.gpt2.ln_f.weight.data += 0.1
    theirs.loss(batch).backward()
    ours = model.layout.to_dict(grad[0])
    found = {name: dict(theirs.named_parameters())[peer._peer_name(name)].grad for name in ours}
    close = all(
        torch.allclose(
            found[name].T if found[name].shape != ours[name].shape else found[name], ours[name], atol=1e-5
        )
        for name in ours
    )
    assert close == same
    assert torch.allclose(theirs.loss(batch), loss, atol=1e-5) == same


def our_loss(model: StackedTransformer, flat: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Every row looped to the end by plain autograd, and read at its own T."""
    weights = model.prepare(flat)
    states = torch.stack(list(model.unroll(weights, batch.tokens[None], int(batch.steps.max()))))
    final = states[batch.steps - 1, 0, torch.arange(len(batch.steps))]
    logits = model.readout(weights, final[None])
    return plain.answer_loss(logits, batch.targets[None], batch.loss_mask[None])[0]


@pytest.mark.parametrize("name", EVERY_TASK)
def test_rows_are_the_ones_the_batches_lay_out(name: str) -> None:
    task = tasks.get(name)
    rng, again = random.Random(7), random.Random(7)
    made = peer.make_rows(task, 6, 20, rng)
    drawn = [
        peer.draw_question(task, again.randint(1, 6), again.randrange(task.variants), again)
        for _ in range(20)
    ]
    expected = batches.lay_out(task.problems(drawn), task.vocab, task.row_size(6))
    for field in ("tokens", "loss_mask", "steps"):
        assert torch.equal(getattr(made, field), getattr(expected, field))
    assert torch.equal(made.targets * made.loss_mask, expected.targets * expected.loss_mask)
    assert len({tuple(question) for question in drawn}) > 5


@pytest.mark.parametrize("name", EVERY_TASK)
def test_every_length_and_variant_is_drawn_as_asked(name: str) -> None:
    task, rng = tasks.get(name), random.Random(0)
    for length in (1, 2, 9):
        for variant in range(task.variants):
            assert task.measure(peer.draw_question(task, length, variant, rng)) == (length, variant)


def test_a_step_changes_the_weights_but_not_the_positions(shape: ModelConfig) -> None:
    pytest.importorskip("transformers")
    trainer = peer.PeerTrainer(tasks.get("copy"), shape, 3, 4, torch.device("cpu"))
    before = trainer.model.gpt2.h[0].mlp.c_fc.weight.clone()
    assert trainer.step() > 0
    assert not torch.equal(trainer.model.gpt2.h[0].mlp.c_fc.weight, before)
    assert trainer.model.gpt2.wpe.weight.abs().max() == 0


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(InputError, match=r"transformers, which is not installed: `pip install"):
        peer.library()
