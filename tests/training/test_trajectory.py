"""Losses over whole trajectories: by hand, stacked over seeds, through the same engine as everything else."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from looped.batches import Batch
from looped.errors import InputError
from looped.fast import trajectory
from looped.fast.engine import Engine
from looped.fast.stacked import StackedTransformer
from looped.methods import BEYOND
from looped.model import halting
from looped.training import curriculum

WAYS: dict[str, dict[str, object]] = {
    "act": {"model": {"halting": "act"}},
    "ponder": {"model": {"halting": "ponder"}, "halt_prior": 0.3},
    "best": {"supervision": "best", "loops": "2q"},
    "expected": {"supervision": "expected", "loops": "2q", "model": {"halting": "eoq"}},
    "drawn": {"loops": "q..2q"},
    "wrong": {"loops": "T+1"},
}


def test_the_best_step_and_all_later_ones_by_hand() -> None:
    each = torch.tensor([[[3.0, 1.0, 2.0, 4.0, 0.5], [1.0, 2.0, 3.0, 9.0, 9.0]]], requires_grad=True)
    total, best = trajectory.best_and_later(each, torch.tensor([[4, 1]]))
    assert best.tolist() == [[1, 0]]
    assert total.flatten().tolist() == pytest.approx([(1 + 2 + 4) / 3, 1.0]), (
        "step 5 is past the first row's own, all later past the second's"
    )
    total.sum().backward()
    assert each.grad is not None
    third = pytest.approx([0, 1 / 3, 1 / 3, 1 / 3, 0])
    assert each.grad[0].tolist() == [third, [1, 0, 0, 0, 0]]


def test_pondernets_loss_by_hand(tiny) -> None:
    config = tiny(batch=2, halt_cost=0.5, halt_prior=0.5)
    wants = torch.tensor([[[0.0, 0.0], [-20.0, 0.0]]])  # halts at 1 or 2 with even chances; surely at 2
    each = torch.tensor([[[1.0, 3.0], [5.0, 7.0]]])
    right = torch.tensor([[[True, False], [True, False]]])
    answer, cost, exact = trajectory.ponder_parts(config, wants, each, right)
    assert answer.tolist() == pytest.approx([(2.0 + 7.0) / 2])
    prior = (2 / 3, 1 / 3)
    first = 0.5 * math.log(0.5 / prior[0]) + 0.5 * math.log(0.5 / prior[1])
    assert cost.tolist() == pytest.approx([0.5 * (first + math.log(3)) / 2], rel=1e-4)
    assert exact.tolist() == [[True, False]]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lengths", ["stratified", "iid"])
def test_seeds_side_by_side_are_seeds_alone(tiny, way: str, lengths: str) -> None:
    noise = 0.1 if lengths == "stratified" else 0.0  # drawn once a step: as often for one seed as for two
    changes = {**WAYS[way], "lengths": lengths, "interval": 3, "batch": 6, "noise": noise}
    together = Engine(tiny("copy", seeds=(0, 1), **changes))
    alone = [Engine(tiny("copy", seeds=(s,), **changes)) for s in range(2)]
    for _ in range(8):
        readings = together.step()
        single = [engine.step() for engine in alone]
        torch.testing.assert_close(readings.loss, torch.cat([r.loss for r in single]))
        assert bool(readings.norm.isfinite().all())
    for s, engine in enumerate(alone):
        torch.testing.assert_close(together.weights[s], engine.weights[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("way", ["act", "ponder", "best"])
def test_recomputing_and_narrow_products_give_the_same_loss(tiny, way: str) -> None:
    plain = Engine(tiny("copy", **WAYS[way]))
    again = Engine(tiny("copy", checkpointing=True, **WAYS[way]))
    narrow = Engine(tiny("copy", products="bf16", **WAYS[way]))
    for _ in range(3):
        one, two, three = plain.step(), again.step(), narrow.step()
        torch.testing.assert_close(one.loss, two.loss)
        torch.testing.assert_close(one.norm, two.norm)
        torch.testing.assert_close(one.loss, three.loss, rtol=2e-2, atol=2e-2)
    assert torch.allclose(plain.weights, again.weights, atol=1e-6)


@pytest.mark.parametrize("way", ["act", "ponder", "expected"])
def test_halting_heads_learn_too(tiny, way: str) -> None:
    engine = Engine(tiny("copy", **WAYS[way]))
    model = engine.model
    slot = model.layout.slots["halt.weight"]
    before = engine.weights[:, slot.start : slot.start + slot.size].clone()
    for _ in range(3):
        engine.step()
    after = engine.weights[:, slot.start : slot.start + slot.size]
    assert bool((before != after).all())


def test_rows_run_for_the_rules_steps_and_fit_their_plan(tiny) -> None:
    for rule in ("q..2q", "T/2", "7", "2T"):
        engine = Engine(tiny("multiplication", max_length=5, batch=12, loops=rule))
        stage = engine.stage(5)
        assert stage.plan is not None
        assert stage.most == len(stage.plan.active)
        batch, _ = engine.draw(stage)
        for t in range(1, stage.most + 1):
            going = (batch.steps >= t).any(0).nonzero()[:, 0].tolist()
            assert not going or max(going) < stage.plan.active[t - 1]
            ends = (batch.steps == t).any(0).nonzero()[:, 0].tolist()
            assert not ends or min(ends) >= stage.plan.leaving[t - 1]


def test_the_default_draws_and_computes_what_it_always_did(tiny) -> None:
    config = tiny("copy")
    assert (config.loops, config.supervision, config.model.halting, config.whole) == (
        "T",
        "last",
        "none",
        False,
    )
    assert curriculum.strata(config, 4).upper[0] == 4
    assert halting.EPSILON == 0.01


@pytest.mark.parametrize(
    ("method", "changes", "complaint"),
    [
        ("ntp", {"loops": "2T"}, "ntp has a fixed depth: loops=2T cannot be had"),
        ("fop-loop-adaptive", {"loops": "3n"}, "loop steps are told as"),
        ("ntp", {"supervision": "best"}, "for adaptive methods without a halting head"),
        ("fop-loop-adaptive", {"supervision": "best", "backprop": 2}, "backprop cuts the gradient"),
        ("fop-loop-adaptive", {"model": {"halting": "eoq"}, "backprop": 2}, "backprop cuts the gradient"),
        ("ntp", {"model": {"halting": "eoq"}}, "halting=eoq is for adaptive methods"),
        (
            "fop-loop-adaptive",
            {"supervision": "expected"},
            "supervision=expected is for halting=eoq, not for none",
        ),
        ("fop-loop-adaptive", {"halt_prior": 1.0}, "halt_prior must be between 0 and 1"),
        ("fop-loop-adaptive", {"halt_cost": -1.0}, "halt_cost must not be negative"),
    ],
)
def test_what_cannot_be_asked_for(tiny, method: str, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        tiny("copy", method, **changes)


@pytest.mark.parametrize("way", ["act", "ponder", "best", "expected", "ut", "pondernet"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_waits_for_the_host(tiny, way: str, checkpointing: bool) -> None:
    """On tensors without values, whatever asks for a value or for a shape that depends on one raises."""
    method = way if way in BEYOND else "fop-loop-adaptive"
    shape = {"kind": "universal", "halting": BEYOND[way].halting} if way in BEYOND else {"positions": "start"}
    given = WAYS.get(way, {})
    model = {**shape, **given.get("model", {})}  # type: ignore[dict-item]
    config = tiny("copy", method, **{**given, "model": model, "checkpointing": checkpointing})
    engine = Engine(config)
    stage = engine.stage(4)
    batch, _ = engine.draw(stage)
    with FakeTensorMode(allow_non_fake_inputs=False) as fake:
        flat = fake.from_tensor(engine.weights).requires_grad_()
        blank = Batch(*(fake.from_tensor(getattr(batch, f.name)) for f in fields(batch)))
        folded = engine.model.prepare(flat)
        weights = engine.store.open(folded, torch.float32)
        outcome = trajectory.Trajectory(config, engine.model, weights, blank, stage.most).backpropagate()
        assert outcome.loss.shape == (2,)
        assert all(tensor.grad is not None for stack, _ in weights.looped() for tensor in stack)
    with FakeTensorMode() as fake, pytest.raises(DataDependentOutputException):
        fake.from_tensor(torch.ones(1)).item()


def test_what_the_mark_expects_step_by_step(tiny) -> None:
    """The loss of `expected` against a slow account of one row after the other, read at the mark alone."""
    engine = Engine(tiny("copy", seeds=(0,), **WAYS["expected"], batch=4))
    stage = engine.stage(4)
    batch, _ = engine.draw(stage)
    weights, model = engine.store.open(engine.model.prepare(engine.weights), torch.float32), engine.model
    with torch.no_grad():
        states = [h.clone() for h in StackedTransformer(replace(model.config, halting="none")).unroll(
            weights, batch.tokens, stage.most
        )]  # fmt: skip
    total = 0.0
    weight, bias = (part.detach().flatten() for part in weights.head)
    for row in range(4):
        counts = batch.loss_mask[0, row]
        mark = counts.tolist().index(True)
        left = 1.0
        for h in states:
            wants = float((h[0, row, mark] * weight).sum() + bias)
            chance = left / (1 + math.exp(-wants))
            scores = model.readout(weights, h)[0, row, counts].log_softmax(-1)
            wrong = -scores.gather(-1, batch.targets[0, row, counts][:, None]).mean()
            total += chance * float(wrong.detach()) / 4
            left -= chance
        total += left * math.log(model.config.vocab) / 4  # never to have spoken is a blind guess
    outcome = trajectory.Trajectory(engine.config, model, weights, batch, stage.most).backpropagate()
    assert outcome.loss.tolist() == pytest.approx([total], rel=1e-5)
