"""The training loop: however a run is broken off, going on ends where an unbroken run ends, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from looped import checkpoints, runs, serial
from looped.errors import InputError
from looped.evaluation.measure import Row
from looped.experiments import queue
from looped.fast.engine import Engine
from looped.training import trainer
from looped.training.config import TrainConfig
from looped.training.interrupt import Interrupt
from looped.training.progress import Listener, Report
from looped.training.trainer import Cadence, train

OFTEN = Cadence(report_steps=7, evaluate_steps=20, save_steps=5, samples=16)


class Ear(Listener):
    """Remembers everything it hears."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.reports: list[Report] = []
        self.evaluations: list[tuple[int, Sequence[Row]]] = []
        self.notes: list[str] = []
        self.ended = 0

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        self.begun.append(step)

    def report(self, report: Report) -> None:
        self.reports.append(report)

    def evaluation(self, step: int, rows: Sequence[Row]) -> None:
        self.evaluations.append((step, rows))

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    def end(self) -> None:
        self.ended += 1


def after(steps: int):
    """A wish to stop that comes after that many gradient steps."""
    left = iter(range(steps))
    return lambda: next(left, None) is None


def metrics(folder: Path) -> list[dict[str, Any]]:
    """All a run recorded, except how long it took."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in runs.read_metrics(folder)]


def same(a: Path, b: Path) -> None:
    """Two folders hold the same weights, moments, generators and metrics, bit for bit."""
    states = []
    for folder in (a, b):
        found = checkpoints.load(folder / "state.safetensors", runs.STATE_KIND, lambda metadata, shapes: None)
        found[0].pop("seconds")
        states.append(found)
    assert states[0][0] == states[1][0]
    assert states[0][1].keys() == states[1][1].keys()
    for name, tensor in states[0][1].items():
        assert torch.equal(tensor, states[1][1][name]), name
    for ours, theirs in zip(runs.seed_files(a), runs.seed_files(b), strict=True):
        assert torch.equal(runs.load_seed(ours).row, runs.load_seed(theirs).row)
    assert metrics(a) == metrics(b)


def test_a_run_from_start_to_end(tiny, tmp_path: Path) -> None:
    config, ear = tiny(steps=60), Ear()
    summary = train(config, tmp_path / "run", listeners=[ear], cadence=OFTEN)
    assert (summary.ending, summary.step, summary.steps) == ("finished", 60, 60)
    assert (ear.begun, ear.ended, ear.notes) == ([0], 1, [])
    assert [report.step for report in ear.reports] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    assert [report.length for report in ear.reports[:5]] == [1, 2, 3, 3, 4]
    assert [step for step, _ in ear.evaluations] == [20, 40, 60]
    assert {row.length for row in ear.evaluations[0][1]} == {4, 6, 8}
    assert ear.reports[-1].seconds_left == 0
    assert ear.reports[0].seeds[0].loss > ear.reports[-1].seeds[0].loss
    assert [Path(file).exists() for file in summary.files] == [True, True]
    lines = runs.read_metrics(tmp_path / "run")
    assert {row["kind"] for row in lines} == {"training", "evaluation"}
    first = lines[0]
    assert list(first) == [
        "kind", "step", "length", "seed", "loss", "accuracy", "accuracy_longest", "norm", "lr", "training", "seconds"
    ]  # fmt: skip
    assert first["loss"] == ear.reports[0].seeds[0].loss
    again = train(config, tmp_path / "run", cadence=OFTEN)
    assert (again.ending, again.step, again.evaluation) == ("finished", 60, summary.evaluation)


def test_reports_are_means_over_the_steps_between(tiny, tmp_path: Path) -> None:
    config, ear = tiny(steps=6), Ear()
    train(config, tmp_path / "run", listeners=[ear], cadence=Cadence(report_steps=3, samples=4))
    engine = Engine(config)
    losses = [engine.step().loss.tolist() for _ in range(6)]
    for report, part in zip(ear.reports, (losses[:3], losses[3:]), strict=True):
        for s, seed in enumerate(report.seeds):
            assert seed.loss == pytest.approx(sum(loss[s] for loss in part) / 3, rel=1e-6)


def test_the_saved_seed_is_the_engines_evaluated_weights(tiny, tmp_path: Path) -> None:
    config = tiny(steps=10, ema=0.9)
    train(config, tmp_path / "run", cadence=OFTEN)
    engine = Engine(config)
    for _ in range(10):
        engine.step()
    assert not torch.equal(engine.evaluated_weights, engine.weights)
    for s, file in enumerate(runs.seed_files(tmp_path / "run")):
        assert torch.equal(runs.load_seed(file).row, engine.evaluated_weights[s])


def test_a_seed_file_that_is_missing_or_damaged_is_written_again(tiny, tmp_path: Path) -> None:
    config = tiny(steps=10)
    train(config, tmp_path / "whole", cadence=OFTEN)
    train(config, tmp_path / "run", cadence=OFTEN)
    for blow in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])):
        blow(tmp_path / "run" / "seed-1.safetensors")
        assert train(config, tmp_path / "run", cadence=OFTEN).ending == "finished"
        same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ema": 0.9, "lengths": "iid"},
        {"backprop": 2, "window": "random", "model": {"positions": "randomised", "max_positions": 40}},
    ],
)
def test_going_on_ends_where_an_unbroken_run_ends(tiny, tmp_path: Path, changes: dict[str, object]) -> None:
    config = tiny(steps=50, **changes)
    train(config, tmp_path / "whole", cadence=OFTEN)
    ear = Ear()
    for steps in (0, 8, 12, 15, 99):  # to step 0, 8, 20, 35: on and off reports, evaluations, checkpoints
        train(config, tmp_path / "broken", cadence=OFTEN, stop=after(steps), listeners=[ear])
    assert ear.begun == [0, 0, 8, 20, 35]
    same(tmp_path / "whole", tmp_path / "broken")


def test_stopping_says_so_and_leaves_weights_to_use(tiny, tmp_path: Path) -> None:
    summary = train(tiny(), tmp_path, cadence=OFTEN, stop=after(12))
    assert (summary.ending, summary.step) == ("interrupted", 12)
    assert runs.load_seed(tmp_path / "seed-1.safetensors").step == 12
    summary = train(tiny(), tmp_path, cadence=OFTEN, time_limit_s=1e-9)
    assert (summary.ending, summary.step) == ("time limit", 12)
    with pytest.raises(InputError, match="time limit must be above 0"):
        train(tiny(), tmp_path, time_limit_s=0.0)


# --- blows -------------------------------------------------------------------------------------------------


def _train_on(config: TrainConfig, folder: Path) -> None:
    torch.set_num_threads(1)
    train(config, folder, cadence=OFTEN)


def _made(path: Path) -> int:
    """When a file was last replaced; 0 if it is not there."""
    return path.stat().st_mtime_ns if path.exists() else 0


@pytest.mark.parametrize("blows", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments(tiny, tmp_path: Path, blows: int) -> None:
    config, state = tiny(steps=400, max_length=3), tmp_path / "broken" / "state.safetensors"
    start = time.monotonic()
    train(config, tmp_path / "whole", cadence=OFTEN)
    step_s = (time.monotonic() - start) / config.steps
    fork, moments, reached = multiprocessing.get_context("fork"), random.Random(0), [0]
    for blow in range(blows):
        before = _made(state)
        process = fork.Process(target=_train_on, args=(config, tmp_path / "broken"))
        process.start()
        while blow % 2 and _made(state) == before and process.is_alive():  # every other one once it got on
            time.sleep(step_s / 10)
        process.join(moments.uniform(0, 25) * step_s)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it was still at work"
        if state.exists():
            found = checkpoints.load(state, runs.STATE_KIND, lambda metadata, shapes: None)
            seen = [row["step"] for row in runs.read_metrics(tmp_path / "broken")]
            reached.append(int(found[0]["step"]))
            assert max(seen) - reached[-1] <= OFTEN.save_steps, "no more than one checkpoint's steps are lost"
    assert reached == sorted(reached)
    assert 0 < reached[-1] < config.steps, "the blows fell along the way"
    train(config, tmp_path / "broken", cadence=OFTEN)
    same(tmp_path / "whole", tmp_path / "broken")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_finish_the_step_and_save(tiny, tmp_path: Path, number: int, status: int) -> None:
    class Sender(Listener):
        def report(self, report: Report) -> None:
            os.kill(os.getpid(), number)

    with Interrupt() as asked:
        summary = train(tiny(), tmp_path, cadence=OFTEN, listeners=[Sender()], stop=asked)
    assert (summary.ending, summary.step, asked.status) == ("interrupted", 7, status)
    assert train(tiny(), tmp_path, cadence=OFTEN).ending == "finished"


@pytest.mark.parametrize("number", [1, 3])  # the evaluation at step 20, and the one at the last step
@pytest.mark.parametrize("then", ["goes on", "is stopped again", "is killed after the evaluation"])
def test_an_evaluation_that_was_stopped_is_made_up_for(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, then: str
) -> None:
    """The state is saved at once, and the run ends with an unbroken one's weights and metrics all the same."""
    config, calls, asked = tiny(steps=50), count(1), [False]
    step = min(20 * number, 50)

    def measure(*words: Any, **named: Any) -> list[Row]:
        asked[0] = next(calls) == number
        return plain(*words, **named)

    train(config, tmp_path / "whole", cadence=OFTEN)
    plain = trainer.measure
    monkeypatch.setattr(trainer, "LOOK_S", -1.0)
    monkeypatch.setattr(trainer, "measure", measure)
    broken = tmp_path / "broken"
    summary = train(config, broken, cadence=OFTEN, stop=lambda: asked[0])
    assert (summary.ending, summary.step) == ("interrupted", step)
    assert not [row for row in metrics(broken) if (row["kind"], row["step"]) == ("evaluation", step)]
    assert queue.trained(broken, config) is False
    if then == "is stopped again":
        assert train(config, broken, cadence=OFTEN, stop=lambda: True).ending == "interrupted"
    if then == "is killed after the evaluation":

        class Killer(Listener):
            def evaluation(self, step: int, rows: Sequence[Row]) -> None:
                raise MemoryError

        with pytest.raises(MemoryError):
            train(config, broken, cadence=OFTEN, listeners=[Killer()])
    assert train(config, broken, cadence=OFTEN).ending == "finished"
    assert queue.trained(broken, config)
    same(tmp_path / "whole", broken)


