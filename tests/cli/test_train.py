"""`looped train`: what is asked for is trained, the same words go on, and bad words are one sentence."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from rich.console import Console

import looped
from looped import runs
from looped.cli.train import LiveTable, price
from looped.experiments import queue
from looped.training import __main__ as bare
from looped.training.progress import Listener, Report, tracked
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

Cli = Callable[..., tuple[int, str, str]]
SMALL = [
    "copy", "--recipe", "quick", "--seeds", "0,1", "--steps", "12", "--interval", "3", "--max-length", "3",
    "--width", "16", "--heads", "2", "--bands", "2,2", "--batch", "4", "--lr", "1e-3,2e-3", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has no --out goes below a temporary folder."""
    monkeypatch.chdir(tmp_path)


def test_it_trains_and_says_where(cli: Cli) -> None:
    code, out, err = cli("train", *SMALL, "--json")
    assert code == 0
    summary = json.loads(out)
    folder = Path("runs/copy-fop-loop-adaptive-quick")
    assert (summary["ending"], summary["step"], summary["folder"]) == ("finished", 12, str(folder))
    assert [row["seed"] for row in summary["seeds"]] == [0, 1]
    assert {row["length"] for row in summary["evaluation"]} == {3, 4, 6}
    assert all(Path(file).exists() for file in summary["files"])
    assert err.splitlines()[-1] == f"finished after 12 of 12 steps; wrote {folder}"
    assert "step 12/12  length 3  loss " in err
    config = runs.read_config(folder)
    assert (config.lr, config.model.bands, config.model.width) == ((1e-3, 2e-3), (2, 2), 16)


def test_the_same_words_go_on(cli: Cli) -> None:
    code, out, err = cli("train", *SMALL, "--out", "a", "--time-limit", "1e-9")
    assert (code, out) == (0, "")
    assert err.splitlines()[-1].startswith(
        "time limit after 0 of 12 steps; wrote a; the same command goes on"
    )
    assert cli("train", *SMALL, "--out", "a")[0] == 0
    assert cli("train", *SMALL, "--out", "b")[0] == 0
    for one, other in zip(runs.seed_files(Path("a")), runs.seed_files(Path("b")), strict=True):
        assert runs.load_seed(one).row.equal(runs.load_seed(other).row)
    code, _, err = cli("train", *SMALL, "--out", "a")
    assert (code, "going on after step 12" in err) == (0, True)


def test_every_field_can_be_set(cli: Cli) -> None:
    words = [
        "--set",
        "warmup=2",
        "--set",
        "model.init_std=0.1",
        "--checkpointing",
        "--backprop",
        "2",
        "--ema",
        "0.5",
    ]
    assert cli("train", *SMALL, *words, "--positions", "learned", "--set", "model.max_positions=30")[0] == 0
    config = runs.read_config(Path("runs/copy-fop-loop-adaptive-quick"))
    assert (config.warmup, config.model.init_std, config.checkpointing) == (2, 0.1, True)
    assert (config.backprop, config.ema, config.model.positions) == (2, 0.5, "learned")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["sorting"], "unknown task 'sorting'"),
        (["copy", "--method", "rnn"], "unknown method 'rnn'; the methods are fop-loop-adaptive, "),
        (["copy", "--recipe", "slow"], "unknown recipe 'slow'; the recipes are paper, fast, quick"),
        (["copy", "--device", "tpu"], "unknown device 'tpu'; the devices are auto, cpu, cuda and cuda:N"),
        (["copy", "--device", "cuda:99"], "there is no device 'cuda:99' here"),
        (["copy", "--device", "cuda:x"], "unknown device 'cuda:x'"),
        (["copy", "--steps", "many"], "steps takes a whole number, not 'many'"),
        (["copy", "--steps", "0"], "steps must be at least 1, not 0"),
        (["copy", "--seeds", "0,0"], "seeds must be distinct whole numbers"),
        (["copy", "--seeds", ""], "--seeds must name at least one seed"),
        (["copy", "--seeds", "a"], "seeds takes a whole number, not 'a'"),
        (["copy", "--lr", "1,2"], "one learning rate or one for each of the 5 seeds, not 2"),
        (["copy", "--max-length", "9999"], "length must be between 1 and 4096, not 9999"),
        (["copy", "--width", "100"], "width must be a multiple of its heads"),
        (["copy", "--positions", "polar"], "model.positions must be one of none, start, rotary, alibi"),
        (["copy", "--set", "stesp=3"], "there is no field 'stesp'; TrainConfig has task, method"),
        (["copy", "--set", "model.wdith=3"], "there is no field 'model.wdith'; ModelConfig has vocab"),
        (["copy", "--set", "steps"], "write KEY=VALUE"),
        (["copy", "--time-limit", "0"], "the time limit must be above 0 seconds"),
        (["copy", "--time-limit", "nan"], "the time limit must be above 0 seconds"),
        (["copy", "--save-every", "0"], "--save-every must be above 0 seconds"),
        (["copy", "--save-every", "nan"], "--save-every must be above 0 seconds"),
        (["copy", "--set", "task=parity"], "'task' is a field of the run itself"),
        (["copy", "--set", "recipe=foo"], "'recipe' is a field of the run itself"),
        (["copy", "--seeds", "1,4294967297"], "seeds must be distinct whole numbers from 0 to 4294967295"),
        (["copy", "--stpes", "3"], "looped train has no option --stpes; did you mean --steps?"),
        ([], "looped train needs TASK"),
    ],
)
def test_bad_words(cli: Cli, words: list[str], complaint: str) -> None:
    code, out, err = cli("train", *words)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.startswith("looped: ")
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == [], "nothing was written"


