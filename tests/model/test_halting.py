"""Halting by hand: remainders, costs, distributions and divergences against numbers worked out on paper."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from looped.errors import InputError
from looped.fast import StackedTransformer
from looped.model import ModelConfig, halting
from looped.model.halting import Act, act_start, act_step


def run_act(p: list[list[float]], h: Tensor, last: bool = True) -> Act:
    """ACT over steps × places of probabilities; `h` is steps × places × width."""
    now = act_start(torch.zeros_like(h[0]))
    for t, (chances, state) in enumerate(zip(p, h, strict=True), 1):
        now = act_step(now, state, torch.tensor(chances, dtype=h.dtype), last=last and t == len(p))
    return now


@pytest.mark.parametrize(
    ("p", "steps", "remainder", "weights"),
    [
        ([0.3, 0.5, 0.4, 0.9], 3, 0.2, [0.3, 0.5, 0.2, 0.0]),
        ([0.995, 0.5, 0.5, 0.5], 1, 1.0, [1.0, 0.0, 0.0, 0.0]),  # one step is enough: all of it is remainder
        ([0.5, 0.49, 0.1, 0.1], 2, 0.5, [0.5, 0.5, 0.0, 0.0]),  # exactly 1 - ε counts as enough
        ([0.1, 0.1, 0.1, 0.1], 4, 0.7, [0.1, 0.1, 0.1, 0.7]),  # never enough: the last step takes the rest
    ],
)
def test_act_by_hand(p: list[float], steps: int, remainder: float, weights: list[float]) -> None:
    h = torch.tensor([[[1.0]], [[10.0]], [[100.0]], [[1000.0]]], dtype=torch.float64)
    now = run_act([[chance] for chance in p], h)
    assert now.steps.item() == steps
    assert now.remainder.item() == pytest.approx(remainder)
    assert now.cost.item() == pytest.approx(steps + remainder)
    assert now.used.item() == pytest.approx(1)
    expected = sum(w * value for w, value in zip(weights, (1, 10, 100, 1000), strict=True))
    assert now.output.item() == pytest.approx(expected)
    assert now.read.item() == pytest.approx(expected), "nothing is left to give away"


def test_a_place_that_has_halted_is_not_changed_by_later_steps() -> None:
    h = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))
    p = [[0.6, 0.1], [0.6, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1]]
    early = run_act(p[:2], h[:2], last=False)
    late = run_act(p, h, last=False)
    assert not early.running[0]
    assert early.running[1]
    for name in ("output", "state", "steps", "remainder", "used"):
        assert torch.equal(getattr(early, name)[0], getattr(late, name)[0]), name
        assert not torch.equal(getattr(early, name)[1], getattr(late, name)[1]) or name == "remainder"
    assert torch.equal(late.state[0], h[1, 0]), "copied, as the Universal Transformer says"


def test_the_cost_pulls_at_every_probability_but_the_last() -> None:
    p = torch.tensor([0.3, 0.5, 0.4], requires_grad=True)
    now = act_start(torch.zeros(1, 2))
    for t in range(3):
        now = act_step(now, torch.ones(1, 2), p[t : t + 1], last=t == 2)
    now.cost.sum().backward()
    assert p.grad is not None
    assert p.grad.tolist() == [-1, -1, 0], "R = 1 - p1 - p2"


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ([0.5, 0.5, 0.5], [0.5, 0.25, 0.25]),
        ([0.2, 0.5, 0.1, 0.9], [0.2, 0.4, 0.04, 0.36]),
        ([0.9], [1.0]),
    ],
)
def test_the_halting_distribution_by_hand(chances: list[float], expected: list[float]) -> None:
    log_p = halting.log_halting(torch.tensor(chances, dtype=torch.float64).logit())
    assert log_p.exp().tolist() == pytest.approx(expected)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-60, 60), min_size=1, max_size=40))
def test_it_sums_to_one_and_its_gradients_are_finite(wants: list[float]) -> None:
    leaf = torch.tensor(wants, requires_grad=True)
    log_p = halting.log_halting(leaf)
    assert log_p.detach().exp().sum().item() == pytest.approx(1, abs=1e-5)
    prior = halting.log_geometric(0.1, len(wants))
    loss = halting.expected(torch.arange(1.0, len(wants) + 1), log_p) + halting.divergence(log_p, prior)
    (grad,) = torch.autograd.grad(loss, leaf)
    assert bool(grad.isfinite().all())
    assert halting.divergence(log_p, prior).item() >= -1e-4


def test_the_geometric_law_and_the_divergence_by_hand() -> None:
    prior = halting.log_geometric(0.5, 3).exp()
    assert prior.tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert float(halting.divergence(prior.log(), prior.log())) == pytest.approx(0, abs=1e-6)
    p = torch.tensor([0.25, 0.25, 0.5])
    by_hand = 0.25 * math.log(0.25 / (4 / 7)) + 0.25 * math.log(0.25 / (2 / 7)) + 0.5 * math.log(0.5 * 7)
    assert float(halting.divergence(p.log(), prior.log())) == pytest.approx(by_hand)


def test_the_expected_loss_is_taken_before_the_mean_over_examples() -> None:
    losses = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    log_p = torch.tensor([[0.75, 0.25], [0.5, 0.5]]).log()
    assert halting.expected(losses, log_p).tolist() == pytest.approx([1.5, 6.0])


def test_positions_that_do_not_count_have_no_say() -> None:
    each = torch.tensor([[[1.0, 2.0, 4.0]]])
    counted = torch.tensor([[[True, False, True]]])
    assert halting.pooled(each, counted).tolist() == [[2.5]]
    wild = torch.where(counted, each, 1e6)
    assert torch.equal(halting.pooled(wild, counted), halting.pooled(each, counted))


# --- the mark -----------------------------------------------------------------------------------------------
def test_what_a_mark_costs_by_hand() -> None:
    chances = torch.tensor([0.1, 0.2, 0.9, 0.7])
    ends = torch.tensor([False, False, True, False])
    running = torch.tensor([True, True, True, False])  # what comes after the end costs nothing
    each = halting.eoq_cost(chances.logit()[None], ends[None], running[None])
    assert float(each.sum()) == pytest.approx(-math.log(0.9 * 0.8 * 0.9), abs=1e-6)


def test_the_mark_is_where_the_answer_begins() -> None:
    x = torch.arange(24.0).view(1, 2, 4, 3)
    counted = torch.tensor([[[False, False, True, True], [False, True, True, True]]])
    at = halting.at_eoq(x, counted)
    assert at.tolist() == [[[6.0, 7.0, 8.0], [15.0, 16.0, 17.0]]]
    head = (torch.tensor([1.0, 0.0, 2.0]).view(1, 1, 1, 3), torch.full((1, 1, 1), 0.5))
    assert halting.logits(head, at).tolist() == [[22.5, 49.5]]


def test_a_row_whose_mark_has_spoken_is_not_changed_by_later_steps() -> None:
    head = (torch.tensor([1.0]).view(1, 1, 1, 1), torch.zeros(1, 1, 1))
    counted = torch.tensor([[[False, True], [False, True]]])
    gate = halting.Gate("eoq", head, counted)
    says = [[-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]]  # of two rows, after each step
    seen = []
    for t, row in enumerate(says, 1):
        h = torch.stack([torch.full((2,), float(t)), torch.tensor(row)], dim=-1)[None, ..., None]
        state, after = gate.after(h)
        assert state is after
        assert gate.halted is not None
        seen.append((state[0, :, 0, 0].tolist(), gate.halted[0].tolist()))
    assert seen == [([1, 1], [0, 0]), ([2, 2], [1, 0]), ([2, 3], [1, 1]), ([2, 3], [1, 1])]
    gate.keep(torch.tensor([[0]]), torch.tensor([[1]]))
    state, _ = gate.after(torch.full((1, 1, 2, 1), 9.0))
    assert state[0, 0, 0, 0] == 3, "the row that is left is the second"


# --- on the looped decoder ----------------------------------------------------------------------------------
TOKENS = torch.tensor([[[0, 1, 2, 3, 4]]]).expand(2, 3, 5)


def test_a_head_adds_its_weights_at_the_end_and_changes_nothing_else() -> None:
    plain = StackedTransformer(ModelConfig(vocab=5, width=16, heads=2, layers=1))
    headed = StackedTransformer(ModelConfig(vocab=5, width=16, heads=2, layers=1, halting="ponder"))
    assert list(headed.layout.slots) == [*plain.layout.slots, "halt.weight", "halt.bias"]
    flat, more = plain.layout.initialise([1, 2]), headed.layout.initialise([1, 2])
    assert torch.equal(flat, more[:, : flat.shape[1]])
    ours = list(plain.unroll(plain.prepare(flat), TOKENS, 3))
    theirs = list(headed.unroll(headed.prepare(more), TOKENS, 3))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_prepared_weights_survive_being_taken_apart() -> None:
    model = StackedTransformer(ModelConfig(vocab=5, width=16, heads=2, halting="act", positions="learned"))
    weights = model.prepare(model.layout.initialise([0, 1]))
    again = weights.with_tensors(weights.tensors())
    assert all(a is b for a, b in zip(weights.tensors(), again.tensors(), strict=True))
    assert again.head is not None
    assert [tuple(t.shape) for t in again.head] == [(2, 1, 1, 16), (2, 1, 1)]


@pytest.mark.parametrize("kind", ["act", "ponder"])
def test_a_gate_tells_when_a_row_has_halted(kind: halting.Halting) -> None:
    config = ModelConfig(vocab=5, width=16, heads=2, layers=1, halting=kind, halt_bias=-0.5, init_std=0.3)
    model = StackedTransformer(config)
    weights = model.prepare(model.layout.initialise([0, 1]))
    counted = torch.tensor([False, False, True, True, True]).expand(1, 3, 5)
    gate = model.gate(weights, counted)
    halted, reads = [], []
    for seen in model.unroll(weights, TOKENS, 12, gate):
        assert gate.halted is not None
        halted.append(gate.halted)
        reads.append(seen)
    series = torch.stack(halted)
    assert bool((series.diff(dim=0) >= 0).all()), "nobody comes back"
    assert float(series[-1].min()) > 0.9
    if kind == "act":
        first = int((series[:, 0, 0] == 1).int().argmax())
        assert 0 < first < 11
        assert torch.equal(reads[first][0, 0, 2:], reads[-1][0, 0, 2:]), "a halted row stays as it is"
        assert not torch.equal(reads[first - 1][0, 0, 2:], reads[first][0, 0, 2:])


def test_a_loop_whose_marks_have_all_spoken_computes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(vocab=5, width=16, heads=2, layers=1, halting="eoq", halt_bias=9.0)
    model = StackedTransformer(config)
    weights = model.prepare(model.layout.initialise([0, 1]))
    computed = []
    step = model.step
    monkeypatch.setattr(model, "step", lambda *given: computed.append(1) or step(*given))
    counted = torch.tensor([False, False, True, True, True]).expand(1, 3, 5)
    states = list(model.unroll(weights, TOKENS, 4, model.gate(weights, counted)))
    assert len(computed) == 1
    assert all(torch.equal(state, states[0]) for state in states)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"halting": "act", "halt": 0}, "by an entry of its state or by a head"),
        ({"kind": "universal"}, "has a halting head"),
        ({"kind": "universal", "halting": "act", "bands": (2,)}, "without bands"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ModelConfig(vocab=5, **changes)  # type: ignore[arg-type]


def test_a_mark_that_never_speaks_keeps_its_chance_by_hand() -> None:
    even = halting.log_speaking(torch.zeros(2)).exp()
    assert even.tolist() == pytest.approx([0.5, 0.25, 0.25])  # at step 1, at step 2, never
    silent = halting.log_speaking(torch.full((3,), -40.0)).exp()
    assert silent.tolist() == pytest.approx([0, 0, 0, 1])
    prior = halting.log_open_geometric(0.1, 3).exp()
    assert prior.tolist() == pytest.approx([0.1, 0.09, 0.081, 0.729])
    assert float(halting.divergence(prior.log(), prior.log())) == pytest.approx(0)
