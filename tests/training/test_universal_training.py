"""The paper's other two systems go through the same engine: they learn, resume and stack like everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from looped import methods, runs
from looped.errors import InputError
from looped.evaluation.measure import Subject, measure
from looped.fast import StackedUniversal, build
from looped.fast.engine import Engine
from looped.training import recipes
from looped.training.trainer import Cadence, train

SHAPE = {"kind": "universal", "embedding_std": 1.0, "init_std": 0.2}


def shape(method: str, **changes: object) -> dict[str, object]:
    """The small model of a method."""
    return {**SHAPE, "halting": methods.get(method).halting, **changes}


@pytest.mark.parametrize("method", methods.BEYOND)
def test_short_copies_are_learned_exactly(tiny, method: str) -> None:
    config = tiny(
        "copy", method, model=shape(method, width=32, heads=4), seeds=(0,), max_length=2, start_length=2,
        steps=600, interval=200, batch=16, lr=(5e-3,), warmup=20, betas=(0.9, 0.98),
    )  # fmt: skip
    engine = Engine(config)
    model = build(config.model)
    reached = 0.0
    while engine.done < config.steps and reached < 1:
        for _ in range(25):
            engine.step()
        with torch.no_grad():
            weights = model.prepare(engine.evaluated_weights)
        subject = Subject(engine.task, engine.method, model, weights, config.seeds, config.max_length)
        reached = min(row.accuracy for row in measure(subject, [1, 2], 32, seed=1))
    assert reached == 1


@pytest.mark.parametrize("lengths", ["stratified", "iid"])
@pytest.mark.parametrize("method", methods.BEYOND)
def test_seeds_side_by_side_are_seeds_alone(tiny, method: str, lengths: str) -> None:
    changes = {"model": shape(method), "lengths": lengths, "interval": 2, "batch": 6}
    together = Engine(tiny("addition", method, seeds=(0, 1), **changes))
    alone = [Engine(tiny("addition", method, seeds=(s,), **changes)) for s in range(2)]
    for _ in range(6):
        readings = together.step()
        single = [engine.step() for engine in alone]
        torch.testing.assert_close(readings.loss, torch.cat([r.loss for r in single]), rtol=1e-4, atol=1e-5)
        assert bool(readings.norm.isfinite().all())


@pytest.mark.parametrize("method", methods.BEYOND)
def test_recomputing_and_narrow_products_give_the_same_loss(tiny, method: str) -> None:
    plain, again, narrow = (
        Engine(tiny("copy", method, model=shape(method), **changes))
        for changes in ({}, {"checkpointing": True}, {"products": "bf16"})
    )
    for _ in range(2):
        one, two, three = plain.step(), again.step(), narrow.step()
        torch.testing.assert_close(one.loss, two.loss)
        torch.testing.assert_close(one.norm, two.norm)
        torch.testing.assert_close(one.loss, three.loss, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("method", methods.BEYOND)
def test_a_run_is_a_folder_that_goes_on(tiny, tmp_path: Path, method: str) -> None:
    config = tiny("copy", method, model=shape(method), steps=6, seeds=(0, 1))
    cadence = Cadence(report_steps=2, evaluate_steps=3, samples=4, save_steps=1)
    stopped = iter([False, False, False, True])
    first = train(config, tmp_path / "broken", cadence=cadence, stop=lambda: next(stopped))
    assert (first.ending, first.step) == ("interrupted", 3)
    second = train(config, tmp_path / "broken", cadence=cadence)
    whole = train(config, tmp_path / "whole", cadence=cadence)
    assert second.ending == whole.ending == "finished"
    rows = [runs.load_seed(tmp_path / name / "seed-1.safetensors").row for name in ("broken", "whole")]
    assert torch.equal(*rows)
    assert {row["stop"] for row in whole.evaluation} == {"halt"}


@pytest.mark.parametrize("recipe", ["paper", "fast", "quick"])  # long is for what predicts all at once
@pytest.mark.parametrize("method", methods.BEYOND)
def test_recipes_make_them(recipe: str, method: str) -> None:
    config = recipes.make("addition", method, recipe, (0,))
    assert (config.model.kind, config.model.halting) == ("universal", methods.get(method).halting)
    assert config.stops == ("halt",)
    assert isinstance(build(config.model), StackedUniversal)


@pytest.mark.parametrize(
    ("method", "changes", "complaint"),
    [
        ("ut", {}, "the method ut and a decoder model do not go together"),
        ("fop-loop-adaptive", {"model": shape("ut")}, "fop-loop-adaptive and a universal model"),
        ("ut", {"model": shape("ut"), "noise": 0.1}, "ut takes neither noise"),
    ],
)
def test_what_does_not_go_together(tiny, method: str, changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        tiny("copy", method, **changes)
