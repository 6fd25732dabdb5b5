"""Damaged and forged files of runs, jobs and results: one sentence that names the file, or what it truly says."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import FEW, SMALL

from looped import serial
from looped.errors import InputError
from looped.experiments import plan, queue, worker
from looped.experiments.plan import RunSpec
from looped.experiments.queue import Job
from looped.training.trainer import Cadence, train

SHARE = 200  # files of each kind
VALUES: list[Any] = [
    None, True, 0, -1, 2**63, 10**40, 1.5, 1e308, "", "x" * 5000, "../x", "/etc/passwd", "\0", "a\nb", "ünï", [], [[]],
    [1] * 300, {}, {"a": {}}, ["../x"], "copy", [0, 0], float("nan"), float("inf"),
]  # fmt: skip
CONFIG = RunSpec("copy", recipe="quick", seeds=(0, 1), set=SMALL).config
SWEEP = {
    "tasks": ["copy", "parity"], "methods": ["ntp"], "recipes": ["quick"], "seeds": [0, 1], "set": {"steps": 5},
    "grid": {"lr": [0.1, 0.2]}, "measure": {"lengths": [1, 2], "samples": 5, "stops": ["oracle"]},
}  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run") / "run"
    train(CONFIG, folder, cadence=Cadence(samples=4))
    return json.dumps(worker.make_result(folder, FEW, torch.device("cpu")))


def blow(text: str, dice: random.Random) -> bytes:
    """A text after one blow: cut, bytes changed, a value replaced, a key renamed, dropped or added."""
    kind = dice.randrange(6)
    data = bytearray(text.encode())
    if kind == 0:
        return bytes(data[: dice.randrange(len(data))])
    if kind == 1:
        for _ in range(dice.randrange(1, 5)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        return bytes(data)
    tree = json.loads(text)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in (
            list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        ):
            places.append((node, key))
            walk(node[key])

    walk(tree)
    node, key = dice.choice(places)
    if kind == 2 or isinstance(node, list):
        node[key] = dice.choice(VALUES)
    elif kind == 3:
        node[key + "x"] = node.pop(key)
    elif kind == 4:
        del node[key]
    else:
        node["__class__"] = "os.system"
    return json.dumps(tree).encode()


def read_sweep(path: Path) -> None:
    for run in plan.read_sweep(path).runs:
        assert "/" not in run.folder
        assert run.config.steps >= 1


def read_job(path: Path) -> None:
    job = queue.read_job(path)
    assert (job.name, job.save_seconds > 0) == (path.stem, True)


def read_result(path: Path) -> None:
    rows = queue.read_result(path, CONFIG, FEW)
    assert rows is not None
    assert all(isinstance(row, dict) for row in rows)


@pytest.mark.parametrize("kind", ["sweep", "job", "result"])
def test_no_damaged_file_does_more_than_a_sentence(kind: str, tmp_path: Path, result: str) -> None:
    job = Job("x", CONFIG, (FEW,), "results")
    sources: dict[str, tuple[str, Callable[[Path], None]]] = {
        "sweep": (json.dumps(SWEEP), read_sweep),
        "job": (json.dumps(serial.to_json(job)), read_job),
        "result": (result, read_result),
    }
    text, read = sources[kind]
    dice, path, refused = random.Random(kind), tmp_path / "x.json", 0
    path.write_text(text)
    read(path)
    for number in range(SHARE):
        damaged = blow(text, dice)
        path.write_bytes(damaged)
        try:
            read(path)
        except InputError as error:
            refused += 1
            sentence = str(error)
            assert "\n" not in sentence, (number, damaged[:200])
            assert len(sentence) < 600, (number, sentence)
        assert path.read_bytes() == damaged
        assert [each.name for each in tmp_path.iterdir()] == ["x.json"], "nothing else was written"
    assert refused > SHARE // 3, "the blows are real"