def test_a_run_whose_files_have_old_names_of_fields_goes_on(
    tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {"halting": "eoq", "positions": "start"}
    config = tiny(padding_loss="own", growth_clip=1.5, stage_steps=(3, 4), model=old, steps=30)
    train(config, tmp_path / "whole", cadence=OFTEN)
    broken, plain, asked = tmp_path / "broken", serial.to_json, count()
    monkeypatch.setattr(trainer, "LOOK_S", -1.0)
    with monkeypatch.context() as first_edition:
        first_edition.setattr(serial, "to_json", lambda value: serial.former(type(value), plain(value)))
        assert train(config, broken, cadence=OFTEN, stop=lambda: next(asked) > 8).ending == "interrupted"
    for text in ((broken / "config.json").read_text(), checkpoints.header(broken / runs.STATE)["config"]):
        words = json.loads(text).get("config", json.loads(text))
        assert (words["trailing"], words["model"]["halting"]) == ("own", "mark")
        assert "padding_loss" not in words
    assert train(config, broken, cadence=OFTEN).ending == "finished"
    same(tmp_path / "whole", broken)


def test_a_second_interrupt_is_a_blow() -> None:
    # whoever starts the tests in the background of a shell makes them ignore interrupts
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with Interrupt() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(tiny, tmp_path: Path) -> None:
    config, ear = tiny(steps=40), Ear()
    train(config, tmp_path / "whole", cadence=OFTEN)
    train(config, tmp_path / "broken", cadence=OFTEN, stop=after(24))
    path = tmp_path / "broken" / "state.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 4
    path.write_bytes(damaged)
    train(config, tmp_path / "broken", cadence=OFTEN, listeners=[ear])
    assert ear.begun == [20]
    assert len(ear.notes) == 1
    assert (
        "state.safetensors is damaged: its contents do not match its checksum; it was set aside"
        in ear.notes[0]
    )
    same(tmp_path / "whole", tmp_path / "broken")


def test_a_checkpoint_from_another_kind_of_device_is_left_alone(tiny, tmp_path: Path) -> None:
    config = tiny()
    train(config, tmp_path, cadence=OFTEN, stop=after(5))
    path = tmp_path / "state.safetensors"
    metadata, tensors = checkpoints.load(path, runs.STATE_KIND, lambda metadata, shapes: None)
    checkpoints.save(path, runs.STATE_KIND, tensors, {**metadata, "device": "cuda"})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(InputError, match="was made on 'cuda'; go on there"):
        train(config, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


# --- seeds that go wrong -----------------------------------------------------------------------------------


def spoil(monkeypatch: pytest.MonkeyPatch, seed: int, at: int, factor: float) -> None:
    """Before gradient step `at`, the weights of a seed are blown up."""
    step = Engine.step

    def spoiled(self: Engine):
        if self.done == at:
            self.weights[seed] *= factor
        return step(self)

    monkeypatch.setattr(Engine, "step", spoiled)


def test_a_seed_without_a_gradient_stops_and_the_others_do_not_notice(
    tiny, tmp_path: Path, monkeypatch
) -> None:
    config, ear = tiny(steps=30), Ear()
    train(config, tmp_path / "whole", cadence=OFTEN)
    spoil(monkeypatch, seed=1, at=10, factor=float("nan"))
    summary = train(config, tmp_path / "broken", cadence=OFTEN, listeners=[ear])
    assert summary.ending == "finished"
    assert len(ear.notes) == 1
    assert ear.notes[0].startswith("seed 1 was stopped at step 14: its gradient was no longer finite")
    assert [seed.training for seed in ear.reports[-1].seeds] == [True, False]
    assert "stopped" in summary.seeds[1]
    whole, broken = (runs.seed_files(tmp_path / name) for name in ("whole", "broken"))
    assert torch.equal(runs.load_seed(whole[0]).row, runs.load_seed(broken[0]).row)
    rows = [row for row in metrics(tmp_path / "broken") if row["kind"] == "stopped"]
    assert [(row["seed"], row["step"]) for row in rows] == [(1, 14)]
    assert "NaN" not in (tmp_path / "broken" / "metrics.jsonl").read_text()


def test_when_every_seed_has_stopped_training_stops(tiny, tmp_path: Path, monkeypatch) -> None:
    spoil(monkeypatch, seed=0, at=10, factor=float("nan"))
    config = tiny(seeds=(4,), steps=30)
    summary = train(config, tmp_path, cadence=OFTEN)
    assert (summary.ending, summary.step) == ("every seed stopped", 14)
    assert train(config, tmp_path, cadence=OFTEN).step == 14, "and it does not go on"


def test_a_diverging_seed_gets_its_last_sane_weights_back(tiny, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("looped.training.engine.PATIENCE", 15)
    config, ear = tiny(steps=60), Ear()
    train(config, tmp_path / "sane", cadence=OFTEN, stop=after(21))
    train(config, tmp_path / "whole", cadence=OFTEN)
    spoil(monkeypatch, seed=1, at=25, factor=100.0)
    summary = train(config, tmp_path / "broken", cadence=OFTEN, listeners=[ear])
    assert summary.ending == "finished"
    assert ear.notes == [
        "seed 1 was stopped at step 42: its loss stayed above 3.22, 2 times that of guessing, for 21 steps; "
        "it keeps the weights from before that"
    ]
    expected = {0: "whole", 1: "sane"}
    for seed, name in expected.items():
        ours, theirs = (
            runs.load_seed(tmp_path / where / f"seed-{seed}.safetensors") for where in ("broken", name)
        )
        assert torch.equal(ours.row, theirs.row)


def test_a_seed_on_its_way_out_goes_there_in_two_sittings_too(tiny, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("looped.training.engine.PATIENCE", 15)
    spoil(monkeypatch, seed=1, at=25, factor=100.0)
    config = tiny(steps=60)
    train(config, tmp_path / "whole", cadence=OFTEN)
    train(config, tmp_path / "broken", cadence=OFTEN, stop=after(39))
    assert "good.1" in _names(tmp_path / "broken" / "state.safetensors")
    train(config, tmp_path / "broken", cadence=OFTEN)
    assert "good.0" not in _names(tmp_path / "broken" / "state.safetensors")
    same(tmp_path / "whole", tmp_path / "broken")


def test_what_went_wrong_since_the_last_report_is_not_taken_for_good_weights(
    tiny, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("looped.training.engine.PATIENCE", 15)
    spoil(
        monkeypatch, seed=1, at=22, factor=100.0
    )  # reports come after 21 and 28 steps, the checkpoint between
    config = tiny(steps=60)
    train(config, tmp_path / "whole", cadence=OFTEN)
    train(config, tmp_path / "broken", cadence=OFTEN, stop=after(25))
    train(config, tmp_path / "broken", cadence=OFTEN)
    same(tmp_path / "whole", tmp_path / "broken")


def _names(path: Path) -> list[str]:
    return list(checkpoints.load(path, runs.STATE_KIND, lambda metadata, shapes: None)[1])


def test_a_full_disk_ends_training_with_the_last_checkpoint_whole(tiny, tmp_path: Path, monkeypatch) -> None:
    config = tiny(steps=30)
    train(config, tmp_path, cadence=OFTEN, stop=after(11))
    before = (tmp_path / "state.safetensors").read_bytes()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(InputError, match=r"the disk is full: .*state\.safetensors could not be written"):
        train(config, tmp_path, cadence=OFTEN)
    monkeypatch.undo()
    assert (tmp_path / "state.safetensors").read_bytes() == before
    assert train(config, tmp_path, cadence=OFTEN).ending == "finished"


def test_the_clock_saves_but_not_all_the_time(tiny, tmp_path: Path, monkeypatch) -> None:
    saves: list[float] = []
    ticks = count()  # the trainer's own clock: no other thread moves it on
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(trainer._Training, "_save", _slow_save(saves, trainer._Training._save))
    train(tiny(steps=60), tmp_path, cadence=Cadence(save_seconds=5.0, samples=4, evaluate_steps=60))
    first, second, _ = saves  # the last is made at the end, due or not
    assert first >= 5
    assert second - first >= 2 / trainer.LARGEST_SHARE  # by this clock a save takes two seconds


def _slow_save(saves: list[float], save):
    def noting(self) -> None:
        saves.append(trainer.time.monotonic())
        save(self)

    return noting


def test_summaries_are_json(tiny, tmp_path: Path) -> None:
    summary = train(tiny(steps=3), tmp_path, cadence=OFTEN)
    assert json.loads(json.dumps(asdict(summary), allow_nan=False)) == asdict(summary)
