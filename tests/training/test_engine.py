"""The engine as a whole: seeds side by side are seeds alone, and every method of the paper learns."""

from __future__ import annotations

import pytest
import torch
from distance import apart

from looped.errors import InputError
from looped.evaluation.measure import Subject, measure
from looped.fast import StackedTransformer, onednn
from looped.fast.engine import Engine
from looped.methods import METHODS
from looped.training import curriculum, optimizer
from looped.training.engine import TrainingEngine

QUICK = ("fop-loop-adaptive", "ntp", "fop")  # methods of the ordinary test run


def exact_on_short(engine: Engine) -> float:
    """The worst accuracy over the training lengths."""
    config = engine.config
    model = StackedTransformer(config.model)
    with torch.no_grad():
        weights = model.prepare(engine.evaluated_weights)
    subject = Subject(engine.task, engine.method, model, weights, config.seeds, config.max_length)
    rows = measure(subject, range(1, config.max_length + 1), 64, seed=1)
    return min(row.accuracy for row in rows)


@pytest.mark.parametrize(
    "method",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS],
)
def test_every_method_learns_short_problems_exactly(tiny, method: str) -> None:
    model = {"width": 32, "heads": 4, "init_std": 0.1, "positions": "learned", "max_positions": 40}
    config = tiny(
        "copy", method,
        model=model, seeds=(0,), max_length=3, start_length=3, steps=600, interval=200, batch=16,
        lr=(5e-3,), warmup=20, betas=(0.9, 0.98),
    )  # fmt: skip
    engine = Engine(config)
    assert exact_on_short(engine) < 0.5, "it does not know beforehand"
    reached = 0.0
    while engine.done < config.steps and reached < 1.0:
        for _ in range(25):
            engine.step()
        reached = exact_on_short(engine)
    assert reached == 1.0


@pytest.mark.parametrize("lengths", ["stratified", "iid"])
@pytest.mark.parametrize("method", ["fop-loop-adaptive", "fop-loop-adaptive-wo", "ntp"])
def test_five_seeds_side_by_side_are_five_seeds_alone(tiny, method: str, lengths: str) -> None:
    rates = (1e-3, 2e-3, 3e-3, 4e-3, 5e-3)
    changes = {"lengths": lengths, "interval": 3, "ema": 0.9, "batch": 6}
    together = Engine(tiny("copy", method, seeds=(0, 1, 2, 3, 4), lr=rates, **changes))
    alone = [Engine(tiny("copy", method, seeds=(s,), lr=(rates[s],), **changes)) for s in range(5)]
    for _ in range(15):
        readings = together.step()
        single = [engine.step() for engine in alone]
        torch.testing.assert_close(readings.loss, torch.cat([r.loss for r in single]))
        torch.testing.assert_close(readings.norm, torch.cat([r.norm for r in single]), rtol=1e-4, atol=1e-5)
    for s, engine in enumerate(alone):
        assert apart(engine.config, together.weights[s : s + 1], engine.weights) <= 2e-5
        assert apart(engine.config, together.evaluated_weights[s : s + 1], engine.evaluated_weights) <= 2e-5


@pytest.mark.parametrize("smallest", [onednn.SMALLEST, 1])
def test_the_same_seed_gives_the_same_run(tiny, smallest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "SMALLEST", smallest)  # by either library
    first, second = Engine(tiny(ema=0.9)), Engine(tiny(ema=0.9))
    for _ in range(12):
        first.step()
        second.step()
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.weights[0], first.weights[1])


@pytest.mark.parametrize("lengths", ["stratified", "iid"])
def test_rows_are_sorted_by_their_steps_and_fit_their_plan(tiny, lengths: str) -> None:
    engine = Engine(tiny("multiplication", max_length=5, batch=12, lengths=lengths))
    stage = engine.stage(5)
    for _ in range(5):
        batch, longest = engine.draw(stage)
        lower, upper = batch.steps.amin(0).tolist(), batch.steps.amax(0).tolist()
        plan = stage.plan or curriculum.plan(lower, upper)
        for t in range(1, max(upper) + 1):
            going = [i for i, most in enumerate(upper) if most >= t]
            assert not going or max(going) < plan.active[t - 1]
        if lengths == "iid":
            assert bool((batch.steps.diff(dim=1) <= 0).all())
        assert longest.shape == batch.steps.shape


@pytest.mark.parametrize("task", ["copy", "multiplication"])
def test_fixed_shapes_give_what_each_batchs_own_do(tiny, task: str) -> None:
    losses = []
    for fixed in (False, True):
        engine = Engine(tiny(task, lengths="iid", max_length=5, start_length=5, batch=24))
        engine.graphs = fixed  # as where a step is captured
        stage = engine.stage(5)
        assert (stage.plan is not None) == fixed
        engine._hyper.copy_(torch.tensor(optimizer.hyper(engine.config, 1.0, 0)))
        losses.append(torch.stack([TrainingEngine._carry_out(engine, stage).loss for _ in range(5)]))
    torch.testing.assert_close(losses[0], losses[1])


def test_a_row_without_a_seat_is_read_where_its_seat_ends(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "RARE", 0.5)  # half of the batches have too few
    engine = Engine(tiny(lengths="iid", max_length=5, start_length=5, batch=24))
    exact, _ = engine.draw(engine.stage(5))
    engine = Engine(engine.config)
    engine.graphs = True
    stage = engine.stage(5)
    assert stage.row_capacity is not None
    batch, _ = engine.draw(stage)
    assert bool((exact.steps > stage.row_capacity).any())
    assert torch.equal(batch.steps, torch.minimum(exact.steps, stage.row_capacity))
    assert bool(TrainingEngine._carry_out(engine, stage).loss.isfinite().all())


def test_independent_draws_may_be_of_any_variant(tiny) -> None:
    changes = {"lengths": "iid", "batch": 1, "max_length": 5, "start_length": 5, "supervision": "best"}
    engine = Engine(tiny("multiplication", seeds=tuple(range(8)), **changes))
    assert engine.stage(5).most == 10, "twice five, though a batch of one has room for one variant only"
    for _ in range(4):
        assert bool(engine.step().loss.isfinite().all())


def test_accuracy_at_the_longest_is_no_number_where_nothing_is_long(tiny) -> None:
    engine = Engine(tiny(lengths="iid", batch=1, max_length=4, start_length=4, seeds=tuple(range(20))))
    readings = engine.step()
    some = readings.accuracy_longest.isnan()
    assert 0 < int(some.sum()) < 20
    assert torch.equal(readings.accuracy_longest[~some], readings.accuracy[~some])


def test_questions_are_drawn_from_the_family_that_is_asked_for(tiny) -> None:
    engine = Engine(tiny(family="ones", max_length=4))
    batch, _ = engine.draw(engine.stage(4))
    assert set(batch.targets[batch.loss_mask].unique().tolist()) == {1, engine.task.vocab.eos}
    with pytest.raises(InputError, match="no input distribution 'dozens'"):
        tiny(family="dozens")
