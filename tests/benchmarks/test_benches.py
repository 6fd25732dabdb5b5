"""Every bench at a tiny size on the CPU: both sides are there, the numbers fit each other, bad input is a sentence."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import benchmarks
from benchmarks import BenchOptions, equal, infer, scale, suite, train
from benchmarks.stages import last_stage
from looped import devices, runs
from looped.errors import InputError
from looped.fast import StackedTransformer, attention, kernels, layer_ops
from looped.model import ModelConfig

TINY: dict[str, Any] = {"device": "cpu", "width": 16, "batch": 4}
LITTLE = "scale --seeds 1 --steps 1 --length 2 --width 16 --batch 2 --device cpu"


# --- train -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_train_measures_both_sides() -> None:
    pytest.importorskip("transformers")
    found = train.measure(**TINY | {"width": 64}, task="parity", seeds=3, length=3, steps=4, peer_steps=2)
    ours, peer = found["ours"], found["peer"]
    assert found["loss_difference"] < 1e-5
    assert ours["ms_per_seed"] == pytest.approx(ours["ms_per_step"] / 3)
    assert found["speedup"] == pytest.approx(peer["ms_per_step"] / ours["ms_per_seed"])
    assert (len(ours["rounds_ms"]), len(peer["rounds_ms"])) == (4, 2)
    assert (ours["seeds"], peer["seeds"]) == (3, 1)
    assert ours["peak_bytes"] > 0 < peer["peak_bytes"]
    assert ours["share_of_ceiling"] == pytest.approx(ours["tflops"] / found["ceiling_tflops"])
    columns, rows = train.table(found)
    assert [len(row) for row in rows] == [len(columns)] * 2


def test_train_measures_blocks_of_ones_own_beside_the_built_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["SwiGLU", "StickBreaking", "Shifted"]
    tried = train.trial
    monkeypatch.setattr(train, "trial", lambda *given: "why" if "Stick" in given[0].block else tried(*given))
    found = train.measure(
        **TINY, task="copy", seeds=2, length=3, steps=2, peer_steps=0, precision="bf16",
        block=f"docs/my_blocks.py:{','.join(names)}",
    )  # fmt: skip
    swiglu, refused, shifted = (found["blocks"][name] for name in names)
    assert refused == {"refused": "why"}
    for side in (found["ours"], swiglu, shifted):
        assert side["ms_per_seed"] == pytest.approx(side["ms_per_step"] / 2)
        assert side["anatomy"]["launches"] > 0
        assert len(side["rounds_ms"]) == 2
    assert swiglu["times_built_in"] == pytest.approx(swiglu["ms_per_seed"] / found["ours"]["ms_per_seed"])
    columns, rows = train.table(found)
    assert [row[0] for row in rows] == ["ours, 2 × copy in bf16", "SwiGLU, 2 × copy in bf16",
                                        "StickBreaking: why", "Shifted, 2 × copy in bf16"]  # fmt: skip
    assert {len(row) for row in rows} == {len(columns)}


@pytest.mark.parametrize(
    ("ours", "theirs", "order"), [(3, 3, "ototot"), (2, 4, "ottott"), (3, 1, "otoo"), (2, 0, "oo")]
)
def test_rounds_of_both_sides_are_spread_evenly(ours: int, theirs: int, order: str) -> None:
    seen: list[str] = []
    clock = iter(range(10))

    def read(side: str) -> float:
        seen.append(side)
        return float(next(clock))

    own, other = train._alternate([(lambda: read("o"), ours), (lambda: read("t"), theirs)])
    assert "".join(seen) == order
    assert [seen[int(at)] for at in own + other] == ["o"] * ours + ["t"] * theirs


def test_train_alone_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    found = train.measure(**TINY, length=2, steps=1, peer_steps=0)
    assert "peer" not in found
    assert "speedup" not in found
    with pytest.raises(InputError, match="--peer-steps 0"):
        train.measure(**TINY, length=2, steps=1)


def test_the_peer_runs_every_row_to_the_end() -> None:
    config = last_stage("copy", 1, length=6, width=16, batch=12)
    stage = train.Engine(config).stage(6)
    assert stage.plan is not None
    everything = train._flops(config, stage, to_the_end=True)
    saved = train._flops(config, stage) / everything
    assert saved < 0.55, "rows leave at their own T and end where their problem does"
    padded = train.Engine(replace(config, padding_loss="batch"))
    saved = train._flops(config, padded.stage(6)) / everything
    assert saved == pytest.approx(sum(stage.plan.active) / (12 * 6)), "rows leave at their own T"


# --- scale, equal, infer -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (32, [1, 2, 4, 8, 16, 32])]
)
def test_scale_doubles_the_seeds(most: int, expected: list[int]) -> None:
    assert scale.counts(most) == expected


def test_scale_tells_the_cost_of_a_seed() -> None:
    found = scale.measure(**TINY, seeds=2, steps=2, length=2)
    lone, pair = found["rows"]
    assert (lone["seeds"], pair["seeds"]) == (1, 2)
    assert pair["ms_per_seed"] == pytest.approx(pair["ms_per_step"] / 2)
    assert pair["peak_bytes"] == pytest.approx(2 * lone["peak_bytes"], rel=0.2)
    assert found["speedup"] == max(1.0, lone["ms_per_seed"] / pair["ms_per_seed"])


def test_equal_compares_fast_paths_with_lone_seeds() -> None:
    found = equal.measure(**TINY, steps=6, train_steps=3, samples=4, length=3)
    assert found["within"]
    apart = found["largest_difference"]
    assert max(apart["in step"], apart["free"], found["largest_norm_difference"]) <= 1e-5
    assert 0 < apart["control"] < 1e-3
    assert 0 < apart["bf16"] < 0.1
    assert found["loss"]["plain"] != found["loss"]["bf16"]
    assert [(row["precision"], row["length"]) for row in found["accuracies"]] == [
        ("fp32", 3), ("fp32", 6), ("bf16", 3), ("bf16", 6),
    ]  # fmt: skip
    assert all(len(row["accuracy"]) == found["seeds"] for row in found["accuracies"])


def test_equal_notices_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = equal.follow

    def other(engine: equal.Engine, alone: list[equal.Engine]) -> None:
        whole(engine, alone)
        engine.generators[1].manual_seed(99)

    monkeypatch.setattr(equal, "follow", other)
    assert not equal.measure(**TINY, steps=2, train_steps=0, length=3)["within"]


def test_in_step_starts_every_step_from_the_plain_paths_state() -> None:
    config = last_stage("copy", 2, length=2, width=16, batch=2)
    stacked = equal.Engine(config)
    alone = [equal.Engine(equal.replace(config, seeds=(seed,))) for seed in config.seeds]
    for engine in alone:
        engine.step()
    equal.follow(stacked, alone)
    for seed, engine in enumerate(alone):
        assert torch.equal(stacked.weights[seed], engine.weights[0])
        assert torch.equal(stacked.moments.mean[seed], engine.moments.mean[0])
        assert torch.equal(stacked.moments.square[seed], engine.moments.square[0])


def test_equal_sees_a_change_of_stage() -> None:
    config = equal.two_stages(last_stage("copy", 1, length=5), 200)
    assert [equal.Engine(config).config.start_length, config.max_length, config.interval] == [4, 5, 100]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_longer_half(power: float) -> None:
    law = [(float(x), 3.0 * x**power) for x in (64, 128, 256)]
    assert infer.exponent([(2.0, 9.0), (4.0, 9.0), *law]) == pytest.approx(power)


def test_lengths_double() -> None:
    assert infer.doubled(16, 4096) == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
    assert infer.doubled(16, 100) == [16, 32, 64]


def test_infer_answers_with_and_without_early_exit() -> None:
    found = infer.measure(**TINY, train_steps=2, samples=6, length=32)
    by_rule = {row["stop"]: row for row in found["exits"]}
    assert list(by_rule) == ["none", *infer.RULES]
    assert by_rule["none"]["mean_steps"] == 2 * 20
    assert by_rule["oracle"]["mean_steps"] <= 20
    assert by_rule["oracle"]["accuracy"] == by_rule["none"]["accuracy"]
    assert found["speedup"] == by_rule["none"]["seconds"] / by_rule["oracle"]["seconds"]
    assert [(row["heads"], row["length"]) for row in found["lengths"]] == [
        ("global", 16), ("global", 32), ("banded", 16), ("banded", 32),
    ]  # fmt: skip
    assert all(math.isfinite(value) for value in found["exponents"].values())


def test_infer_times_a_narrow_layer_where_there_is_a_kernel_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert infer.narrow("copy", 32, torch.device("cpu")) is None
    kernel, steps = [], []
    step = StackedTransformer.step

    def narrow_layer(config: ModelConfig, layer: layer_ops.Layer, h: torch.Tensor) -> torch.Tensor:
        kernel.append(h.shape)
        return layer_ops.apply_layer(layer, h, partial(attention.attend, config))

    def counted(self: StackedTransformer, *args: Any) -> torch.Tensor:
        steps.append(self)
        return step(self, *args)

    monkeypatch.setattr(kernels, "suits_narrow", lambda *_: True)
    monkeypatch.setattr(kernels, "narrow_layer", narrow_layer)
    monkeypatch.setattr(StackedTransformer, "step", counted)
    found = infer.narrow("copy", 32, torch.device("cpu"))
    assert found is not None
    assert found["ms"] > 0
    assert found["parts_ms"] > 0
    assert len(kernel) > 0
    assert len(steps) == 2 * len(kernel), "the kernel's turns, and as many of the parts"


def test_infer_takes_a_trained_seed(tmp_path: Path) -> None:
    config = last_stage("copy", 1, length=3, width=16)
    with runs.Run(tmp_path / "run", config) as run:
        run.save_seed(0, equal.Engine(config).weights[0], 5)
    file = str(tmp_path / "run" / "seed-0.safetensors")
    found = infer.measure(**TINY, model=file, samples=4, length=32)
    assert (found["model"], found["train_steps"]) == ("fast, seed 0", None)
    assert max(row["mean_steps"] for row in found["exits"]) == 2 * 2 * 3
    with pytest.raises(InputError, match="was trained on copy, not on addition"):
        infer.measure(**TINY, task="addition", model=file, samples=4, length=32)


# --- the table of benches, the suite, the words --------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("small", [True, False])
def test_every_job_of_the_suite_can_be_asked_for(device: str, small: bool) -> None:
    names = set()
    for name, options in suite.jobs(torch.device(device), small):
        function = import_module(benchmarks.BENCHES[name][0]).measure
        assert set(options) <= set(signature(function).parameters) & {f.name for f in fields(BenchOptions)}
        names.add(name)
    assert names == set(benchmarks.BENCHES) - {"rasp", "solve", "survive"}


def test_the_suite_writes_a_line_each_and_stops_at_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [
        ("scale", {"seeds": 1, "steps": 1, "length": 2, "width": 16, "batch": 2}),
        ("memory", {"steps": 10}),
    ]
    monkeypatch.setattr(suite, "jobs", lambda device, small: iter(jobs))
    clock = iter([0.0, 1.0, 2.0, 99.0])
    monkeypatch.setattr(suite, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    suite.run(tmp_path / "out.jsonl", device="cpu", limit=50)
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert (row["bench"], row["options"]) == ("scale", jobs[0][1])
    assert row["provenance"]["command"].startswith("looped bench scale --seeds 1 --steps 1")
    assert {"commit", "device", "torch", "date", "seconds"} <= set(row["provenance"])
    assert "left out, no time: memory --steps 10" in capsys.readouterr().err


def test_without_a_checkout_it_says_so(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "benchmarks", None)
    code, out, err = cli("bench", *shlex.split(LITTLE))
    assert (code, out) == (2, "")
    assert "needs a checkout of the repository" in err


def test_the_command_prints_json_and_a_table(cli: Callable[..., Any]) -> None:
    words = ["bench", *shlex.split(LITTLE)]
    code, out, _ = cli(*words, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["rows"][0]["seeds"] == 1
    assert "device" not in found["options"]
    assert found["provenance"]["command"] == f"looped bench {LITTLE} --json"
    assert found["provenance"]["device"] == devices.describe("cpu")
    code, out, _ = cli(*words)
    assert out.splitlines()[0] == benchmarks.BENCHES["scale"][1]
    assert out.splitlines()[-1] == "speedup 1.0"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("trian", "unknown bench 'trian'; the benches are train, scale"),
        ("memory --seeds 2", "the bench memory takes no --seeds; it takes --task, --device"),
        ("train --precision fp8", "unknown precision 'fp8'"),
        ("train --seeds 0", "at least 1 seed, not 0"),
        ("train --steps 0", "steps must be at least 1"),
        ("train --task sort", "unknown task 'sort'"),
        ("train --length 5000", "between 1 and 4096, not 5000"),
        ("scale --seeds 0", "at least 1 seed, not 0"),
        ("scale --steps 0", "steps must be at least 1"),
        ("equal --steps 0", "steps must be at least 1"),
        ("infer --length 20", "at least 32"),
        ("infer --samples 0", "must be at least 1"),
        ("infer --model nowhere.safetensors", "nowhere.safetensors"),
        ("train --seeds x", "--seeds takes a whole number, not 'x'"),
    ],
)
def test_bad_input_is_a_sentence(cli: Callable[..., Any], words: str, sentence: str) -> None:
    code, out, err = cli("bench", *words.split())
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
