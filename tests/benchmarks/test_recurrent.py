"""LSTM and GRU side by side: the same scores, gradients and trained weights as one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import recurrent
from benchmarks.recurrent import CELLS, RecurrentNet
from looped.tasks.suites.chomsky import TASKS
from looped.training.config import TrainConfig
from looped.training.recipes import make


def nets(cell: str, count: int = 3, vocab: int = 5) -> list[RecurrentNet]:
    torch.manual_seed(0)
    return [RecurrentNet(cell, vocab, width=6) for _ in range(count)]


@pytest.mark.parametrize("cell", CELLS)
def test_one_call_scores_as_one_after_the_other(cell: str) -> None:
    own, tokens = nets(cell), torch.randint(5, (3, 4, 9), generator=torch.Generator().manual_seed(1))
    weights = torch.linspace(-1, 1, 3 * 4 * 9 * 5).view(3, 4, 9, 5)
    found = []
    for way in (recurrent.one_by_one, recurrent.side_by_side):
        logits = way(own, tokens)
        for net in own:
            net.zero_grad()
        (logits * weights).sum().backward()  # type: ignore[no-untyped-call]
        found.append([logits.detach(), *(value.grad.clone() for net in own for value in net.parameters())])
    assert len(found[0]) == 1 + 3 * 7
    for one, other in zip(*found, strict=True):
        assert one.abs().max() > 0
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def short(task: str) -> TrainConfig:
    config = make(task, "fop-loop-adaptive", "chomsky", (0,))
    return replace(config, steps=recurrent.DRAWN_STEPS + 3, max_length=6, batch=4)


@pytest.mark.parametrize("cell", CELLS)
def test_they_train_as_one_after_the_other(cell: str) -> None:
    """Two rates, two seeds: each net as if it were alone, past the end of what was drawn together."""
    config, vocab = short("reverse_string"), len(TASKS["reverse_string"].vocab)
    joined, apart, alone = nets(cell, 2, vocab), nets(cell, 2, vocab), nets(cell, 2, vocab)[1:]
    recurrent.train(joined, config, (1e-3, 3e-3), (7, 8), joined=True)
    recurrent.train(apart, config, (1e-3, 3e-3), (7, 8), joined=False)
    recurrent.train(alone, config, (3e-3,), (8,))
    for one, other in zip(joined, apart, strict=True):
        for left, right in zip(one.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-5)
    for left, right in zip(alone[0].parameters(), apart[1].parameters(), strict=True):
        assert torch.equal(left, right)
    start = nets(cell, 2, vocab)[0].readout.weight
    assert (start - joined[0].readout.weight).abs().max() > 1e-2


def test_a_stop_is_looked_for() -> None:
    asked = []
    net = nets("gru", 1, len(TASKS["parity_check"].vocab))
    recurrent.train(net, short("parity_check"), (1e-3,), (0,), lambda: asked.append(1))
    assert len(asked) == 2


def test_what_is_drawn() -> None:
    """All training lengths, none longer; the loss looks at the answer and the `#` after it."""
    config, task = short("binary_addition"), TASKS["binary_addition"]
    draws = recurrent.drawn(config, torch.Generator().manual_seed(0))
    rows = [next(draws) for _ in range(2 * recurrent.DRAWN_STEPS)]
    assert {tuple(batch.tokens.shape) for batch in rows} == {(4, task.row_size(6))}
    lengths = torch.cat([(batch.tokens == task.vocab.eoq).int().argmax(1) for batch in rows])
    assert set(lengths.tolist()) == set(range(1, 7))
    for batch in rows:
        said = batch.targets.masked_fill(~batch.loss_mask, -1)
        assert ((said == task.vocab.eos).sum(1) == 1).all()
    first = next(recurrent.drawn(config, torch.Generator().manual_seed(0)))
    assert torch.equal(first.tokens, rows[0].tokens)
    other = next(recurrent.drawn(config, torch.Generator().manual_seed(1)))
    assert not torch.equal(first.tokens, other.tokens)
