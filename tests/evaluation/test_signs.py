"""Signs of models whose behaviour is known: compiled programs, broken ones, and the rule that chooses."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import torch

from looped import runs, tasks
from looped.batches import Batch
from looped.evaluation.loading import stack
from looped.evaluation.measure import Subject
from looped.evaluation.signs import LABEL_FREE, Neighbourhoods, choose, measure_signs, questions, twins, walk
from looped.zoo import path

PAPER = ("parity", "copy", "addition", "binary_sum", "multiplication", "unique_set")


@pytest.mark.parametrize("task", PAPER)
def test_the_answer_to_a_twin_is_the_answer_renamed(task: str) -> None:
    known, random = tasks.get(task), Random(0)
    for length in (1, 2, 5, 9):
        drawn = known.sample(torch.tensor([length]), torch.Generator().manual_seed(length), max_length=length)
        question = known.vocab.decode(drawn.question[0, : int(drawn.question_length[0])].tolist())
        twin = known.twin(question, random)
        if twin is None:
            assert task == "multiplication"
            continue
        other, names = twin
        assert known.measure(other) == known.measure(question)
        assert known.solve(other) == [names.get(token, token) for token in known.solve(question)]


@pytest.fixture(scope="module")
def copies() -> Subject:
    """A model that copies exactly, twice, and one that was spoilt; as if trained on lengths up to 5."""
    good = runs.load_seed(path("copy-long"))
    drawn = torch.randn(good.row.shape, generator=torch.Generator().manual_seed(0))
    bad = replace(good, seed=7, row=good.row * (1 + 0.7 * drawn))
    loaded = stack(
        path("copy-long"), [replace(good, seed=1), bad, replace(good, seed=2)], torch.device("cpu")
    )
    return replace(loaded.subject, trained_max_length=5)


def test_signs_tell_an_exact_model_from_a_spoilt_one(copies: Subject) -> None:
    one, spoilt, two = measure_signs([copies], [6, 7], groups=[0, 0, 0], samples=32)
    assert one == pytest.approx(two)
    assert (one["exact"], one["worst"], one["invariance"], one["unchanged"]) == (1.0, 1.0, 1.0, 1.0)
    assert one["agreement"] == pytest.approx(0.5 + spoilt["agreement"] / 2)  # its equal always agrees
    assert spoilt["agreement"] < 0.3
    assert spoilt["exact"] < 0.5
    assert one["robust"] > 0.8
    assert one["margin"] > spoilt["margin"]
    assert 0 < one["smallest_margin"] <= one["margin"]
    assert one["novelty"] < 0.05
    assert one["exact on zeros"] == 1.0
    assert choose([spoilt, one, two]) == 1


def test_groups_and_parts(copies: Subject) -> None:
    """Agreement is with replicas of the same seed, whichever run has trained them."""
    rows = measure_signs([copies, copies], [6], groups=[0, 0, 1, 1, 1, 0], samples=8)
    same = [row["agreement"] for row in rows]
    assert same[1] < 0.3
    for exact, spoilt in (
        (0, 1),
        (5, 1),
        (2, 4),
        (3, 4),
    ):  # one replica of its group is equal, the other is spoilt
        assert same[exact] == pytest.approx(0.5 + same[spoilt] / 2)
    assert rows[:1] == measure_signs([copies], [6], groups=[0, 0, 0], samples=8)[:1]


def test_a_task_without_a_twin_has_no_invariance(subject) -> None:
    row = measure_signs([subject("multiplication")], [6], groups=[0, 0], samples=2)[0]
    assert row["invariance"] is None
    assert {name for name in LABEL_FREE if row[name] is None} == {"invariance"}


def test_a_model_without_finite_numbers_is_judged_and_never_chosen(copies: Subject) -> None:
    good = runs.load_seed(path("copy-long"))
    broken = replace(good, seed=9, row=torch.full_like(good.row, torch.nan))
    loaded = stack(path("copy-long"), [broken, good], torch.device("cpu"))
    rows = measure_signs([replace(loaded.subject, trained_max_length=2)], [3], groups=[0, 0], samples=4)
    assert (rows[0]["exact"], rows[0]["margin"], rows[0]["smallest_margin"]) == (0.0, None, None)
    assert choose(rows) == 1


def test_the_walk_in_parts_is_the_walk(copies: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = questions(copies, 6, "uniform", 16, 0)
    assert len(batch.tokens.unique(dim=0)) == len(batch.tokens)
    whole = walk(copies, batch)
    monkeypatch.setattr("looped.evaluation.rollout.rows_at_once", lambda *_: 3)
    parts = walk(copies, batch)
    assert torch.equal(whole.answer, parts.answer)
    assert torch.equal(whole.unchanged, parts.unchanged)
    torch.testing.assert_close(whole.margin, parts.margin)


def test_unchanged_looks_from_T_to_2T_alone(subject) -> None:
    who: Subject = subject("copy")
    batch = questions(who, 4, "uniform", 8, 0)
    found, tokens = walk(who, batch), batch.tokens.expand(2, -1, -1)
    states = who.model.unroll(who.weights, tokens, 8)
    answers = [who.model.readout(who.weights, h).argmax(-1) for h in states]
    start = int(batch.loss_mask[0].int().argmax())
    after = torch.stack([answer[..., start:] for answer in answers[3:]])
    assert torch.equal(found.at_need, after[0])
    assert torch.equal(found.unchanged, (after == after[0]).all(-1).all(0))
    assert torch.equal(found.answer, found.at_need)  # no halting head: judged by what it says after T


def test_twins_are_laid_out_as_questions_are(copies: Subject) -> None:
    batch: Batch = questions(copies, 6, "uniform", 8, 0)
    found = twins(copies, batch, 6, 0)
    assert found is not None
    other, renamed = found
    assert other.tokens.shape == batch.tokens.shape
    assert torch.equal(other.loss_mask, batch.loss_mask)
    asked = batch.tokens[:, :6]
    assert torch.equal(other.tokens[:, :6], 1 - asked)
    assert torch.equal(renamed(asked.expand(3, -1, -1)), (1 - asked).expand(3, -1, -1))


def test_a_neighbourhood_seen_in_training_is_not_new(copies: Subject) -> None:
    known = Neighbourhoods(copies, 16, 0)
    counts: list[torch.Tensor] = []
    walk(
        copies, questions(copies, 4, "mixed", 16, 0), on_state=lambda h: counts.append(known.new(h)), after=1
    )
    assert all(bool((count[:, 0] == 0).all()) for count in counts)
    strange = 9 * torch.randn(3, 4, 20, 32, generator=torch.Generator().manual_seed(1))
    assert bool((known.new(strange)[:, 0] > 10).all())


def test_the_choice_is_by_held_out_accuracy_then_by_the_mean_rank() -> None:
    plain = dict.fromkeys(LABEL_FREE, 0.5)
    rows = [
        {"exact": 0.9, **plain, "margin": 9.0},
        {"exact": 1.0, **plain, "novelty": 0.1},
        {"exact": 1.0, **plain, "novelty": 0.0},
        {"exact": 1.0, **plain, "novelty": 0.0, "robust": None},
    ]
    assert choose(rows) == 2
    assert choose(rows[:2]) == 1
    assert choose([rows[2], rows[2]]) == 0


def test_among_equally_exact_replicas_the_most_robust_is_chosen() -> None:
    """Even where most other signs favour another one; a better exact match still comes first."""
    worse = dict.fromkeys(LABEL_FREE, 0.5) | {"exact": 0.9, "robust": 1.0}
    sure = dict.fromkeys(LABEL_FREE, 1.0) | {"exact": 1.0, "novelty": 0.0, "robust": 0.2}
    robust = dict.fromkeys(LABEL_FREE, 0.0) | {"exact": 1.0, "novelty": 1.0, "robust": 0.8}
    assert choose([worse, sure, robust]) == 2
    assert choose([worse, sure, robust | {"robust": 0.2}]) == 1  # equals: the mean rank over all
    assert choose([sure, robust | {"robust": None}]) == 0
