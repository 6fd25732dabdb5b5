"""Rows of the paper, token by token: what is fed in, what is asked for, where the loss looks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped import batches, tasks
from looped.batches import Batch, Prediction
from looped.tasks import Task


def laid_out(
    task: Task, questions: list[str], size: int, prediction: Prediction = "fop", pause: int = 0
) -> Batch:
    return batches.lay_out(
        task.problems([task.parse(q) for q in questions]), task.vocab, size, prediction, pause
    )


def rows_of(task: Task, batch: Batch) -> list[tuple[str, str]]:
    """Fed and asked for, as people read them."""
    return [
        (task.vocab.row(tokens), task.vocab.row(targets, keep))
        for tokens, targets, keep in zip(
            batch.tokens.tolist(), batch.targets.tolist(), batch.loss_mask.tolist(), strict=True
        )
    ]


PAPER = [
    # task, question, prediction, pauses, the row fed in, the row asked for
    ("parity", "00011", "fop", 0, "0 0 0 1 1 > # #", "* * * * * 0 # #"),
    ("copy", "101", "fop", 0, "1 0 1 > # # # #", "* * * 1 0 1 # #"),
    ("addition", "10+11", "fop", 0, "1 0 + 1 1 > # # # #", "* * * * * 1 0 1 # #"),
    ("binary_sum", "1011", "fop", 0, "1 0 1 1 > # # # #", "* * * * 1 1 # # #"),
    ("multiplication", "11*110", "fop", 0, "1 1 × 1 1 0 > # # # # #", "* * * * * * 0 1 0 0 1 #"),
    ("unique_set", "1 4 2 2 4 3", "fop", 0, "1 4 2 2 4 3 > # # # # #", "* * * * * * 1 4 2 3 # #"),
    ("copy", "101", "ntp", 0, "1 0 1 > 1 0 1 #", "* * * 1 0 1 # #"),
    ("addition", "10+11", "ntp", 0, "1 0 + 1 1 > 1 0 1 #", "* * * * * 1 0 1 # #"),
    ("parity", "00011", "ntp", 0, "0 0 0 1 1 > 0 #", "* * * * * 0 # #"),
    ("copy", "101", "fop", 3, "1 0 1 > . . . # # # #", "* * * * * * 1 0 1 # #"),
    ("copy", "101", "ntp", 3, "1 0 1 > . . . 1 0 1 #", "* * * * * * 1 0 1 # #"),
    ("binary_sum", "000", "fop", 0, "0 0 0 > # #", "* * * # # #"),
    ("binary_sum", "000", "ntp", 0, "0 0 0 > # #", "* * * # # #"),
]


@pytest.mark.parametrize(("name", "question", "prediction", "pause", "fed", "asked"), PAPER)
def test_the_papers_rows(
    name: str, question: str, prediction: Prediction, pause: int, fed: str, asked: str
) -> None:
    task = tasks.get(name)
    batch = laid_out(task, [question], len(fed.split()) - pause, prediction, pause)
    assert rows_of(task, batch) == [(fed, asked)]


def test_rows_of_several_lengths_share_a_size() -> None:
    task = tasks.get("copy")
    batch = laid_out(task, ["1", "011"], 7)
    assert rows_of(task, batch) == [
        ("1 > # # # # #", "* 1 # # # # #"),
        ("0 1 1 > # # #", "* * * 0 1 1 #"),
    ]
    assert batch.steps.tolist() == [1, 3]


@settings(max_examples=60)
@given(
    name=st.sampled_from(list(tasks.TASKS)),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    pause=st.sampled_from([0, 1, 20]),
    seed=st.integers(0, 99),
)
def test_layouts_agree_with_each_other(name: str, lengths: list[int], pause: int, seed: int) -> None:
    """NTP asks for what FOP asks for, and feeds it in one place later; question and pauses are the same."""
    task = tasks.get(name)
    generator = torch.Generator().manual_seed(seed)
    problems = task.sample(torch.tensor(lengths), generator, max_length=9)
    size = task.row_size(9)
    fop, ntp = (batches.lay_out(problems, task.vocab, size, p, pause) for p in ("fop", "ntp"))  # type: ignore[arg-type]
    assert fop.tokens.shape == (len(lengths), size + pause)
    assert torch.equal(fop.targets, ntp.targets)
    assert torch.equal(fop.loss_mask, ntp.loss_mask)
    later = fop.loss_mask[:, :-1]
    assert torch.equal(ntp.tokens[:, 1:][later], fop.targets[:, :-1][later])
    assert bool((fop.tokens[:, 1:][later] == task.vocab.eos).all())
    before = ~fop.loss_mask[:, :-1]
    assert torch.equal(ntp.tokens[:, 1:][before], fop.tokens[:, 1:][before])
    assert (fop.tokens == task.vocab.pause).sum(1).tolist() == [pause] * len(lengths)
    assert bool((fop.targets[:, -1] == task.vocab.eos).all()), "a row must have room for the end mark"


def test_rows_are_chosen_and_stacked() -> None:
    task = tasks.get("copy")
    batch = laid_out(task, ["1", "011", "10"], 8)
    chosen = batch.rows(torch.tensor([2, 0]))
    assert rows_of(task, chosen) == [rows_of(task, batch)[i] for i in (2, 0)]
    assert chosen.steps.tolist() == [2, 1]
    both = batches.stack([batch, batch.rows(torch.tensor([2, 1, 0]))])
    assert both.tokens.shape == (2, 3, 8)
    assert both.steps.tolist() == [[1, 3, 2], [2, 3, 1]]
    assert torch.equal(both.loss_mask[0], batch.loss_mask)
    assert batch.to("cpu").tokens.device.type == "cpu"
