"""Back-propagation step by step against autograd over one problem at a time, each looped to its own T.

`slow` is the definition: it knows no batches, no plans, no dropping of finished rows. Everything the fast way can
do (leave rows out, recompute, cut the gradient, gather it elsewhere, stack seeds) must give the same.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from looped.batches import Batch
from looped.fast import StackedTransformer, onednn
from looped.fast.backprop import backpropagate, ceiling, held
from looped.fast.engine import Engine
from looped.fast.folding import GradientStore
from looped.fast.packing import Packing
from looped.training import curriculum
from looped.training.config import TrainConfig
from looped.training.curriculum import Plan


def slow(
    config: TrainConfig, flat: Tensor, batch: Batch, depth: Tensor | None = None, halt_cost: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Loss of every seed, and its gradient, one problem after the other; what halting costs is in the gradient only."""
    flat = flat.clone().requires_grad_()
    model = StackedTransformer(config.model)
    losses = []
    halts = torch.zeros(())
    for s in range(batch.tokens.shape[0]):
        weights = model.prepare(flat[s : s + 1])
        total = torch.zeros(())
        for b in range(batch.tokens.shape[1]):
            steps = int(batch.steps[s, b])
            free = 0 if depth is None else max(0, steps - int(depth[s, b]))  # steps without a gradient
            x = model.embed(weights, batch.tokens[s, b][None, None])
            mark = int(batch.loss_mask[s, b].int().argmax())
            h = None
            for t in range(1, steps + 1):
                with torch.set_grad_enabled(t > free):
                    h = model.step(weights, model.inject(h, x))
                if halt_cost:
                    weight, bias = weights.head
                    chance = torch.sigmoid((h[0, 0, mark] * weight.flatten()).sum() + bias.sum())
                    halts = halts - halt_cost * torch.log(chance if t == steps else 1 - chance)
            logits = model.readout(weights, h)[0, 0]
            each = F.cross_entropy(logits, batch.targets[s, b], reduction="none")
            total = total + each[batch.loss_mask[s, b]].sum()
        losses.append(total / batch.loss_mask[s].sum())
    loss = torch.stack(losses)
    (grad,) = torch.autograd.grad(loss.sum() + halts, flat)
    return loss.detach(), grad


def fast(
    config: TrainConfig,
    flat: Tensor,
    batch: Batch,
    plan: Plan,
    packing: Packing | None = None,
    *,
    accumulate: bool = False,
    **options,
) -> tuple[Tensor, Tensor]:
    """The same by way of `backpropagate`."""
    flat = flat.clone().requires_grad_()
    store = GradientStore(accumulate)
    model = StackedTransformer(config.model, store.linear)
    folded = model.prepare(flat)
    weights = store.open(folded, torch.float32)
    packing = packing or Packing(Engine(config).stage(config.max_length).computed)
    outcome = backpropagate(model, weights, batch, plan, packing, **options)
    (grad,) = torch.autograd.grad(folded.tensors(), [flat], store.close(weights))
    return outcome.loss, grad


def drawn(config: TrainConfig) -> tuple[Tensor, Batch, Plan]:
    """Weights large enough to make every step matter, a batch, and the plan of its stage."""
    engine = Engine(config)
    stage = engine.stage(config.max_length)
    batch, _ = engine.draw(stage)
    plan = stage.plan or curriculum.plan(batch.steps.amin(0).tolist(), batch.steps.amax(0).tolist())
    return engine.weights, batch, plan


def check(got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(got[0], expected[0], rtol=1e-5, atol=1e-6)
    scale = float(expected[1].abs().max())
    torch.testing.assert_close(got[1] / scale, expected[1] / scale, rtol=1e-4, atol=2e-6)


WAYS = {
    "plain": {},
    "recomputing": {"checkpointing": True},
    "gathering": {"accumulate": True},
    "gathering and recomputing": {"accumulate": True, "checkpointing": True},
    "by oneDNN": {},
    "by oneDNN where it is large": {},
}
SMALLEST = {"by oneDNN": 1, "by oneDNN where it is large": 60 * 16 * 16}  # more than a loop's last steps have


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lengths", ["stratified", "iid"])
@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("copy", "fop-loop-adaptive"),
        ("copy", "fop-loop-adaptive-wo"),
        ("multiplication", "fop-loop-adaptive"),
        ("parity", "fop-loop-fixed"),
        ("copy", "ntp-loop"),
        ("addition", "fop-pause"),
    ],
)
def test_the_loss_at_each_problems_own_step(
    tiny, task: str, method: str, lengths: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onednn, "SMALLEST", SMALLEST.get(way, onednn.SMALLEST))
    config = tiny(task, method, lengths=lengths, batch=6, model={"init_std": 0.3, "layers": 2})
    weights, batch, plan = drawn(config)
    check(fast(config, weights, batch, plan, **WAYS[way]), slow(config, weights, batch))


