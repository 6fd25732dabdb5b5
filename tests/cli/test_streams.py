"""Streams that are closed or full, a terminal of one column, a backend that nobody knows: no traceback, no silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from looped import serial
from looped.experiments import queue
from looped.experiments.queue import Job
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

SMALL = [
    "model.width=8", "model.heads=2", "model.bands=2", "steps=2", "max_length=3", "interval=1", "batch=4",
]  # fmt: skip
SETTINGS = " ".join(f"--set {each}" for each in SMALL)
TINY = f"--recipe quick --seeds 0 --device cpu --out run {SETTINGS}"
MEASURE = "--lengths 2 --samples 4 --device cpu"
ROW = {"task": "copy", "method": "ntp", "length": 3, "accuracy": 0.5, "seed": 0, "stop": "oracle"}
PROGRAM = "from looped.rasp import *\ndef f(row):\n    return row + 1\n"
SWEEP = {
    "tasks": ["copy"],
    "recipes": ["quick"],
    "seeds": [0],
    "set": dict(each.split("=") for each in SMALL),
}

# What prints, by what it is called; a run lies in runs/a. Quick ones first, which need no torch.
QUICK = ["--help", "--version", "tasks", "tasks --json", "train --help", "check program.py", "trace copy 101"]
COMMANDS = [
    *QUICK, "sample copy", "status runs", "status runs --json", "cost copy", "solve copy 101",
    "solve copy --file questions.txt --json", f"evaluate runs/a {MEASURE} --out rows.json",
    f"evaluate runs/a {MEASURE} --json", f"discover runs/a {MEASURE}", "figure rows-in.json --out x.svg --json",
    "compile copy --out copy.safetensors --json", "sweep sweep.json --dry-run",
    "sweep sweep.json --out swept --device cpu --workers 1 --json", "reproduce main --dry-run", "cancel runs --json",
    f"bench ladder runs/a {MEASURE} --families uniform --out ladder.json", f"train copy {TINY} --json",
    "compare copy --length 4 --samples 4 --device cpu --no-controls --json", "publish copy published --json",
    "verify copy-compiled --lengths 3 --samples 2 --json",
]  # fmt: skip
# How stdout is taken away, and the exit statuses that tell of it
WAYS = {">&-": {0}, "| true": {0, 141}, ">/dev/full": {0, 2}}


def shell(
    words: str, folder: Path, redirect: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = f"{{ {sys.executable} -m {words}; echo $? >status; }} {redirect}"
    package = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", **environment},
    )  # fmt: skip
    done.returncode = int((folder / "status").read_text())
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("home") / "runs"
    config = serial.override(make("copy", "fop-loop-adaptive", "quick", (0,)), SMALL)
    train(config, root / "a", cadence=Cadence(samples=2))
    queue.put(root, Job("a", config))
    return root


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    (tmp_path / "runs").symlink_to(trained)
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "questions.txt").write_text("101\n11\n")
    (tmp_path / "rows-in.json").write_text(json.dumps({"rows": [ROW, ROW | {"length": 4}]}))
    (tmp_path / "sweep.json").write_text(json.dumps(SWEEP))
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[pytest.mark.slow] if words not in QUICK else []) for words in COMMANDS],
)
def test_a_stdout_that_takes_nothing_is_no_traceback(words: str, way: str, home: Path) -> None:
    done = shell(f"looped {words}", home, way)
    assert "Traceback" not in done.stderr, done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    assert done.returncode in WAYS[way], done.stderr
    if done.returncode == 2:
        assert done.stderr.endswith("looped: No space left on device\n")
    if "--out rows.json" in words:
        assert json.loads((home / "rows.json").read_text())["rows"], "the file is written all the same"
    if words.startswith("train copy"):
        assert (home / "run" / "seed-0.safetensors").exists()


def test_every_command_is_in_the_table() -> None:
    from looped.cli import COMMANDS as known

    there = {words.split()[0] for words in COMMANDS}
    assert set(known) - there == {"demo", "certify", "explore"}, "which take a minute, and serve"


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full", "2>&1 >/dev/null | true"])
@pytest.mark.parametrize("program", ["looped train", "looped.training"])
def test_a_training_goes_on_without_stderr(program: str, redirect: str, tmp_path: Path) -> None:
    fields = " ".join(SMALL)
    how = (
        TINY
        if program == "looped train"
        else f"--recipe quick --seeds 0 --device cpu --out run --set {fields}"
    )
    done = shell(
        f"{program} copy {how}" + (" --json" if "train" in program.split() else ""), tmp_path, redirect
    )
    assert done.returncode == 0, done
    if "|" not in redirect:
        assert json.loads(done.stdout)["ending"] == "finished", "nothing but the summary is on stdout"
    assert (tmp_path / "run" / "seed-0.safetensors").exists()


def test_a_terminal_of_one_column_gets_its_help(tmp_path: Path) -> None:
    done = shell("looped train --help", tmp_path, COLUMNS="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--steps" in done.stdout


def test_a_backend_that_nobody_knows_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("{}")
    done = shell("looped figure rows.json --out x.svg", tmp_path, MPLBACKEND="nonsense")
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "looped: matplotlib knows no backend 'nonsense', which the variable MPLBACKEND names; unset it\n"
    )
