"""Files that are no files, through the commands: each gets one sentence that names it, at once and in little memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import little_memory

from looped import serial
from looped.experiments import queue
from looped.experiments.queue import Job
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

pytestmark = pytest.mark.timeout(60)
__all__ = ["little_memory"]  # a fixture that every test here has
SMALL = [
    "model.width=8", "model.heads=2", "model.bands=2", "steps=2", "max_length=3", "interval=1", "batch=4",
]  # fmt: skip
MEASURE = ["--lengths", "2", "--samples", "2", "--device", "cpu"]
# the file, and the command that reads it; a run lies in runs/a
CASES: dict[str, tuple[str, list[str]]] = {
    "metrics": ("runs/a/metrics.jsonl", ["figure", "runs/a/metrics.jsonl", "--out", "x.png"]),
    "results": ("results.json", ["figure", "results.json", "--out", "x.png"]),
    "ladder": ("ladder.json", ["figure", "ladder.json", "--kind", "ladder", "--out", "x.png"]),
    "own ladder": ("ladder.json", ["bench", "ladder", "runs/a", *MEASURE, "--out", "ladder.json"]),
    "questions": ("questions.txt", ["solve", "copy", "--file", "questions.txt"]),
    "program": ("program.py", ["check", "program.py"]),
    "traced program": ("program.py", ["trace", "program.py", "101"]),
    "sweep": ("sweep.json", ["sweep", "sweep.json", "--dry-run"]),
    "job": ("runs/.jobs/a.json", ["status", "runs"]),
    "config": ("runs/a/config.json", ["train", "copy", "--recipe", "quick", "--out", "runs/a"]),
    "seed": ("runs/a/seed-0.safetensors", ["evaluate", "runs/a", *MEASURE]),
    "model": ("runs/a/seed-0.safetensors", ["solve", "copy", "101", "--model", "runs/a/seed-0.safetensors"]),
}
THINGS: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "urandom": lambda path: path.symlink_to("/dev/urandom"),
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 42))[1],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "a"
    train(
        serial.override(make("copy", "fop-loop-adaptive", "quick", (0,)), SMALL),
        folder,
        cadence=Cadence(samples=2),
    )
    return folder


@pytest.fixture(autouse=True)
def home(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, "runs/a")
    config = serial.override(make("copy", "fop-loop-adaptive", "quick", (0,)), SMALL)
    queue.put(Path("runs"), Job("a", config))


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("case", CASES)
def test_what_is_no_file_is_named_in_a_sentence(case: str, thing: str, cli) -> None:
    name, words = CASES[case]
    path = Path(name)
    path.unlink(missing_ok=True)
    THINGS[thing](path)
    code, _, err = cli(*words)
    assert path.name in err, err
    assert ("not a regular file" if thing != "sparse" else "too large") in err, err
    assert err.removesuffix("1 done\n").count("\n") == 1, err
    assert code == (1 if case == "job" else 2), "a folder of runs tells of the others"


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", ["a.lock", "a.failed", "lock"])
def test_a_note_of_a_job_that_is_no_file_hangs_nobody(name: str, thing: str, cli) -> None:
    path = Path("runs/.jobs") / name
    path.unlink(missing_ok=True)
    THINGS[thing](path)
    code, out, _ = cli("status", "runs", "--json")
    assert (code, json.loads(out.splitlines()[0])["run"]) == (0, "a")


@pytest.mark.parametrize("thing", THINGS)
def test_metrics_that_are_no_file_end_no_table(thing: str, cli) -> None:
    Path("runs/a/metrics.jsonl").unlink()
    THINGS[thing](Path("runs/a/metrics.jsonl"))
    assert cli("status", "runs")[0] == 0
