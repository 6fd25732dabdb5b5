"""Damaged and forged results, sweeps, jobs, figures' rows and compiled models, as in `test_fuzz.py`.

What a reader of results accepts is also drawn: a row that passes as one may not break the figure.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damage import TEXTS, blows, changed, feed, forgeries, headers, little_memory
from matplotlib.figure import Figure

from looped import figures, runs, serial
from looped.compiler import compiled
from looped.evaluation import length_sweep
from looped.experiments import plan, queue
from looped.experiments.plan import MeasurementPlan, RunSpec
from looped.experiments.queue import Job
from looped.rasp import programs

pytestmark = pytest.mark.timeout(120)
__all__ = ["little_memory"]  # a fixture that every test here has

CONFIG = RunSpec("copy", recipe="quick", seeds=(0, 1), set=("steps=5",)).config
PLAN = MeasurementPlan((2, 3), samples=4)
ROW = {
    "task": "copy", "method": "ntp", "recipe": "quick", "seed": 0, "length": 3, "stop": "oracle", "accuracy": 0.5,
    "samples": 4, "mean_steps": 3.0,
}  # fmt: skip
STEP = {key: ROW[key] for key in ("task", "method", "recipe", "seed", "length", "accuracy", "samples")}
ORIGIN = {
    "looped": "0", "plan": serial.to_json(PLAN),
    "runs": [{"run": "x", "seeds": [0, 1], "steps": 5, "commit": None, "config": serial.to_json(CONFIG)}],
}  # fmt: skip
SWEEP = {
    "tasks": ["copy", "parity"], "methods": ["ntp"], "recipes": ["quick"], "seeds": [0, 1], "set": {"steps": 5},
    "grid": {"lr": [0.1, 0.2]}, "measure": {"lengths": "1:2", "samples": 5, "stops": ["oracle"]},
}  # fmt: skip
REACH = {
    "stop": "oracle",
    "inputs": "uniform",
    "L99": 40,
    "L999": 20,
    "L99_ended_by": {"length": 60, "accuracy": 0.5},
}
LADDER = {"task": "copy", "run": "x", "trained": 10, "paper": 35, "lengths": [10, 20, 40], "reach": [REACH]}
METRICS = {
    "kind": "training",
    "step": 3,
    "length": 2,
    "seed": 0,
    "loss": 0.5,
    "accuracy": 0.25,
    "seconds": 1.0,
}


SHARE = 0.15  # of the rows that pass as rows, how many are drawn


def texts(data: object, seed: int, count: int) -> Iterator[bytes]:
    """JSON files nearly like this one, and some that are like nothing."""
    good, rng = json.dumps(data), random.Random(seed)
    yield from blows(good.encode(), seed, count)
    for text in [*TEXTS, *(changed(good, rng) for _ in range(count))]:
        yield text.encode("utf-8", "surrogatepass")


def drawn(draw: Callable[[], Figure], path: Path) -> bool:
    """Draws into a file, though not every time: that takes long."""
    if random.Random(path.read_bytes()).random() < SHARE:
        figures.save(draw(), path.with_name("x.svg"))
        path.with_name("x.svg").unlink()
    return True


def rows(path: Path) -> bool:
    """Reads rows and draws them."""
    found, trained = figures.read_rows([path])
    if "step" in found[0]:
        return drawn(lambda: figures.by_step(found), path)
    return drawn(lambda: figures.accuracy_by_length(found, trained), path)


def metrics(path: Path) -> bool:
    found = figures.read_metrics(path)
    return drawn(lambda: figures.training(found), path)


def ladders(path: Path) -> bool:
    found = figures.read_length_sweeps([path])
    return drawn(lambda: figures.length_sweep(found), path)


READERS: dict[str, tuple[object, int, Callable[[Path], Any]]] = {
    "sweep.json": (SWEEP, 100, plan.read_sweep),
    "job.json": (serial.to_json(Job("job", CONFIG, (PLAN,), "results")), 100, queue.read_job),
    "result.json": (
        {"provenance": ORIGIN, "rows": [ROW] * 3},
        100,
        lambda path: queue.read_result(path, CONFIG, PLAN),
    ),
    "rows.json": ({"provenance": ORIGIN, "rows": [ROW, ROW | {"seed": 1}, ROW | {"length": 5}]}, 60, rows),
    "steps.json": ({"rows": [STEP | {"step": t, "surprise": 0.1, "chosen": 1} for t in (1, 2)]}, 60, rows),
    "metrics.jsonl": (METRICS, 60, metrics),
    "ladders.json": ({"ladder": [LADDER, LADDER | {"run": "y"}]}, 60, ladders),
    "ladder.json": ({"provenance": {"runs": []}, "rows": [], "steps": []}, 60, length_sweep.read),
}


@pytest.mark.parametrize("name", READERS)
def test_files_of_json(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data, count, read = READERS[name]
    path = tmp_path / name
    path.write_text(json.dumps(data) + "\n")
    assert read(path), "the file is good before the blows"
    named = read not in (rows, metrics)  # whoever draws knows only rows
    every = list(texts(data, len(name), count))
    assert len(every) >= 2 * count
    refused = sum(feed(path, blow, lambda: read(path), bool, named) for blow in every)
    assert refused > len(every) / 3


def test_compiled_models(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    compiled.compile_program(programs.get("copy"), longest=8).save(path)
    good, data = compiled.load(path), path.read_bytes()

    def sound(found: compiled.Compiled) -> bool:
        return bool(found.row.isfinite().all()) and found.row.shape == good.row.shape

    every = [*blows(data, 1, 50), *headers(data, 2, 50), *forgeries(path, compiled.KIND, 3, 80)]
    refused = sum(feed(path, blow, lambda: compiled.load(path), sound) for blow in every)
    assert refused > len(every) / 2


def test_a_job_s_standing_is_told_whatever_its_folder_holds(tmp_path: Path) -> None:
    """`looped status` must not fall over one bad folder among many."""
    job = Job("run", CONFIG)
    folder = tmp_path / "run"
    folder.mkdir()
    for blow in texts(METRICS, 4, 60):
        (folder / runs.METRICS).write_bytes(blow)
        (folder / "seed-0.safetensors").write_bytes(blow)
        assert queue.status_of(tmp_path, job).state in ("queued", "interrupted")
