"""The plain engine: the fast engine's gradient steps to rounding, resumed bit for bit, refusals by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped import runs
from looped.errors import InputError
from looped.fast.engine import Engine
from looped.model.looped import checkpoint_weights
from looped.training import recipes
from looped.training.plain import PlainEngine
from looped.training.trainer import Cadence, train

STEPS = 12

# Anything of the configuration that both engines know.
CASES: dict[str, dict[str, object]] = {
    "stratified": {},
    "iid": {"lengths": "iid"},
    "own ends": {"padding_loss": "own"},
    "noise": {"noise": 0.2},
    "noise, own ends": {"noise": 0.2, "padding_loss": "own"},
    "noise, iid": {"noise": 0.2, "lengths": "iid"},
    "extra steps": {"extra": 3},
    "other loops": {"loops": "q..2q"},
    "average": {"ema": 0.9},
    "late average": {"ema": 0.9, "late_ema": True, "steps": 14, "interval": 2},
    "clipped": {"clip": 0.05, "weight_decay": 0.2, "betas": (0.8, 0.95)},
    "warm-up and hold": {"warmup": 5, "hold": 3, "cooling": 0.5, "stage_steps": (3, 2)},
    "limited growth": {"growth_clip": 1.5},
    "tightly limited growth": {"growth_clip": 0.3},
    "limited growth, noise, own ends": {"growth_clip": 1.2, "noise": 0.2, "padding_loss": "own"},
    "cut gradients": {"backprop": 2},
    "randomly cut gradients": {"backprop": 2, "window": "random"},
    "recomputed": {"checkpointing": True},
    "two rates": {"lr": (1e-3, 3e-3)},
    "randomised": {"model": {"positions": "randomised", "max_positions": 30}},
    "bands and start": {"model": {"bands": (2,), "positions": "start", "sharpen": True}},
    "linear start": {"model": {"initialisation": "linear"}},
    "eoq": {"model": {"halting": "eoq"}, "halt_cost": 0.1},
    "mark, limited growth": {"model": {"halting": "eoq"}, "halt_cost": 0.1, "growth_clip": 1.2},
    "relu without injection": {"model": {"activation": "relu", "injection": False}},
    "layers before and relay": {"model": {"before": 1, "relay": 3}},
}


def compare(config: object, steps: int = STEPS, tolerance: float = 2e-5) -> None:
    fast, plain = Engine(config), PlainEngine(config)  # type: ignore[arg-type]
    for _ in range(steps):
        theirs, ours = fast.step(), plain.step()
        torch.testing.assert_close(ours.loss, theirs.loss.float(), atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(ours.norm, theirs.norm.float(), atol=10 * tolerance, rtol=100 * tolerance)
        torch.testing.assert_close(ours.accuracy, theirs.accuracy)
        torch.testing.assert_close(ours.accuracy_longest, theirs.accuracy_longest, equal_nan=True)
    for i in range(len(plain.nets)):
        expected = fast.seed_weights(i)
        for name, ours_ in plain.seed_weights(i).items():
            # AdamW divides by a gradient's size: where that is rounding noise, so is the direction of the update
            apart = (ours_ - expected[name]).abs()
            assert float(apart.mean()) < tolerance, name


@pytest.mark.parametrize("case", CASES)
def test_gradient_steps_equal_the_fast_engine(tiny, case: str) -> None:
    compare(tiny(**CASES[case]))


@pytest.mark.parametrize("task", ["parity", "addition", "multiplication", "binary_sum", "unique_set"])
def test_every_task_equals_the_fast_engine(tiny, task: str) -> None:
    compare(tiny(task, noise=0.1, interval=3), steps=8)


@pytest.mark.parametrize("method", ["fop-loop-adaptive-wo", "fop-loop-fixed", "fop-pause", "ntp", "ntp-loop"])
def test_every_kind_of_method_equals_the_fast_engine(tiny, method: str) -> None:
    compare(tiny("copy", method), steps=6)


@pytest.mark.parametrize("recipe", ["paper", "fast", "quick", "long"])
def test_recipes_equal_the_fast_engine(recipe: str) -> None:
    config = recipes.make("copy", "fop-loop-adaptive", recipe, (0, 1))
    small = replace(config.model, width=32, heads=4, layers=1, bands=config.model.bands[:4])
    compare(replace(config, model=small, batch=8, interval=2, stage_steps=()), steps=8)


def test_products_in_bf16_stay_close(tiny) -> None:
    exact, rough = PlainEngine(tiny()), PlainEngine(tiny(products="bf16"))
    torch.testing.assert_close(exact.step().loss, rough.step().loss, atol=2e-2, rtol=0)


def test_a_restored_engine_goes_on_bit_for_bit(tiny) -> None:
    config = tiny(ema=0.9, noise=0.1)
    whole = PlainEngine(config)
    for _ in range(4):
        whole.step()
    kept = {name: tensor.clone() for name, tensor in whole.state().items()}
    other = PlainEngine(config)
    other.step()
    other.restore(kept, 4)
    for _ in range(3):
        whole.step(), other.step()
    assert torch.equal(whole.weights, other.weights)
    assert torch.equal(whole.evaluated_weights, other.evaluated_weights)


def test_an_interrupted_run_ends_like_an_unbroken_one(tiny, tmp_path: Path) -> None:
    config = tiny(steps=40, ema=0.9, noise=0.1)
    cadence = Cadence(report_steps=5, evaluate_steps=20, samples=16)
    train(config, tmp_path / "whole", cadence=cadence, backend="plain")
    asked = iter(range(100))
    train(config, tmp_path / "parts", cadence=cadence, backend="plain", stop=lambda: next(asked) >= 17)
    assert train(config, tmp_path / "parts", cadence=cadence, backend="plain").ending == "finished"
    for seed in (0, 1):
        one, other = (
            runs.load_seed(tmp_path / name / f"seed-{seed}.safetensors") for name in ("whole", "parts")
        )
        assert torch.equal(one.row, other.row)


def test_seeds_are_files_that_the_stacked_model_reads(tiny, tmp_path: Path) -> None:
    config = tiny(steps=5)
    train(config, tmp_path / "run", backend="plain", cadence=Cadence(samples=8))
    engine = PlainEngine(config)
    for _ in range(5):
        engine.step()
    trained = runs.load_seed(tmp_path / "run" / "seed-1.safetensors")
    weights = checkpoint_weights(engine.nets[1])
    assert torch.equal(trained.row[: weights["embed"].numel()], weights["embed"].flatten())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"halting": "act"}}, "model.halting=act"),
        ({"model": {"halting": "ponder"}}, "model.halting=ponder"),
        ({"supervision": "best"}, "supervision=best"),
        ({"model": {"precision": "float64"}}, "model.precision=float64"),
        ({"growth_clip": 2.0, "model": {"relay": 3}}, "model.relay"),
    ],
)
def test_what_it_cannot_train_is_refused_by_name(tiny, changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        PlainEngine(tiny(**changes))


SCRIPT = """
import sys
from pathlib import Path
from looped.training import recipes
from looped.training.trainer import Cadence, train
config = recipes.with_fields(recipes.make("copy", "fop-loop-adaptive", "quick", (0,)), ["steps=4", "max_length=3"])
train(config, Path(sys.argv[1]), cadence=Cadence(samples=8), backend="plain")
loaded = [name for name in ("rasp", "compiler", "explorer", "fast") if f"looped.{name}" in sys.modules]
assert not loaded, loaded
"""


def test_a_plain_run_loads_neither_programs_nor_the_fast_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "run")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
