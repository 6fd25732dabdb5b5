"""`looped sweep`, `status` and `cancel`: one file, many runs, and a sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from looped import runs
from looped.experiments import queue

Cli = Callable[..., tuple[int, str, str]]
SMALL = {
    "steps": 20, "interval": 5, "max_length": 3, "batch": 2, "model.layers": 1, "model.width": 8,
    "model.heads": 2, "model.bands": [2, 2],
}  # fmt: skip
SWEEP = {
    "tasks": ["copy"], "recipes": ["quick"], "seeds": [0, 1], "set": SMALL, "grid": {"lr": [1e-3, 2e-3]},
    "measure": {"lengths": [2], "samples": 10},
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes below a temporary folder."""
    monkeypatch.chdir(tmp_path)
    Path("two.json").write_text(json.dumps(SWEEP))


def test_a_sweep_from_start_to_end(cli: Cli) -> None:
    words = ["sweep", "two.json", "--workers", "1", "--device", "cpu"]
    code, out, err = cli(*words, "--dry-run")
    assert (code, len(out.splitlines()), err) == (0, 3, "2 runs in runs/two: 2 queued\n")
    assert not Path("runs").exists(), "nothing was written"
    code, out, err = cli(*words, "--json")
    assert code == 0
    made = json.loads(out)
    assert (made["ending"], made["folder"]) == ("complete", "runs/two")
    assert [(run["state"], run["step"], run["measured"]) for run in made["runs"]] == [("done", 20, 1)] * 2
    assert err.splitlines()[0] == "2 runs in runs/two: 2 queued"
    assert err.splitlines()[-1] == "complete: 2 done; wrote runs/two"
    assert len(list(Path("runs/two/results").glob("*.json"))) == 2
    code, out, err = cli(*words)
    assert out.splitlines()[4].split()[:5] == ["exact", "match", "by", "length", "stop"], (
        "ends with accuracies"
    )
    names = [run["run"] for run in made["runs"]]
    assert [line.split()[:2] for line in out.splitlines()[5:]] == [[name, "oracle"] for name in names]
    assert all("±" in line for line in out.splitlines()[5:]), "of two seeds"
    assert (code, err.splitlines()) == (0, ["2 runs in runs/two: 2 done", "complete: 2 done; wrote runs/two"])
    code, out, err = cli("status", "runs/two", "--json")
    assert (code, err) == (0, "2 done\n")
    by_name = {run["run"]: run for run in made["runs"]}
    assert {run["run"]: run for run in map(json.loads, out.splitlines())} == by_name


@pytest.mark.slow
def test_a_damaged_result_hides_no_other_run(cli: Cli) -> None:
    assert cli("sweep", "two.json", "--workers", "1", "--device", "cpu")[0] == 0
    first, _ = sorted(Path("runs/two/results").glob("*.json"))
    first.write_text("xx")
    code, out, err = cli("status", "runs/two", "--json")
    assert code == 1
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["done"]
    assert f"{first.name} is not JSON" in err


def test_a_file_is_no_folder_for_runs(cli: Cli) -> None:
    code, out, err = cli("sweep", "two.json", "--workers", "1", "--device", "cpu", "--out", "two.json")
    assert (code, out, err) == (2, "", "looped: two.json is a file, not a folder for runs\n")


def test_a_failed_run_is_told_with_its_reason(cli: Cli) -> None:
    (name, other) = (
        run["run"] for run in json.loads(cli("sweep", "two.json", "--dry-run", "--json")[1])["runs"]
    )
    jobs_folder = Path("runs/two") / name
    jobs_folder.mkdir(parents=True)
    (jobs_folder / "notes").write_text("mine")
    code, out, err = cli("sweep", "two.json", "--device", "cpu", "--workers", "2")
    assert code == 1
    assert "failed" in out
    assert "it holds notes" in out
    assert err.splitlines()[-1].startswith("failed: 1 done, 1 failed; wrote runs/two; the same command does")
    code, out, err = cli("status", "runs/two")
    assert (code, err) == (1, "1 done, 1 failed\n")
    assert "it holds notes" in out
    assert queue.trained(Path("runs/two") / other, runs.read_config(Path("runs/two") / other))


def _reported(folder: Path) -> bool:
    """Whether a run has taken gradient steps and said so."""
    return any(file.stat().st_size for file in folder.glob("*/metrics.jsonl"))


@pytest.mark.parametrize("how", [pytest.param("cancel", marks=pytest.mark.slow), "SIGINT"])
def test_a_sweep_is_stopped_kindly(cli: Cli, how: str) -> None:
    long = {**SWEEP, "set": {**SMALL, "steps": 100_000}, "grid": {"lr": [1e-3]}}
    Path("long.json").write_text(json.dumps(long))
    command = [sys.executable, "-m", "looped", "sweep", "long.json", "--device", "cpu", "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not _reported(Path("runs/long")) and process.poll() is None:
                time.sleep(0.05)
            if how == "cancel":
                code, _, err = cli("cancel", "runs/long")
                assert (code, err.partition(";")[0]) == (0, "stopped: 1 cancelled")
            else:
                os.kill(process.pid, signal.SIGINT)
            out, err = process.communicate()
        finally:
            process.kill()
    ending, status = {"cancel": ("cancelled", 0), "SIGINT": ("interrupted", 130)}[how]
    assert process.returncode == status, err
    assert err.splitlines()[-1].startswith(f"{ending}: 1 {ending}; wrote runs/long; the same command does")
    (folder,) = Path("runs/long").glob("copy-*")
    assert runs.load_seed(folder / "seed-0.safetensors").step > 0, "it saved first"
    assert ending in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["sweep"], "looped sweep needs FILE"),
        (["sweep", "nowhere.json"], "there is no file nowhere.json"),
        (["sweep", "bad.json"], "bad.json: run 1: unknown task 'sorting'"),
        (["sweep", "evil.py"], "evil.py is a program, and reading it means to run it: say --python"),
        (["sweep", "two.json", "--engine", "cloud"], "unknown engine 'cloud'; the engines are local"),
        (
            ["sweep", "two.json", "--address", "x", "--dry-run"],
            "--address is for the engine ray, not for local",
        ),
        (["sweep", "two.json", "--device", "tpu"], "unknown device 'tpu'"),
        (["sweep", "two.json", "--workers", "-1"], "the number of workers must be from 0"),
        (["sweep", "two.json", "--save-every", "0"], "the seconds between two checkpoints must be above 0"),
        (["sweep", "two.json", "--time-limit", "0"], "the time limit must be above 0 seconds"),
        (["status", "nowhere"], "there is no folder nowhere"),
        (["status", "."], ". holds no runs"),
        (["cancel", "."], ". holds no runs"),
        (["cancel", ".", "--wait", "-1"], "--wait must be 0 seconds or more"),
    ],
)
def test_bad_words(cli: Cli, words: list[str], complaint: str) -> None:
    Path("bad.json").write_text('[{"task": "sorting"}]')
    Path("evil.py").write_text("open('pwned', 'w')")
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert complaint in line
    assert line.startswith("looped: ")
    assert sorted(path.name for path in Path().iterdir() if path.name != "runs") == [
        "bad.json",
        "evil.py",
        "two.json",
    ]
    assert not list(Path().glob("runs/*/*")), "nothing was started"
