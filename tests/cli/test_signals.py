"""SIGTERM and Ctrl-C while a command measures: what is done is saved first, and the command ends within seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looped import runs, serial
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

SMALL = [
    "model.width=8", "model.heads=2", "model.bands=2", "steps=2", "max_length=3", "interval=1", "batch=4",
]  # fmt: skip
SECONDS = 20.0  # within which a command must end, on a machine that others use too
PATIENCE = 120.0  # seconds until the long measurement has begun
COMMAND = "import sys; from looped import cli, output; output.QUIET_S = 0; sys.exit(cli.main(sys.argv[1:]))"
LONG = ["--lengths", "2,400", "--device", "cpu"]  # the second takes minutes
MANY = ["--samples", "100000"]


def rows(path: Path) -> list[Any]:
    return json.loads(path.read_text())["rows"] if path.exists() else []


def evaluated_length(folder: Path) -> bool:
    """The report of the last step is there, which is before the evaluation."""
    return any(row["step"] == 2 for row in runs.read_metrics(folder)) if folder.exists() else False


# what is run, and how one sees that the long measurement has begun; a run lies in runs/a
Began = Callable[[Path, str], bool]
CASES: dict[str, tuple[list[str], Began]] = {
    "evaluate": (["evaluate", "runs/a", *LONG, *MANY, "--out", "x.json"], lambda _, said: "1 of 2" in said),
    "discover": (["discover", "runs/a", *LONG, *MANY, "--out", "x.json"], lambda _, said: "1 of 2" in said),
    "bench ladder": (
        ["bench", "ladder", "runs/a", "--lengths", "2,40", "--device", "cpu", "--samples", "1000000",
         "--families", "uniform", "--floor", "0", "--step-samples", "0", "--out", "x.json"],
        lambda at, _: bool(rows(at / "x.json")),
    ),
    "reproduce": (
        ["reproduce", "main", "--recipe", "quick", "--tasks", "copy", "--methods", "fop-loop-adaptive", *LONG, *MANY,
         "--workers", "1", *(word for each in SMALL for word in ("--set", each))],
        lambda at, _: bool(list(at.glob("runs/.jobs/*.part"))),
    ),
    "train": (
        ["train", "copy", "--recipe", "quick", "--seeds", "0", "--out", "runs/b", "--device", "cpu",
         *(word for each in [*SMALL[:-3], "max_length=300", "start_length=1", "interval=2", "batch=4"]
           for word in ("--set", each))],
        lambda at, _: evaluated_length(at / "runs/b"),
    ),
}  # fmt: skip
SLOW = {"discover", "bench ladder", "reproduce"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    config = serial.override(make("copy", "fop-loop-adaptive", "quick", (0,)), SMALL)
    train(config, home / "runs" / "a", cadence=Cadence(samples=2))
    return home


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_a_command_that_is_terminated_saves_and_ends(name: str, home: Path, tmp_path: Path) -> None:
    words, began = CASES[name]
    (tmp_path / "runs").symlink_to(home / "runs") if name != "reproduce" else None
    said = tmp_path / "stderr"
    with open(said, "wb") as stderr, contextlib.ExitStack() as started:
        process = started.enter_context(subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        ))  # fmt: skip
        started.callback(process.kill)
        start = time.monotonic()
        while not began(tmp_path, said.read_text()):
            assert process.poll() is None, said.read_text()
            assert time.monotonic() - start < PATIENCE
            time.sleep(0.1)
        time.sleep(4 if name == "bench ladder" else 1.5)  # into the measurement
        assert process.poll() is None, "it was still at work"
        process.send_signal(signal.SIGTERM)
        signalled = time.monotonic()
        process.communicate(timeout=PATIENCE)
    assert time.monotonic() - signalled < SECONDS
    assert process.returncode == 128 + signal.SIGTERM, said.read_text()
    assert "Traceback" not in said.read_text()
    saved(name, tmp_path)


def saved(name: str, folder: Path) -> None:
    """What each command has left behind: the length that was done, or the counts of the one that was not."""
    if name == "train":
        step = runs.checkpoints.header(folder / "runs/b/state.safetensors")["step"]
        assert (step, (folder / "runs/b/seed-0.safetensors").exists()) == ("2", False)
    elif name == "reproduce":
        (part,) = folder.glob("runs/.jobs/*.part")
        assert [key.split()[-1] for key in json.loads(part.read_text())["parts"]] == ["2"]
    else:
        assert {row["length"] for row in rows(folder / "x.json")} == {2}
    if name == "bench ladder":
        assert json.loads((folder / "x.json").read_text())["unfinished"]["rung"][1] == 40
