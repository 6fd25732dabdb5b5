"""The Universal Transformer: who sees what, who halts when, and that seeds do not mix."""

from __future__ import annotations

import math

import pytest
import torch

from looped.fast import StackedUniversal, build
from looped.fast.universal import PreparedUniversal, Said, sine, split
from looped.model import ModelConfig

ROW = torch.tensor([1, 0, 1, 2, 1, 0, 1, 3, 3])  # copy of 101, `>` at place 3
STARTS = torch.tensor([3, 2, 5])


def made(halting: str = "act", **changes: object) -> tuple[StackedUniversal, PreparedUniversal]:
    config = ModelConfig(
        vocab=5, layers=2, heads=2, width=16, kind="universal", halting=halting, init_std=0.3,
        embedding_std=1.0, injection=False, **changes,
    )  # type: ignore[arg-type]  # fmt: skip
    model = build(config)
    assert isinstance(model, StackedUniversal)
    return model, model.prepare(flat_of(model))


def flat_of(model: StackedUniversal) -> torch.Tensor:
    flat = model.layout.initialise([0, 1])
    return flat + 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(3))


def asked(model: StackedUniversal, weights: PreparedUniversal, tokens: torch.Tensor, most: int = 5) -> Said:
    counted = torch.arange(tokens.shape[-1]) >= STARTS[:, None]
    with torch.no_grad():
        return model.answer(weights, tokens.expand(2, 3, -1), counted.expand(2, 3, -1), most)


def test_question_and_places() -> None:
    counted = (torch.arange(6) >= 3)[None, None]
    question, place = split(counted)
    assert question[0, 0].tolist() == [True, True, True, True, False, False]
    assert place[0, 0].tolist() == [0, 0, 0, 0, 1, 2]


def test_sine_waves_by_hand() -> None:
    waves = sine(torch.tensor([0, 1, 7]), 6)
    assert waves[0].tolist() == [0, 0, 0, 1, 1, 1]
    rates = [1, 1e-2, 1e-4]
    expected = [math.sin(7 * rate) for rate in rates] + [math.cos(7 * rate) for rate in rates]
    assert waves[2].tolist() == pytest.approx(expected, abs=1e-6)
    assert sine(torch.tensor([2]), 5).shape == (1, 5)


@pytest.mark.parametrize("halting", ["act", "ponder"])
def test_an_answer_token_depends_on_the_question_and_what_came_before_only(halting: str) -> None:
    model, weights = made(halting)
    base = asked(model, weights, ROW).logits[-1]
    for at in range(len(ROW)):
        other = ROW.clone()
        other[at] = 4
        changed = (asked(model, weights, other).logits[-1] != base).any(-1)[0]  # [B, L]
        for row, start in enumerate(STARTS.tolist()):
            where = changed[row, start:].nonzero()[:, 0] + start
            first = start if at <= start else at
            assert where.min() >= first, "nothing before it hears of it"
            assert where.max() >= first, "and somebody does"


@pytest.mark.parametrize("halting", ["act", "ponder"])
def test_order_matters(halting: str) -> None:
    model, weights = made(halting)
    base, other = (
        asked(model, weights, row).logits[-1][:, 0, 3:]
        for row in (ROW, torch.tensor([0, 1, 1, 2, 1, 0, 1, 3, 3]))
    )
    assert not torch.allclose(base, other), "the encoder looks both ways, but it knows places"


def test_a_row_that_has_halted_is_not_changed_by_later_steps() -> None:
    model, weights = made("act", halt_bias=2.0)
    few, many = asked(model, weights, ROW, 6), asked(model, weights, ROW, 12)
    assert few.encoder is not None
    assert many.decoder is not None
    question, _ = split((torch.arange(9) >= STARTS[:, None]).expand(2, 3, -1))
    assert float((few.encoder.steps * question).max()) < 6, "all halt before the end"
    assert torch.equal(few.encoder.output[question], many.encoder.output[question])
    assert torch.equal(few.logits[0][0, 0, 3:], many.logits[0][0, 0, 3:])


def test_pondernets_steps_do_not_depend_on_how_many_follow() -> None:
    model, weights = made("ponder")
    few, many = asked(model, weights, ROW, 3), asked(model, weights, ROW, 7)
    for a, b in zip(few.logits + few.wants, many.logits[:3] + many.wants[:3], strict=True):
        assert torch.equal(a, b)
    other = ROW.clone()
    other[6:] = 0  # an answer's later tokens
    assert torch.equal(asked(model, weights, other).wants[-1], asked(model, weights, ROW).wants[-1])


def test_seeds_side_by_side_are_seeds_alone() -> None:
    model, weights = made("act")
    both = asked(model, weights, ROW).logits[0]
    alone = model.prepare(flat_of(model)[1:])
    counted = (torch.arange(9) >= STARTS[:, None])[None]
    with torch.no_grad():
        one = model.answer(alone, ROW.expand(1, 3, -1), counted, 5).logits[0]
    torch.testing.assert_close(both[1:], one)


def test_prepared_weights_survive_being_taken_apart() -> None:
    _, weights = made("act")
    again = weights.with_tensors(weights.tensors())
    assert all(a is b for a, b in zip(weights.tensors(), again.tensors(), strict=True))
    assert len({id(t) for t in weights.tensors()}) == len(weights.tensors())
    narrow = weights.in_precision(torch.bfloat16)
    assert isinstance(narrow, PreparedUniversal)
    assert all(matrix.dtype == torch.bfloat16 for stack, _ in narrow.looped() for matrix in stack)
    assert all(
        t.dtype == torch.float32 for t in (narrow.embed, *narrow.memory, *narrow.head, *narrow.listener)
    )
    assert [len(stack) for stack, _ in narrow.looped()] == [2 * 4, 2 * 4, 2 * 3]
    for stack, layers in narrow.looped():
        for whole, *parts in zip(stack, *layers, strict=True):
            assert torch.equal(whole, torch.stack(parts))
