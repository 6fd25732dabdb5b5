"""The local engine: every run ends where a single run ends, whichever process is killed on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from forked import FEW, count, strike, victim

from looped import checkpoints, files, runs
from looped.errors import InputError
from looped.experiments import backends, queue, worker
from looped.experiments.backends import BackendOptions, Local, StatusListener, run_jobs, slots
from looped.experiments.plan import MeasurementPlan
from looped.experiments.queue import Job
from looped.training.trainer import train

KILLS = int(os.environ.get("LOOPED_KILLS", "10"))  # of the chaos test
SEED = int(os.environ.get("LOOPED_SEED", "5"))
TASKS = ("copy", "parity", "binary_sum", "unique_set")


def same_weights(one: Path, other: Path) -> None:
    files = runs.seed_files(one), runs.seed_files(other)
    for ours, theirs in zip(*files, strict=True):
        first, second = runs.load_seed(ours), runs.load_seed(theirs)
        assert (first.seed, first.step) == (second.seed, second.step)
        assert torch.equal(first.row, second.row), ours


def rows(job: Job, plan: int = 0) -> list[dict[str, object]]:
    path = queue.result_file(Path(job.results), job.name, job.plans[plan])
    return json.loads(path.read_text())["rows"]


def test_a_sweep_ends_where_single_runs_end_and_a_second_start_does_nothing(
    small, engine, tmp_path: Path
) -> None:
    batch = [small(task, f"lr={lr}") for task in TASKS for lr in ("1e-3", "2e-3")]
    root = tmp_path / "runs"
    first = engine()
    outcome = run_jobs(first, batch)
    assert (outcome.ending, count(outcome, "done"), first.started) == ("complete", 8, 8)
    for job in batch[::3]:
        train(job.config, tmp_path / "alone" / job.name)
        same_weights(root / job.name, tmp_path / "alone" / job.name)
        alone = worker.make_result(tmp_path / "alone" / job.name, FEW, torch.device("cpu"))
        assert rows(job) == alone["rows"]
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    again = engine()
    assert (run_jobs(again, batch).ending, again.started) == ("complete", 0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
    queue.result_file(Path(batch[3].results), batch[3].name, FEW).unlink()
    third = engine()
    assert (run_jobs(third, batch).ending, third.started) == ("complete", 1)
    assert rows(batch[3]) == worker.make_result(root / batch[3].name, FEW, torch.device("cpu"))["rows"]


def test_a_real_worker_process_gives_the_same(small, tmp_path: Path) -> None:
    batch = [small("copy")]
    outcome = run_jobs(Local(tmp_path / "runs", BackendOptions(workers=1, device="cpu")), batch)
    assert outcome.statuses[0].state == "done", outcome.statuses[0].reason
    train(batch[0].config, tmp_path / "alone")
    same_weights(tmp_path / "runs" / batch[0].name, tmp_path / "alone")


# --- blows -------------------------------------------------------------------------------------------------
class Killer(StatusListener):
    """Kills a worker with some signal once it has reached a step, a few times."""

    def __init__(self, root: Path, number: int, times: int) -> None:
        self.root, self.number, self.left = root, number, times
        self.hit: set[int] = set()

    def show(self, batch, statuses) -> None:
        for job, status in zip(batch, statuses, strict=True):
            pid = victim(self.root, job.name)
            saved = queue.saved_step(self.root / job.name / runs.STATE)
            if self.left and status.state == "running" and pid and pid not in self.hit and saved:
                self.hit.add(pid)
                strike(self.root, job.name, self.number)
                self.left -= 1


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_worker_that_dies_is_started_again_and_loses_nothing(
    small, engine, tmp_path: Path, number: int
) -> None:
    job, root = small("copy", "steps=250", save_seconds=0.05), tmp_path / "runs"
    ours, killer = engine(), Killer(root, number, times=2)
    outcome = run_jobs(ours, [job], listener=killer)
    assert (outcome.ending, killer.left, ours.started) == ("complete", 0, 3)
    train(job.config, tmp_path / "alone")
    same_weights(root / job.name, tmp_path / "alone")


def test_a_worker_that_never_gets_on_is_given_up(small, engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr("looped.experiments.worker.train", crash)
    ours = engine()
    outcome = run_jobs(ours, [small("copy")])
    assert (outcome.ending, ours.started) == ("failed", 3)
    assert outcome.statuses[0].reason == "MemoryError: no room (3 times without getting on)"


def test_what_cannot_be_done_is_not_tried_twice(small, engine, tmp_path: Path) -> None:
    good, bad = small("copy"), small("parity")
    folder = tmp_path / "runs" / bad.name
    folder.mkdir(parents=True)
    (folder / "thesis.txt").touch()
    ours = engine()
    outcome = run_jobs(ours, [bad, good])
    assert (outcome.ending, ours.started) == ("failed", 2)
    assert [status.state for status in outcome.statuses] == ["failed", "done"]
    assert "is no run's folder (it holds thesis.txt)" in outcome.statuses[0].reason
    assert queue.status_of(tmp_path / "runs", bad).reason == outcome.statuses[0].reason
    (folder / "thesis.txt").unlink()
    again = engine()
    assert (run_jobs(again, [bad, good]).ending, again.started) == ("complete", 1)


@pytest.mark.parametrize("where", ["train", "checkpoints.write_json"])
def test_a_full_disk_is_named(small, engine, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    write_json = checkpoints.write_json

    def full(path: object, *more: object, **how: object) -> None:
        if where == "train":
            raise InputError("the disk is full: x could not be written; what was there before is intact")
        if Path(path).parent.name == "results":
            raise OSError(28, "No space left on device")
        write_json(path, *more, **how)

    monkeypatch.setattr(f"looped.experiments.worker.{where}", full)
    monkeypatch.setattr("looped.experiments.queue.fail", lambda *_: None)  # no room for the reason either
    outcome = run_jobs(engine(), [small("copy")])
    assert outcome.statuses[0].state == "failed"
    assert "the disk is full" in outcome.statuses[0].reason


def test_seeds_that_all_go_wrong_are_a_failure_with_a_reason(
    small, engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looped.training.optimizer.hyper", lambda *_: [[float("nan")] * 3] * 2)
    ours = engine()
    outcome = run_jobs(ours, [small("copy")])
    assert (outcome.ending, ours.started) == ("failed", 1)
    assert outcome.statuses[0].reason.startswith("every seed stopped (seed 0: ")


# --- stopping ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", [pytest.param("interrupted", marks=pytest.mark.slow), "cancelled"])
def test_stopping_saves_first_and_the_next_start_goes_on(small, engine, tmp_path: Path, how: str) -> None:
    root = tmp_path / "runs"
    batch = [small(task, "steps=400", plans=()) for task in ("copy", "parity", "unique_set")]

    def reached() -> bool:
        return queue.last_report(root / batch[0].name)[0] >= 20

    class Canceller(StatusListener):
        def show(self, batch, statuses) -> None:
            if how == "cancelled" and reached():
                queue.cancel(root)

    stop = reached if how == "interrupted" else lambda: False
    outcome = run_jobs(engine(), batch, listener=Canceller(), stop=stop)
    assert outcome.ending == how
    states = {status.state for status in outcome.statuses}
    assert states <= ({"cancelled"} if how == "cancelled" else {"interrupted", "queued"})
    assert not any(files.is_locked(queue.queue_file(root, f"{job.name}.lock")) for job in batch)
    saved = queue.saved_step(root / batch[0].name / runs.STATE)
    assert saved is not None
    assert 20 <= saved < 400
    stopped = how
    assert queue.status_of(root, batch[0]).state == stopped
    again = engine()
    assert run_jobs(again, batch[:1]).ending == "complete"
    assert f"going on after step {saved}" in queue.queue_file(root, f"{batch[0].name}.log").read_text()


def test_a_time_limit_stops_the_whole(small, engine, tmp_path: Path) -> None:
    outcome = run_jobs(engine(), [small("copy"), small("parity"), small("unique_set")], time_limit_s=1e-9)
    assert (outcome.ending, count(outcome, "queued")) == (
        "time limit",
        3,
    ), "none of them began"
    with pytest.raises(InputError, match="the time limit must be above 0 seconds"):
        run_jobs(engine(), [small("copy")], time_limit_s=0)


def test_two_drivers_at_once_share_the_work(small, engine, tmp_path: Path) -> None:
    batch = [small(task, "steps=60") for task in ("copy", "parity")]
    other_plan = MeasurementPlan(lengths=(3,), samples=10)
    theirs = [small(task, "steps=60", plans=(other_plan,)) for task in ("parity", "copy")]
    outcomes: list[str] = []
    other = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(run_jobs(engine(), theirs).ending != "complete")
    )
    other.start()
    outcomes.append(run_jobs(engine(), batch).ending)
    other.join()
    assert (outcomes, other.exitcode) == (["complete"], 0)
    for job in (*batch, *theirs):
        assert queue.missing_plans(job) == []
        assert not queue.failure(tmp_path / "runs", job.name)


@pytest.mark.slow
def test_chaos(small, engine, tmp_path: Path) -> None:
    """Random kills of workers and of the driver: afterwards all is as if nothing had happened."""
    root, dice = tmp_path / "runs", random.Random(SEED)
    batch = [small(task, "steps=200", save_seconds=0.05) for task in TASKS]
    fork = multiprocessing.get_context("fork")

    def start():
        driver = fork.Process(target=lambda: os._exit(run_jobs(engine(), batch).ending != "complete"))
        driver.start()
        return driver

    driver, kills = start(), {"worker": 0, "driver": 0}
    least = {job.name: 0 for job in batch}
    while driver.is_alive():
        time.sleep(dice.uniform(0.05, 0.3))
        if sum(kills.values()) >= KILLS:
            driver.join()
            break
        if dice.random() < 0.3:
            driver.kill()
            driver.join()
            kills["driver"] += 1
            driver = start()
        else:
            running = [job.name for job in batch if queue.status_of(root, job).state == "running"]
            if running:
                name = dice.choice(running)
                least[name] = max(least[name], queue.saved_step(root / name / runs.STATE) or 0)
                kills["worker"] += strike(root, name, signal.SIGKILL) is not None
                assert (queue.saved_step(root / name / runs.STATE) or 0) >= least[name], (
                    "a checkpoint was lost"
                )
    assert driver.exitcode == 0
    assert min(kills.values()) > 0, kills
    for job in batch:
        train(job.config, tmp_path / "alone" / job.name)
        same_weights(root / job.name, tmp_path / "alone" / job.name)
        assert (
            rows(job) == worker.make_result(tmp_path / "alone" / job.name, FEW, torch.device("cpu"))["rows"]
        )


# --- the registry ------------------------------------------------------------------------------------------
def test_engines_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(backends.start("local", tmp_path, BackendOptions(device="cpu")), Local)
    with pytest.raises(InputError, match="unknown engine 'cloud'; the engines are local"):
        backends.start("cloud", tmp_path)
    (tmp_path / "cloud_engine.py").write_text("import cloud_nine\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(backends.BACKENDS, "cloud", "cloud_engine:Cloud")
    with pytest.raises(InputError, match=r"needs the package cloud_nine: pip install 'looped\[cloud\]'"):
        backends.start("cloud", tmp_path)


def test_every_device_gets_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slots(BackendOptions(3, "cpu")) == ["cpu"] * 3
    assert set(slots(BackendOptions(0, "cpu"))) == {"cpu"}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert slots(BackendOptions()) == ["cuda:0", "cuda:1"]
    assert slots(BackendOptions(workers=3)) == ["cuda:0", "cuda:1", "cuda:0"]
    assert slots(BackendOptions(workers=2, device="cuda:1")) == ["cuda:1", "cuda:1"]
    with pytest.raises(InputError, match="the number of workers"):
        BackendOptions(workers=-1)