def test_a_folder_of_another_run_or_of_something_else(cli: Cli) -> None:
    assert cli("train", *SMALL, "--out", "a")[0] == 0
    before = {path.name: path.read_bytes() for path in Path("a").iterdir()}
    code, _, err = cli("train", *SMALL, "--out", "a", "--steps", "13")
    assert (code, err.count("\n")) == (2, 1)
    assert "a holds a run of another configuration (steps: 12 → 13); nothing was changed" in err
    assert {path.name: path.read_bytes() for path in Path("a").iterdir()} == before
    Path("b").mkdir()
    Path("b/notes").write_text("mine")
    assert "b is no run's folder (it holds notes)" in cli("train", *SMALL, "--out", "b")[2]
    assert "b/notes is a file" in cli("train", *SMALL, "--out", "b/notes")[2]


def test_every_seed_stopped_is_a_negative_finding(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looped.training.optimizer.hyper", lambda *_: [[float("nan")] * 3] * 2)
    code, _, err = cli("train", *SMALL)
    assert code == 1
    assert "seed 0 was stopped at step" in err
    assert err.splitlines()[-1].startswith("every seed stopped after")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_saves_and_says_how_to_go_on(number: int) -> None:
    words = [*SMALL, "--steps", "100000", "--interval", "5", "--out", "a"]
    command = [sys.executable, "-m", "looped", "train", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        metrics = Path("a/metrics.jsonl")
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            time.sleep(0.02)
        os.kill(process.pid, number)
        _, err = process.communicate()
    assert process.returncode == 128 + number
    assert err.splitlines()[-1].startswith("interrupted after ")
    assert err.splitlines()[-1].endswith("of 100000 steps; wrote a; the same command goes on from there")
    assert runs.load_seed(Path("a/seed-0.safetensors")).step > 0


def test_cancelling_its_folder_saves_and_says_how_to_go_on(cli: Cli) -> None:
    words = [*SMALL, "--steps", "100000", "--interval", "5", "--out", "all/a"]
    command = [sys.executable, "-m", "looped", "train", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            metrics = Path("all/a/metrics.jsonl")
            while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
                time.sleep(0.02)
            code, out, said = cli("cancel", "all")
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (code, out) == (0, "")
    assert said == "stopped: 1 cancelled; the command that started them goes on from there\n"
    assert process.returncode == 0
    assert err.splitlines()[-1].startswith("interrupted after ")
    assert err.splitlines()[-1].endswith("of 100000 steps; wrote all/a; the same command goes on from there")
    step = runs.load_seed(Path("all/a/seed-0.safetensors")).step
    assert step > 0
    _, _, err = cli("train", *words, "--time-limit", "1")
    assert f"going on after step {step}" in err
    assert err.splitlines()[-1].startswith("time limit after "), "the wish was heard once and counts no more"


def test_only_a_wish_that_comes_while_it_trains_is_heard(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looped.experiments.queue.LOOK_S", 0.0)
    queue.cancel(Path("all"))
    assert "finished after 12 of 12 steps" in cli("train", *SMALL, "--out", "all/a")[2]

    class Cancels(Listener):
        def report(self, report: Report) -> None:
            queue.cancel(Path("all"))

    monkeypatch.setattr("looped.cli.train.listener", Cancels)
    for place in ("all/b", "all/c/"):
        assert "interrupted after 10 of 12 steps" in cli("train", *SMALL, "--out", place)[2]
    assert "finished after 12 of 12 steps" in cli("train", *SMALL, "--out", "other/d")[2]
    Path("all/e").mkdir()
    monkeypatch.chdir("all/e")
    monkeypatch.setattr(Cancels, "report", lambda self, report: queue.cancel(Path("..")))
    assert "interrupted after 10 of 12 steps" in cli("train", *SMALL, "--out", ".")[2]


def test_a_bare_machine_trains_the_same(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    sets = ["steps=12", "interval=3", "max_length=3", "model.width=16", "model.heads=2", "model.bands=2,2"]
    words = ["copy", "--recipe", "quick", "--seeds", "0,1", "--device", "cpu", "--out", "bare"]
    assert bare.main([*words, "--set", *sets, "--set", "batch=4", "lr=1e-3,2e-3"]) == 0
    assert json.loads(capsys.readouterr().out)["ending"] == "finished"
    assert cli("train", *SMALL, "--out", "full")[0] == 0
    assert Path("bare/config.json").read_text() == Path("full/config.json").read_text()
    for one, other in zip(runs.seed_files(Path("bare")), runs.seed_files(Path("full")), strict=True):
        assert runs.load_seed(one).row.equal(runs.load_seed(other).row)
    assert bare.main([*words, "--set", "steps=13"]) == 2
    assert capsys.readouterr().err.startswith("looped: bare holds a run of another configuration")


# --- listeners ---------------------------------------------------------------------------------------------


def small() -> object:
    config = make("copy", "fop-loop-adaptive", "quick", (0, 7))
    changes = {"steps": 12, "interval": 3, "max_length": 3, "batch": 4}
    return type(config)(**{**config.__dict__, **changes})


def test_the_live_table_shows_what_matters() -> None:
    screen = StringIO()
    table = LiveTable(Console(file=screen, force_terminal=True, width=140))
    train(small(), Path("a"), listeners=[table], cadence=Cadence(report_steps=4, samples=4))
    shown = screen.getvalue()
    for word in ("training in a", "copy · fop-loop-adaptive · quick", "12/12", "length 3", "steps/s", "0:00 left",
                 "exact at 3", "step 12  exact by length  3: "):  # fmt: skip
        assert word in shown


class Notebook:
    """A tracker of the user's own."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.logged.append((step, metrics))


def test_a_tracker_gets_the_numbers() -> None:
    tracker = Notebook()
    train(small(), Path("a"), listeners=[tracked(tracker)], cadence=Cadence(report_steps=6, samples=4))
    names = {"length", "loss/seed-0", "accuracy/seed-7", "accuracy_longest/seed-7", "lr/seed-0"}
    assert names <= {key for _, row in tracker.logged for key in row}
    steps = [step for step, _ in tracker.logged]
    assert steps == sorted(steps)
    assert steps[-1] == 12
    assert "exact-6/seed-7" in tracker.logged[-1][1]


def test_python_takes_any_object_with_log() -> None:
    tracker, small = Notebook(), {"steps": 10, "max_length": 3, "batch": 4, "model": {"width": 16}}
    looped.train("copy", recipe="quick", out="a", device="cpu", track=tracker, **small)
    assert (10, "loss/seed-0") in [(step, name) for step, row in tracker.logged for name in row]
    for wrong, complaint in (("wandb", "there are trackio, tensorboard"), (print, "log.numbers, step.")):
        with pytest.raises(looped.InputError, match=complaint):
            looped.train("copy", recipe="quick", out="b", track=wrong)  # type: ignore[arg-type]
    assert not Path("b").exists()


@pytest.mark.parametrize("words", [["--track"], ["--track", "trackio"], ["--track", "--json"]])
def test_tracking_without_a_tracker(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)
    code, _, err = cli("train", *SMALL, *words)
    assert (code, err.count("\n")) == (2, 1)
    assert "tracking needs the package trackio" in err


def test_tracking_by_trackio(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []
    stand_in = ModuleType("trackio")
    stand_in.init = lambda **given: calls.append(("init", given["name"]))  # type: ignore[attr-defined]
    stand_in.log = lambda metrics, step=None: calls.append(("log", step))  # type: ignore[attr-defined]
    stand_in.finish = lambda: calls.append(("finish", None))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "trackio", stand_in)
    assert cli("train", "--track", *SMALL, "--out", "a")[0] == 0, "what follows --track is the task"
    assert (calls[0], calls[-1]) == (("init", "a"), ("finish", None))
    assert ("log", 12) in calls


def test_tracking_without_tensorboard(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = cli("train", *SMALL, "--track", "tensorboard")
    assert (code, err.count("\n")) == (2, 1)
    assert "pip install 'looped[tensorboard]'" in err


def test_tensorboard_reads_what_was_written(cli: Cli) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert cli("train", *SMALL, "--out", "a", "--track", "tensorboard")[0] == 0
    events = EventAccumulator("a/tensorboard").Reload()
    assert {"length", "loss/seed-0", "loss/seed-1", "exact-6/seed-1"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss/seed-0")] == [10, 12]
    assert cli("evaluate", "a", "--lengths", "3", "--samples", "4")[0] == 0, "the folder is a run's as before"


def test_a_run_on_a_cpu_says_what_it_takes(cli: Cli) -> None:
    _, _, err = cli("train", *SMALL, "--out", "a")
    assert err.startswith("looped: the whole run takes about ")
    assert "on one CPU core" in err.splitlines()[0]
    assert "--recipe quick" not in err.splitlines()[0], "it is short"
    assert "whole run" not in cli("train", *SMALL, "--out", "a").err, "it goes on"


def test_a_long_run_is_told_of_the_quick_recipe() -> None:
    said = price(make("parity", "fop-loop-adaptive", "fast", (0, 1, 2, 3, 4)))
    assert re.fullmatch(
        r"looped: the whole run takes about [\d.]+ h on one CPU core, .*; --recipe quick takes [\d.]+ s", said
    )


def test_replicas_are_trained_chosen_and_shown(cli: Cli) -> None:
    words = [*SMALL, "--replicas", "2", "--hold-out", "1", "--stack", "3", "--keep-replicas"]
    folder = Path("runs/copy-fop-loop-adaptive-quick-best-of-2")
    code, _, err = cli("train", *words)
    assert (code, err.splitlines()[-1]) == (0, f"finished after 12 of 12 steps; wrote {folder}")
    assert len(list(folder.glob("population/part-*/seed-*.safetensors"))) == 4
    assert len(json.loads((folder / "selection.json").read_text())["populations"]) == 2
    how = "each seed is the best of 2 replicas by lengths 3 to 3, then trained on for 3 steps"
    code, out, err = cli("evaluate", str(folder), "--lengths", "3", "--samples", "4", "--device", "cpu")
    assert (code, f"looped: {folder}: {how}" in err) == (0, True)
    sweep = (
        "--lengths",
        "3",
        "--samples",
        "4",
        "--step-samples",
        "0",
        "--families",
        "uniform",
        "--device",
        "cpu",
    )
    code, out, _ = cli("bench", "ladder", str(folder), *sweep, "--out", "ladder.json")
    assert (code, "2, best of 2" in out) == (0, True)
    assert json.loads(Path("ladder.json").read_text())["ladder"][0]["replicas"] == 2
    assert "| 2, best of 2 |" in cli("bench", "ladder", "--table", "ladder.json")[1]
    code, _, err = cli("train", *SMALL, "--hold-out", "1", "--out", "b")
    assert (code, "is for choosing among replicas" in err) == (2, True)