OWN: dict[str, tuple[str, str, dict]] = {
    "adaptive": ("copy", "fop-loop-adaptive", {}),
    "two variants": ("multiplication", "fop-loop-adaptive-wo", {}),
    "fixed": ("parity", "fop-loop-fixed", {}),
    "one step": ("addition", "fop-pause", {}),
    "next token": ("unique_set", "ntp-loop", {}),
    "a start and a mark": ("copy", "fop-loop-adaptive", {"positions": "start", "halting": "eoq"}),
    "learned positions": ("copy", "fop-loop-adaptive", {"positions": "learned", "max_positions": 40}),
    "rotary": ("copy", "fop-loop-adaptive", {"positions": "rotary", "bands": (2,)}),
    "a relay": ("copy", "fop-loop-adaptive-wo", {"relay": 3}),
    "a layer before": ("copy", "fop-loop-adaptive", {"before": 1}),
}
PADDED = ("a relay", "a layer before")  # what looks at whole rows outside the loop's attention


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", OWN)
def test_rows_of_their_own_size(tiny, case: str, way: str) -> None:
    task, method, changes = OWN[case]
    model = {"init_std": 0.3, "layers": 2, **changes}
    config = tiny(task, method, padding_loss="own", batch=10, max_length=6, model=model)
    weights, batch, plan = drawn(config)
    packing = Packing(Engine(config).stage(6).computed)
    assert packing.even == (case in PADDED)
    counted = batch.loss_mask.sum(-1)
    assert int(counted.max()) > int(counted.min())
    cost = {"halt_cost": 0.3} if "halting" in changes else {}
    check(fast(config, weights, batch, plan, **WAYS[way], **cost), slow(config, weights, batch, **cost))


@pytest.mark.parametrize("most", [1, 3])
def test_the_gradient_of_the_last_steps_of_rows_of_their_own_size(tiny, most: int) -> None:
    config = tiny(padding_loss="own", batch=10, max_length=6, model={"init_std": 0.3})
    weights, batch, plan = drawn(config)
    depth = torch.full_like(batch.steps, most)
    check(fast(config, weights, batch, plan, depth=depth, most=most), slow(config, weights, batch, depth))
    held = fast(config, weights, batch, plan, depth=depth, most=most, growth_clip=0.3)
    even = Packing.padded(*batch.tokens.shape[1:])
    check(held, fast(config, weights, batch, plan, even, depth=depth, most=most, growth_clip=0.3))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["fop-loop-adaptive", "fop-loop-adaptive-wo"])
def test_what_the_last_position_tells_all_others_has_its_gradient(tiny, method: str, way: str) -> None:
    config = tiny("copy", method, batch=6, model={"init_std": 0.3, "layers": 2, "relay": 3})
    weights, batch, plan = drawn(config)
    check(fast(config, weights, batch, plan, **WAYS[way]), slow(config, weights, batch))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("task", ["copy", "multiplication"])
def test_a_mark_is_told_when_to_speak(tiny, task: str, way: str) -> None:
    config = tiny(task, batch=6, extra=2, model={"init_std": 0.3, "layers": 2, "halting": "eoq"})
    weights, batch, plan = drawn(config)
    got = fast(config, weights, batch, plan, halt_cost=0.3, **WAYS[way])
    check(got, slow(config, weights, batch, halt_cost=0.3))
    without = fast(config, weights, batch, plan, **WAYS[way])
    assert float((got[1] - without[1]).abs().max()) > 1e-2 * float(without[1].abs().max())


@pytest.mark.parametrize("injection", [True, False])
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_the_gradient_of_the_last_steps_only(tiny, most: int, accumulate: bool, injection: bool) -> None:
    config = tiny(max_length=6, model={"init_std": 0.3, "injection": injection})
    weights, batch, plan = drawn(config)
    depth = torch.full_like(batch.steps, most)
    got = fast(config, weights, batch, plan, depth=depth, most=most, accumulate=accumulate)
    check(got, slow(config, weights, batch, depth))


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize(
    ("method", "changes"),
    [("fop-loop-fixed", {}), ("ntp-loop", {}), ("fop-loop-adaptive", {"loops": "2T"})],
    ids=["fixed", "next token", "twice T"],
)
def test_steps_that_nothing_flows_through(tiny, method: str, changes: dict[str, str], most: int) -> None:
    config = tiny("parity", method, max_length=5, model={"init_std": 0.3}, **changes)
    weights, batch, plan = drawn(config)
    assert plan.leaving[0] == plan.active[0], "none ends at the first step"
    depth = torch.full_like(batch.steps, most)
    check(fast(config, weights, batch, plan, depth=depth, most=most), slow(config, weights, batch, depth))


