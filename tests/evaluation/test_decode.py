"""Decoding with a cache equals decoding without, and stopping on the fly equals stopping on the grid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import decode, rollout, stopping
from looped.evaluation.decode import DecodedBatch, generate, run_adaptive
from looped.evaluation.measure import Subject
from looped.evaluation.rollout import unroll_grid

MakeSubject = Callable[..., Subject]
MakeBatch = Callable[[Subject, list[int]], Batch]


def without_cache(who: Subject, batch: Batch, loops: int) -> DecodedBatch:
    """One row and seed at a time, the whole row anew for every token."""
    eos = who.task.vocab.eos
    seeds, (rows, size) = len(who.seeds), batch.tokens.shape
    tokens = batch.tokens.expand(seeds, -1, -1).clone()
    surprise = torch.zeros(seeds, rows)
    for s in range(seeds):
        for i in range(rows):
            start = int(batch.loss_mask[i].int().argmax())
            fed, out, losses = batch.tokens[i, : start + 1].tolist(), [], []
            while len(out) < size - start and eos not in out:
                row = torch.tensor(fed + [eos] * (size - len(fed))).expand(seeds, 1, size)
                *_, h = who.model.unroll(who.weights, row, loops)
                logits = who.model.readout(who.weights, h)[s, 0, len(fed) - 1]
                out.append(int(logits.argmax()))
                losses.append(float(F.cross_entropy(logits, logits.argmax())))
                fed.append(out[-1])
            tokens[s, i, start:] = torch.tensor(out + [eos] * (size - start - len(out)))
            surprise[s, i] = sum(losses) / len(losses)
    return DecodedBatch(tokens, torch.full((seeds, rows), loops), surprise)


KINDS = [
    {},
    {"bands": (2,) * 4},
    {"bands": (1, 3)},
    {"bands": (2, 2), "positions": "alibi"},
    {"bands": (3,), "positions": "rotary"},
    {"positions": "rotary"},
    {"positions": "alibi"},
    {"positions": "learned", "max_positions": 64},
    {"positions": "randomised", "max_positions": 64},
    {"positions": "start"},
    {"halting": "act", "halt_bias": 0.0},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("method", "loops"), [("ntp", 1), ("ntp-pause", 1), ("ntp-loop", 3)])
def test_a_cache_changes_nothing(
    method: str, loops: int, kind: dict[str, object], subject: MakeSubject, batch_for: MakeBatch
) -> None:
    who = subject("copy", method, **kind)
    batch = batch_for(who, [5, 2, 5, 4, 5, 1, 2])
    got, slow = (
        generate(who.model, who.weights, batch, loops, who.task.vocab.eos),
        without_cache(who, batch, loops),
    )
    assert torch.equal(got.tokens, slow.tokens)
    assert torch.equal(got.steps, slow.steps)
    torch.testing.assert_close(got.surprise, slow.surprise, rtol=1e-3, atol=1e-5)


def test_some_answers_end_early_and_some_with_the_row(subject: MakeSubject, batch_for: MakeBatch) -> None:
    """Keeps the test above honest: its models must do both."""
    who = subject("copy", "ntp-loop")
    batch = batch_for(who, [6] * 30)
    answers = generate(who.model, who.weights, batch, 3, who.task.vocab.eos).tokens[:, :, 6:]
    ended = (answers == who.task.vocab.eos).any(-1)
    assert 0 < int(ended.sum()) < ended.numel()


def test_only_the_question_is_fed(subject: MakeSubject, batch_for: MakeBatch) -> None:
    who = subject("addition", "ntp-pause")
    batch = batch_for(who, [3, 2, 3])
    blank = torch.where(batch.loss_mask.roll(1, 1) & batch.loss_mask, who.task.vocab.id("1"), batch.tokens)
    assert not torch.equal(blank, batch.tokens)
    clean = Batch(blank, batch.targets, batch.loss_mask, batch.steps)
    one, two = (generate(who.model, who.weights, b, 1, who.task.vocab.eos) for b in (batch, clean))
    assert torch.equal(one.tokens, two.tokens)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_generation_in_parts_is_the_same(
    chunk: int, subject: MakeSubject, batch_for: MakeBatch, at_once: Callable[[int], None]
) -> None:
    who = subject("unique_set", "ntp-loop")
    batch = batch_for(who, [4, 4, 2, 4, 3, 2, 4])
    eos = who.task.vocab.eos
    whole = generate(who.model, who.weights, batch, 2, eos)
    at_once(chunk)
    parts = generate(who.model, who.weights, batch, 2, eos)
    assert torch.equal(whole.tokens, parts.tokens)
    torch.testing.assert_close(whole.surprise, parts.surprise, rtol=1e-4, atol=1e-6)


def test_an_answer_is_right_up_to_its_first_end_mark(subject: MakeSubject, batch_for: MakeBatch) -> None:
    who = subject("copy", "ntp")
    batch = batch_for(who, [3, 3])
    right = torch.where(batch.loss_mask, batch.targets, batch.tokens).expand(2, -1, -1).clone()
    right[1, 0, 3] = who.task.vocab.eos
    right[1, 1, 0] = who.task.vocab.eoq  # no part of the answer
    answers = DecodedBatch(right, torch.ones(2, 2, dtype=torch.long), torch.zeros(2, 2))
    assert decode.exact(answers, batch).tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("method", "loops"), [("ntp", 1), ("ntp-pause", 1), ("ntp-loop", 3)])
def test_one_pass_tells_which_answers_would_be_right(
    method: str, loops: int, kind: dict[str, object], subject: MakeSubject, batch_for: MakeBatch,
    at_once: Callable[[int], None],
) -> None:  # fmt: skip
    who = subject("copy", method, **kind)
    batch, eos = batch_for(who, [5, 2, 5, 4, 5, 1, 2, 5]), who.task.vocab.eos
    said = generate(who.model, who.weights, batch, loops, eos).tokens[0].clone()
    start, (zero, one) = batch.loss_mask.int().argmax(1), map(who.task.vocab.id, "01")
    for i in (0, 2, 5):  # of what the first seed says, this is asked for with its first token changed
        said[i, start[i]] = zero if said[i, start[i]] == one else one
    fed = torch.where(batch.loss_mask.roll(1, 1) & batch.loss_mask, said.roll(1, 1), batch.tokens)
    asked = Batch(fed, said, batch.loss_mask, batch.steps)
    right = decode.exact(generate(who.model, who.weights, asked, loops, eos), asked)
    assert right[0].tolist() == [i not in (0, 2, 5) for i in range(8)]
    for rows in (100, 3):
        at_once(rows)
        quick, steps = decode.generates_exactly(who.model, who.weights, asked, loops, eos)
        assert torch.equal(quick, right)
        assert steps.unique().tolist() == [loops]


def test_a_row_longer_than_the_position_table_is_refused(subject: MakeSubject, batch_for: MakeBatch) -> None:
    who = subject("copy", "ntp", positions="learned", max_positions=10)
    with pytest.raises(InputError, match="rows of 14 tokens are longer"):
        generate(who.model, who.weights, batch_for(who, [5]), 1, who.task.vocab.eos)


# --- stopping on the fly -----------------------------------------------------------------------------------

RULES = [
    "oracle",
    "confidence",
    "confidence-batch",
    "threshold=0.05",
    "threshold=0.2",
    "converged=1",
    "converged=2",
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("method", ["fop-loop-adaptive", "fop-loop-adaptive-wo"])
def test_stopping_on_the_fly_is_stopping_on_the_grid(
    rule: str, method: str, subject: MakeSubject, batch_for: MakeBatch
) -> None:
    who = subject("copy", method)
    batch = batch_for(who, [6, 1, 3, 6, 5, 2, 4, 6, 1, 3, 2])
    grid = unroll_grid(who.model, who.weights, batch, 9)
    steps = stopping.get(rule).steps(grid)
    got = run_adaptive(who.model, who.weights, batch, stopping.get(rule), 9)
    assert torch.equal(got.steps, steps)
    surprise = grid.surprise.gather(1, steps[:, None] - 1)[:, 0]
    torch.testing.assert_close(got.surprise, surprise, rtol=1e-4, atol=1e-6)
    states = torch.stack(
        list(who.model.unroll(who.weights, batch.tokens.expand(2, -1, -1), 9))
    )  # [T, S, N, L, D]
    seed, row = torch.arange(2)[:, None], torch.arange(11)
    answer = who.model.readout(who.weights, states[steps - 1, seed, row]).argmax(-1)
    assert torch.equal(got.tokens, torch.where(batch.loss_mask, answer, batch.tokens))


def test_the_rules_above_stop_at_different_steps(subject: MakeSubject, batch_for: MakeBatch) -> None:
    """Keeps the test above honest: with these models rows leave one after the other."""
    who = subject("copy")
    grid = unroll_grid(who.model, who.weights, batch_for(who, [6, 1, 3, 6, 5, 2, 4, 6, 1, 3, 2]), 9)
    for rule in ("oracle", "confidence", "threshold=0.2", "converged=1"):
        assert len(stopping.get(rule).steps(grid).unique()) > 2, rule


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_parts_stop_alike(
    chunk: int, subject: MakeSubject, batch_for: MakeBatch, at_once: Callable[[int], None]
) -> None:
    who = subject("addition")
    batch = batch_for(who, [5, 2, 3, 5, 1, 4, 2, 3, 5])
    for name in ("oracle", "threshold=0.2", "converged=1"):
        rule = stopping.get(name)
        at_once(9)
        whole = run_adaptive(who.model, who.weights, batch, rule, 8)
        at_once(chunk)
        parts = run_adaptive(who.model, who.weights, batch, rule, 8)
        assert torch.equal(whole.steps, parts.steps)
        assert torch.equal(whole.tokens, parts.tokens)


@pytest.mark.parametrize("every", [2, 3, 8, 100])
def test_asking_more_rarely_whether_rows_stop_changes_nothing(
    every: int, subject: MakeSubject, batch_for: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU; rows stop in between, some leave the loop, a halting head holds its answer."""
    for who in (subject("addition"), subject(halting="eoq", halt_bias=0.0)):
        lengths = [6, 1, 3, 6, 5, 2, 4, 6, 1, 3, 2]
        batch, limits = batch_for(who, lengths), torch.tensor([9, 9, 9, 8, 9, 6, 9, 9, 2, 9, 9])
        names = ["oracle", "threshold=0.2", "converged=1", "settled", *["halt"][: who.model.config.says_done]]
        rules = [stopping.get(name) for name in names]
        found = []
        for steps in (1, every):
            monkeypatch.setattr(rollout, "CPU_STEPS", steps)
            for each in (*([rule] for rule in rules), rules):
                found += decode.run_until_stopped(who.model, who.weights, batch, each, limits)
            grid = unroll_grid(who.model, who.weights, batch, 9, motion=True)
            found.append(DecodedBatch(grid.correct, grid.changed, grid.surprise))
        half = len(found) // 2
        for once, rarely in zip(found[:half], found[half:], strict=True):
            assert torch.equal(once.tokens, rarely.tokens)
            assert torch.equal(once.steps, rarely.steps)
            torch.testing.assert_close(once.surprise, rarely.surprise, rtol=1e-4, atol=1e-6)
        assert len({tuple(answers.steps.flatten().tolist()) for answers in found[: len(rules)]}) >= 3


