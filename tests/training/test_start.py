"""Starting from a compiled program: its weights, noise as asked for, and a run that resumes as any other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped import runs, tasks
from looped.compiler.compiled import compile_program
from looped.errors import InputError
from looped.fast.engine import Engine
from looped.model.weights import Layout
from looped.rasp import programs
from looped.solve import load
from looped.training import cost
from looped.training.config import Start, TrainConfig, parse_start
from looped.training.recipes import first_weights, from_program, make
from looped.training.trainer import Cadence, train


def small(init: str, task: str = "parity", **changes: object) -> TrainConfig:
    config = from_program(make(task, "fop-loop-adaptive", "quick", (0, 1)), init)
    few = {"steps": 8, "batch": 4, "max_length": 3, "interval": 2, "warmup": 2}
    return replace(config, **{**few, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("random", Start()),
        ("compiled", Start(compiled=True)),
        ("compiled:0", Start(compiled=True)),
        ("compiled:1e-3", Start(compiled=True, noise=1e-3)),
    ],
)
def test_what_a_start_may_be(text: str, meant: Start) -> None:
    assert parse_start(text) == meant


@pytest.mark.parametrize(
    "text", ["", "random:1", "compiled:", "compiled:x", "compiled:-1", "compiled:inf", "copy"]
)
def test_what_a_start_may_not_be(text: str) -> None:
    with pytest.raises(InputError, match="weights start from random, compiled or compiled:NOISE"):
        parse_start(text)


def test_noise_is_a_share_of_each_weight() -> None:
    made = compile_program(programs.get("copy"))
    plain, shaken = (first_weights(small(text, "copy")) for text in ("compiled", "compiled:.1"))
    assert torch.equal(plain, made.row.expand(2, -1))
    assert torch.equal(shaken, first_weights(small("compiled:.1", "copy")))
    assert not torch.equal(shaken[0], shaken[1])
    some = made.row != 0
    assert bool((shaken[:, ~some] == 0).all())
    share = shaken[:, some] / made.row[some] - 1
    assert abs(float(share.mean())) < 0.01
    assert abs(float(share.std()) - 0.1) < 0.01


@pytest.mark.parametrize("task", tasks.TASKS)
def test_every_program_is_right_after_its_own_number_of_steps(task: str) -> None:
    config = small("compiled", task)
    assert config.loops == ("T+1" if task == "addition" else "T")
    assert Engine(config).step().accuracy.tolist() == [1.0, 1.0]


def test_the_programs_own_architecture_is_trained() -> None:
    config = small("compiled")
    assert config.model == compile_program(programs.get("parity")).config
    assert (config.method, config.noise, config.weight_decay) == ("fop-loop-adaptive-wo", 0.0, 0.0)
    assert config.name == "parity-fop-loop-adaptive-wo-quick-compiled"
    assert cost.way(config, cpu=False, longest=3) == "stepwise"  # the kernels know the paper's block alone
    engine = Engine(config)
    assert engine.precision == torch.float64
    readings = engine.step()
    assert readings.accuracy.tolist() == [1.0, 1.0]
    assert float(readings.loss.max()) < 1e-5


@pytest.mark.parametrize("task", ["copy", "addition"])
def test_gradients_reach_what_is_not_hard(task: str) -> None:
    """Units and values learn; keys of a hard maximum and saturated scores cannot."""
    config = small("compiled:1e-3", task)
    engine = Engine(config)
    before = engine.weights.clone()
    readings = engine.step()
    assert bool(readings.norm.isfinite().all())
    views = Layout(config.model).views((engine.weights - before).abs())
    assert bool((views["readout.weight"].amax((1, 2)) > 0).all())
    assert bool((views["layers.0.up.weight"].amax((1, 2)) > 0).all())
    if task == "copy":
        queries_and_keys = [v[..., : 2 * config.model.width] for name, v in views.items() if "qkv" in name]
        assert not any(bool(moved.any()) for moved in queries_and_keys)


def test_zeros_can_be_kept() -> None:
    config = small("compiled:1e-3", keep_zeros=True, lr=(1e-2,))
    engine = Engine(config)
    before = engine.weights.clone()
    for _ in range(3):
        engine.step()
    assert not torch.equal(engine.weights, before)
    assert bool((engine.weights[before == 0] == 0).all())


def test_a_broken_run_ends_as_an_unbroken_one(tmp_path: Path) -> None:
    config, cadence = (
        small("compiled:1e-4", keep_zeros=True),
        Cadence(report_steps=2, evaluate_steps=4, samples=8),
    )
    train(config, tmp_path / "whole", cadence=cadence)
    asked = iter([False] * 5 + [True])
    assert (
        train(config, tmp_path / "broken", cadence=cadence, stop=lambda: next(asked)).ending == "interrupted"
    )
    assert train(config, tmp_path / "broken", cadence=cadence).ending == "finished"
    for seed in config.seeds:
        one, other = (
            runs.load_seed(tmp_path / way / f"seed-{seed}.safetensors") for way in ("whole", "broken")
        )
        assert torch.equal(one.row, other.row)
    assert json.loads((tmp_path / "whole" / "config.json").read_text())["config"]["init"] == "compiled:1e-4"
    solver = load(tmp_path / "whole")
    assert (solver.task, solver.rule) == (tasks.get("parity"), "halt")
    assert solver.solve("110", stop="oracle").steps == 3


def test_what_cannot_start_from_a_program() -> None:
    with pytest.raises(
        InputError, match=r"a compiled program is a model of fop-loop-adaptive-wo, not of ntp"
    ):
        from_program(make("copy", "ntp", "quick", (0,)), "compiled")
    with pytest.raises(InputError, match=r"init=compiled is for fop-loop-adaptive"):
        replace(make("copy", "fop", "quick", (0,)), init="compiled")
    with pytest.raises(InputError, match=r"keep_zeros is for init=compiled"):
        replace(make("copy", "fop", "quick", (0,)), keep_zeros=True)
    other = replace(make("copy", "fop-loop-adaptive", "quick", (0,)), init="compiled")
    with pytest.raises(InputError, match="needs the shape of the compiled copy: width 16"):
        Engine(other)