def test_every_problem_may_have_its_own_depth(tiny) -> None:
    config = tiny(max_length=6, model={"init_std": 0.3})
    weights, batch, plan = drawn(config)
    depth = torch.randint(1, 4, batch.steps.shape, generator=torch.Generator().manual_seed(3))
    assert len(depth.unique()) == 3
    check(fast(config, weights, batch, plan, depth=depth, most=3), slow(config, weights, batch, depth))


def test_a_cut_changes_the_gradient_and_not_the_loss(tiny) -> None:
    config = tiny(max_length=6, model={"init_std": 0.3})
    weights, batch, plan = drawn(config)
    whole = fast(config, weights, batch, plan)
    cut = fast(config, weights, batch, plan, depth=torch.full_like(batch.steps, 2), most=2)
    torch.testing.assert_close(cut[0], whole[0])
    assert float((cut[1] - whole[1]).abs().max()) > 1e-3 * float(whole[1].abs().max())


def test_rows_that_stay_to_the_end_change_nothing(tiny) -> None:
    config = tiny(max_length=5, model={"init_std": 0.3})
    weights, batch, plan = drawn(config)
    assert sum(plan.active) < config.batch * len(plan.active), "some rows leave early"
    nobody_leaves = Plan((config.batch,) * len(plan.active), (0,) * len(plan.active))
    check(fast(config, weights, batch, plan), fast(config, weights, batch, nobody_leaves))


@pytest.mark.parametrize("way", WAYS)
def test_stacked_seeds_are_single_seeds(tiny, way: str) -> None:
    config = tiny(seeds=(0, 1, 2), model={"init_std": 0.3})
    weights, batch, plan = drawn(config)
    loss, grad = fast(config, weights, batch, plan, **WAYS[way])
    for s in range(3):
        one = Batch(*(x[s : s + 1] for x in (batch.tokens, batch.targets, batch.loss_mask, batch.steps)))
        single = fast(config, weights[s : s + 1], one, plan, **WAYS[way])
        check((loss[s : s + 1], grad[s : s + 1]), single)


@pytest.mark.parametrize("positions", ["rotary", "alibi", "learned"])
def test_positions_and_bands_have_their_gradient(tiny, positions: str) -> None:
    config = tiny(model={"positions": positions, "bands": (2,), "max_positions": 32, "init_std": 0.3})
    weights, batch, plan = drawn(config)
    check(fast(config, weights, batch, plan), slow(config, weights, batch))


def test_a_gradient_past_its_ceiling_is_scaled_down_to_it() -> None:
    final = torch.tensor([[[3.0, 0.0], [0.0, 4.0], [0.0, 0.0], [0.0, 1.0]]])  # norms 5, 0, 1
    packing = Packing((2, 1, 1))
    highest = ceiling(final, packing, 2.0)
    assert highest is not None
    assert highest.tolist() == [[10.0, 0.0, 2.0]]
    flow = torch.tensor([[[30.0, 0.0], [0.0, 40.0], [0.0, 0.0], [0.6, 0.8]]])
    assert held(packing, flow, highest).tolist() == [
        [[6.0, 0.0], [0.0, 8.0], [0.0, 0.0], [pytest.approx(0.6), pytest.approx(0.8)]]
    ]
    assert held(packing, flow[:, :2], highest).tolist() == [[[6.0, 0.0], [0.0, 8.0]]], "the first row alone"
    assert ceiling(final, packing, 0.0) is None


def test_equal_rows_that_are_shorter_than_their_padding(tiny) -> None:
    config = tiny(padding_loss="own", batch=10, max_length=6, model={"init_std": 0.3, "layers": 2})
    weights, batch, _ = drawn(config)
    packing = Packing(Engine(config).stage(6).computed)
    short = [i for i, size in enumerate(packing.sizes) if size == min(packing.sizes)]
    few = Batch(*(x[:, short] for x in (batch.tokens, batch.targets, batch.loss_mask, batch.steps)))
    assert packing.sizes[short[0]] < few.tokens.shape[2]
    own = curriculum.plan(few.steps.amin(0).tolist(), few.steps.amax(0).tolist())
    check(fast(config, weights, few, own, packing.part(short[0], short[-1] + 1)), slow(config, weights, few))