def test_finished_rows_are_not_computed(
    subject: MakeSubject, batch_for: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = subject("copy")
    batch = batch_for(who, [1, 4, 2, 4, 2, 1, 3, 6])
    computed: list[int] = []
    step = who.model.step
    monkeypatch.setattr(
        who.model, "step", lambda w, u, caches=None: computed.append(u.shape[1]) or step(w, u, caches)
    )
    run_adaptive(who.model, who.weights, batch, stopping.get("oracle"), 100)
    assert computed == [8, 6, 4, 3, 1, 1]  # rows whose T is at least 1, 2, …; nothing after the last


def test_the_oracle_must_be_within_the_steps_allowed(subject: MakeSubject, batch_for: MakeBatch) -> None:
    who = subject("copy")
    with pytest.raises(InputError, match="stops at step 6, but only 5 are allowed"):
        run_adaptive(who.model, who.weights, batch_for(who, [6, 2]), stopping.get("oracle"), 5)


@pytest.mark.parametrize("chunk", [4, 100])
@pytest.mark.parametrize("rule", ["confidence", "threshold=0.05", "threshold=1e-9", "converged=2"])
def test_a_row_stops_at_its_own_limit(
    rule: str, chunk: int, subject: MakeSubject, batch_for: MakeBatch, at_once: Callable[[int], None]
) -> None:
    at_once(chunk)
    who = subject("copy")
    batch = batch_for(who, [6, 1, 3, 6, 5, 2, 4, 6, 1, 3, 2])
    limits = torch.tensor([9, 2, 7, 3, 9, 1, 4, 30, 6, 2, 5])
    stops = stopping.get(rule)
    got = run_adaptive(who.model, who.weights, batch, stops, limits.clamp(max=12))
    for i, limit in enumerate(limits.tolist()):
        alone = run_adaptive(who.model, who.weights, batch.rows(slice(i, i + 1)), stops, min(limit, 12))
        assert torch.equal(got.steps[:, i], alone.steps[:, 0])
        assert torch.equal(got.tokens[:, i], alone.tokens[:, 0])


def test_the_oracle_must_be_within_each_rows_limit(subject: MakeSubject, batch_for: MakeBatch) -> None:
    who = subject("copy")
    batch, oracle = batch_for(who, [6, 2]), stopping.get("oracle")
    assert (
        run_adaptive(who.model, who.weights, batch, oracle, torch.tensor([6, 2])).steps.tolist()
        == [[6, 2]] * 2
    )
    with pytest.raises(InputError, match="stops at step 2, but only 1 are allowed"):
        run_adaptive(who.model, who.weights, batch, oracle, torch.tensor([8, 1]))
