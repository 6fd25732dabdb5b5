"""Files that are no files, through the commands: each gets one sentence that names it, at once and in little memory."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import little_memory

import looped.zoo as zoo
from looped import files, runs, serial
from looped.compiler import compiled
from looped.errors import InputError
from looped.experiments import backends, queue
from looped.experiments.plan import MeasurementPlan
from looped.experiments.queue import Job
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

pytestmark = pytest.mark.timeout(60)
__all__ = ["little_memory"]  # a fixture that every test here has
SMALL = [
    "model.width=8", "model.heads=2", "model.bands=2", "steps=2", "max_length=3", "interval=1", "batch=4",
]  # fmt: skip
MEASURE = ["--lengths", "2", "--samples", "2", "--device", "cpu"]
TRAIN = ["train", "copy", "--recipe", "quick", "--device", "cpu", "--seeds", "0"]
AGAIN = [*TRAIN, "--out", "runs/a", *(word for each in SMALL for word in ("--set", each))]
SETTLED = ["--families", "uniform", "--step-samples", "0"]
# the file, and the command that reads it; a run lies in runs/a
CASES: dict[str, tuple[str, list[str]]] = {
    "metrics": ("runs/a/metrics.jsonl", ["figure", "runs/a/metrics.jsonl", "--out", "x.png"]),
    "results": ("results.json", ["figure", "results.json", "--out", "x.png"]),
    "ladder": ("ladder.json", ["figure", "ladder.json", "--kind", "ladder", "--out", "x.png"]),
    "table of a ladder": ("ladder.json", ["bench", "ladder", "--table", "ladder.json"]),
    "own ladder": ("ladder.json", ["bench", "ladder", "runs/a", *MEASURE, *SETTLED, "--out", "ladder.json"]),
    "questions": ("questions.txt", ["solve", "copy", "--file", "questions.txt"]),
    "program": ("program.py", ["check", "program.py"]),
    "traced program": ("program.py", ["trace", "program.py", "101"]),
    "compiled program": ("program.py", ["compile", "program.py", "--out", "x.safetensors"]),
    "sweep": ("sweep.json", ["sweep", "sweep.json", "--dry-run"]),
    "sweep in Python": ("sweep.py", ["sweep", "sweep.py", "--python", "--dry-run"]),
    "block": ("mine.py", [*TRAIN, "--out", "runs/b", "--block", "mine.py:Block"]),
    "job": ("runs/.jobs/a.json", ["status", "runs"]),
    "cancelled job": ("runs/.jobs/a.json", ["cancel", "runs"]),
    "config": ("runs/a/config.json", ["train", "copy", "--recipe", "quick", "--out", "runs/a"]),
    "own metrics": ("runs/a/metrics.jsonl", AGAIN),
    "seed": ("runs/a/seed-0.safetensors", ["evaluate", "runs/a", *MEASURE]),
    "discovered seed": ("runs/a/seed-0.safetensors", ["discover", "runs/a", *MEASURE]),
    "swept seed": ("runs/a/seed-0.safetensors", ["bench", "ladder", "runs/a", *MEASURE, "--out", "new.json"]),
    "model": ("runs/a/seed-0.safetensors", ["solve", "copy", "101", "--model", "runs/a/seed-0.safetensors"]),
    "compared model": (
        "runs/a/seed-0.safetensors", ["compare", "copy", "--model", "runs/a/seed-0.safetensors", "--samples", "2"],
    ),
}  # fmt: skip
THINGS: dict[str, Callable[[Path], None]] = {
    "pipe": lambda path: os.mkfifo(path),
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "urandom": lambda path: path.symlink_to("/dev/urandom"),
    "sparse": lambda path: (path.touch(), os.truncate(path, 1 << 42))[1],
    "folder": lambda path: path.mkdir(),
}
# What may be said of a thing in the place of a file: a folder may also be no run, or be told before it is opened.
NOT_REGULAR = ["not a regular file", "must be a plain file", "there is no file"]
SAID = {
    "sparse": ["too large"],
    "folder": [*NOT_REGULAR, "there is no checkpoint", "there is no program", "is no run's folder", "Is a directory",
               "holds no trained weights", "is no plain file", "a folder"],
}  # fmt: skip
GOES_ON = {"job": 1, "cancelled job": 0}  # one bad file is no reason to say nothing of the others


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
    assert path.name in err or "runs/a" in err or "/dev/" in err, err
    assert any(said in err for said in SAID.get(thing, NOT_REGULAR)), err
    assert len(err.splitlines()) == (2 if case in GOES_ON else 1), err
    assert code == GOES_ON.get(case, 2)


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", ["a.lock", "a.failed", "a.log", "a.slurm", "a.part", "lock"])
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


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", ["lock", "state.safetensors", "state.previous.safetensors"])
def test_a_run_that_goes_on_waits_for_no_special_file(name: str, thing: str, cli) -> None:
    """A lock is never read, so its size does not matter; of a damaged state the one before is taken."""
    path = Path("runs/a") / name
    path.unlink(missing_ok=True)
    THINGS[thing](path)
    code, _, err = cli(*AGAIN)
    assert "Traceback" not in err
    if name == "lock" and thing != "sparse":
        assert (code, "lock must be a plain file" in err) == (2, True), err
    elif name == "state.safetensors":
        assert "set aside as state.safetensors.damaged" in err
    else:
        assert code == 0, err


JOB = Job("a", serial.override(make("copy", "fop-loop-adaptive", "quick", (0,)), SMALL))
PLAN = MeasurementPlan((2,), samples=2)
# Files that only the worker or a figure reads: a sentence, or as if there were none
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "result": ("x.json", lambda path: queue.read_result(path, JOB.config, PLAN)),
    "differences": ("differs.json", lambda path: queue._known_differences(path.parent)),
    "part of a result": ("x.part", queue.kept_lengths),
    "card": ("x.json", zoo._read.__wrapped__),
    "compiled model": ("x.safetensors", compiled.load),
    "reason of a failure": (".jobs/a.failed", lambda path: queue.failure(path.parents[1], "a")),
    "last report": ("metrics.jsonl", lambda path: queue.last_report(path.parent)),
    "explorer's metrics": ("metrics.jsonl", lambda path: runs.read_metrics(path.parent)),
    "saved step": ("state.safetensors", queue.saved_step),
    "log of a worker": ("x.log", lambda path: backends.run_worker(["--help"], str(path), ".", "stop")),
}


@pytest.mark.parametrize("thing", THINGS)
@pytest.mark.parametrize("name", READERS)
def test_readers_without_a_command_of_their_own(name: str, thing: str, tmp_path: Path) -> None:
    file, read = READERS[name]
    path = tmp_path / "there" / file
    path.parent.mkdir(parents=True)
    THINGS[thing](path)
    with contextlib.suppress(InputError, OSError):
        read(path)


def test_nothing_is_opened_by_hand() -> None:
    """A new reader goes through `looped/files.py`, or is added here with a reason."""
    allowed = {
        "files.py",
        "checkpoints.py",  # new files and folders
        "explorer/app.py",  # the page's own files, at the start
        "explorer/export.py",  # the same, to copy them
        "experiments/backends/__init__.py",  # a log, where nothing of the package is imported
        "training/interrupt.py",  # /dev/null
        "cli/__init__.py",  # the same
    }
    root = Path(files.__file__).parent
    opens = re.compile(
        r"(?<![\w.])open\(|os\.open\(|\.read_text\(|\.read_bytes\(|safe_open|load_file|json\.load\("
    )
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        for line in path.read_text().splitlines()
        if opens.search(line.replace("files.read_text(", "").replace("files.read_bytes(", ""))
        and "def open(" not in line
    }
    assert found == allowed
