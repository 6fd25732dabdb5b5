"""Files of results: known by run and plan, refused when they belong to another, equal to what evaluate gives."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from forked import FEW

from looped import checkpoints, runs
from looped.errors import InputError
from looped.evaluation import loading, stopping
from looped.evaluation import measure as measuring
from looped.evaluation.measure import length_grid, measure
from looped.experiments import queue, worker
from looped.experiments.plan import MeasurementPlan
from looped.training.config import TrainConfig
from looped.training.recipes import from_program, make
from looped.training.trainer import Cadence, train

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainConfig]:
    from forked import SMALL

    from looped.experiments.plan import RunSpec

    config = RunSpec("copy", recipe="quick", seeds=(0, 5), set=SMALL).config
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(config, folder, cadence=Cadence(samples=4))
    return folder, config


def test_there_and_back(trained, tmp_path: Path) -> None:
    folder, config = trained
    path = queue.result_file(tmp_path / "results", "small", FEW)
    assert queue.read_result(path, config, FEW) is None
    made = worker.make_result(folder, FEW, CPU)
    checkpoints.write_json(path, made)
    assert queue.read_result(path, config, FEW) == made["rows"]
    assert path.name == f"small.{FEW.name}.json"
    assert set(made["provenance"]) >= {"looped", "commit", "device", "torch", "wall_seconds", "plan", "runs"}
    assert [(row["length"], row["stop"], row["seed"]) for row in made["rows"]] == [
        (length, stop, seed) for length in (2, 4) for stop in ("oracle", "confidence") for seed in (0, 5)
    ]


def test_a_model_that_needs_float64_is_measured_in_it(tmp_path: Path) -> None:
    plain = make("addition", "fop-loop-adaptive", "quick", (0,))
    config = replace(
        from_program(plain, "compiled"), steps=1, interval=1, max_length=4, lr=(1e-12,), warmup=0
    )
    train(config, tmp_path, cadence=Cadence(samples=4))
    loaded = loading.load(tmp_path, CPU)
    assert loaded.subject.weights.readout.dtype == torch.float64
    (row,) = measure(loaded.subject, [12], 32, seed=0)
    assert row.accuracy == 1.0, "in fp32 its squares of positions are no longer exact"
    assert loading.load(tmp_path, CPU, "bf16").subject.weights.readout.dtype == torch.bfloat16


def test_products_as_in_training(trained) -> None:
    folder, config = trained
    made = worker.make_result(folder, replace(FEW, precision="trained"), CPU)
    assert made["provenance"]["precision"] == "fp32"
    assert made["rows"] == worker.make_result(folder, FEW, CPU)["rows"], "on a CPU they are in fp32"
    gpu = torch.device("cuda")
    assert loading.precision_of(config, gpu, "trained") == torch.bfloat16
    assert loading.precision_of(replace(config, products="fp32"), gpu, "trained") == torch.float32
    assert loading.precision_of(config, gpu, "fp32") == torch.float32
    assert loading.precision_of(config, CPU, "bf16") == torch.bfloat16


def test_evaluate_gives_the_same_rows(trained, cli) -> None:
    folder, _ = trained
    words = [
        "--lengths",
        "2,4",
        "--samples",
        "20",
        "--stop",
        "oracle",
        "confidence",
        "--device",
        "cpu",
        "--json",
    ]
    assert (
        json.loads(cli("evaluate", folder, *words)[1])["rows"] == worker.make_result(folder, FEW, CPU)["rows"]
    )


def test_a_measurement_goes_on_where_it_was_stopped(trained, tmp_path: Path, monkeypatch) -> None:
    folder, _ = trained
    part, plan = tmp_path / "x.part", replace(FEW, families=("uniform", "zeros"))
    whole = worker.make_result(folder, plan, CPU)["rows"]
    measured: list[int] = []
    plain = measuring.measure

    def measure(subject, lengths, *words, **more):
        measured.extend(lengths)
        return plain(subject, lengths, *words, **more)

    def stop() -> None:
        if len(measured) == 4:  # in the middle of the last one
            raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "measure", measure)
    with pytest.raises(KeyboardInterrupt):
        worker.make_result(folder, plan, CPU, stop, part)
    assert worker.make_result(folder, plan, CPU, part=part)["rows"] == whole
    assert measured == [2, 4, 2, 4, 4], "each length of each family once, and again what was not whole"
    for damage in (
        b"",
        b"{",
        b"[]",
        b"null",
        part.read_bytes()[:-9],
        part.read_bytes().replace(b'"weights": "', b'"weights": "0'),
        part.read_bytes().replace(b'"way": "fp32 cpu', b'"way": "bf16 cuda'),
    ):
        measured.clear()
        part.write_bytes(damage)
        assert worker.make_result(folder, plan, CPU, part=part)["rows"] == whole
        assert measured == [2, 4, 2, 4], "what cannot be trusted is measured again"


def test_seeds_of_different_steps_are_not_measured_together(trained, tmp_path: Path) -> None:
    folder, config = trained
    mixed = tmp_path / "mixed"
    shutil.copytree(folder, mixed)
    _, second = runs.seed_files(mixed)
    late = runs.load_seed(second)
    with runs.Run(mixed, config) as run:
        run.save_seed(late.seed, late.row, late.step + 7)
    with pytest.raises(
        InputError, match=rf"saved at step {late.step} and \S+ at {late.step + 7}: go on training"
    ):
        worker.make_result(mixed, FEW, CPU)


def test_the_curve_over_steps(trained) -> None:
    folder, _ = trained
    rows = worker.make_result(folder, MeasurementPlan((3,), "steps", samples=30), CPU)["rows"]
    assert [(row["seed"], row["step"]) for row in rows] == [(seed, t) for seed in (0, 5) for t in range(1, 7)]
    subject = loading.load(folder, CPU).subject
    grid = length_grid(subject, 3, 30, seed=0, max_steps=6)
    chosen = stopping.get("confidence-batch").steps(grid)[:, 0].tolist()
    assert [row["chosen"] for row in rows] == [chosen[0]] * 6 + [chosen[1]] * 6
    assert [row["accuracy"] for row in rows] == pytest.approx(
        grid.correct.double().mean(2).flatten().tolist()
    )
    assert [row["surprise"] for row in rows] == pytest.approx(
        grid.surprise.double().mean(2).flatten().tolist()
    )


def test_a_result_of_something_else_is_refused(trained, tmp_path: Path) -> None:
    folder, config = trained
    path = tmp_path / "x.json"
    checkpoints.write_json(path, worker.make_result(folder, FEW, CPU))
    with pytest.raises(InputError, match=r"x\.json is a result of another configuration \(steps: 30 → 31\)"):
        queue.read_result(path, replace(config, steps=31), FEW)
    with pytest.raises(InputError, match="is a result of another plan"):
        queue.read_result(path, config, replace(FEW, samples=21))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ("[]", "is no result of ours"),
        ("{}", "is no result of ours"),
        ('{"rows": [], "provenance": {}}', "is no result of ours"),
        ('{"rows": [3], "provenance": {"plan": {}, "runs": [{"config": {}}]}}', "is no result of ours"),
        ('{"rows": [], "provenance": {"plan": {}, "runs": []}}', "is no result of ours"),
        ('{"rows": [], "provenance": {"plan": {}, "runs": [{"config": {}}]}}', "lacks the field 'task'"),
        ('{"rows": [], "provenance": {"plan": {}, "runs": [{"config": NaN}]}}', "NaN"),
    ],
)
def test_damaged_results_are_named(trained, tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=complaint):
        queue.read_result(tmp_path / "x.json", trained[1], FEW)


def test_plans_are_told_apart_by_name() -> None:
    assert MeasurementPlan((1, 2)).name == "accuracy-4608dde8", "golden: files that exist must be found again"
    plans = [FEW, replace(FEW, samples=21), replace(FEW, lengths=(4, 2)), replace(FEW, precision="bf16"),
             replace(FEW, stops=("oracle",)), replace(FEW, families=("zeros",)), replace(FEW, seed=1)]  # fmt: skip
    assert len({plan.name for plan in plans}) == len(plans)
