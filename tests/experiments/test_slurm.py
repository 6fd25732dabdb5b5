"""The engine `slurm` on a real Slurm of one node: whatever happens to a run there, it ends as on `local`."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import slurm_node
import twelve
from forked import count

from looped import files, runs
from looped.experiments import queue
from looped.experiments.backends import BackendOptions, StatusListener, run_jobs, start

pytestmark = [
    pytest.mark.skipif(bool(slurm_node.missing()), reason=slurm_node.missing() or "-"),
    pytest.mark.timeout(600),
    pytest.mark.slow,  # `make engines` runs them too
]
STEPS = 300
OPTIONS = BackendOptions(device="cpu")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with slurm_node.slurm(tmp_path_factory.mktemp("slurm") / "node") as environment:
        yield environment


@pytest.fixture(autouse=True)
def slurm(node: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in node.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("looped.experiments.backends.slurm.LOOK_S", 0.3)
    monkeypatch.setattr("looped.experiments.backends.slurm.HURRY_S", 0.3)


def control(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True)


def submitted() -> int:
    """How many tasks this Slurm has ever been given."""
    said = subprocess.run(["squeue", "-h", "-r", "-t", "all"], check=True, capture_output=True, text=True)
    return len(said.stdout.splitlines())


def until(root: Path, name: str, step: int) -> Callable[[], bool]:
    return lambda: (queue.saved_step(root / name / runs.STATE) or 0) >= step


class Requeuer(StatusListener):
    """Has Slurm requeue a run that has saved something, as a preemption would, and start it again at once."""

    def __init__(self, root: Path) -> None:
        self.root, self.task = root, ""

    def show(self, batch, statuses) -> None:
        for job, status in zip(batch, statuses, strict=True):
            if not self.task and status.state == "running" and until(self.root, job.name, 1)():
                task = queue.queue_file(self.root, f"{job.name}.slurm").read_text().strip()
                self.task = "" if control("requeue", task).returncode else task  # it may just have ended
            if status.reason == "waits in Slurm: BeginTime":  # for two minutes, unless somebody is impatient
                control("update", f"JobId={self.task}", "StartTime=now")


def test_twelve_runs_with_a_requeue_end_as_on_local(tmp_path: Path) -> None:
    batch, root, before = twelve.batch(tmp_path / "slurm", STEPS), tmp_path / "slurm" / "runs", submitted()
    requeuer = Requeuer(root)
    outcome = run_jobs(start("slurm", root, OPTIONS), batch, listener=requeuer)
    assert (outcome.ending, count(outcome, "done")) == ("complete", 12)
    assert "Restarts=1" in control("show", "job", requeuer.task).stdout
    logs = "".join(path.read_text() for path in (root / ".jobs").glob("*.log"))
    assert logs.count("going on after step") == 1
    assert twelve.outcome(tmp_path / "slurm", batch) == twelve.undisturbed(tmp_path / "local", STEPS)
    assert run_jobs(start("slurm", root, OPTIONS), batch).ending == "complete"
    assert submitted() == before + 12, "one array, and the second start submits nothing"


def test_a_killed_driver_leaves_the_array_and_the_next_one_finds_it(small, tmp_path: Path) -> None:
    root, before = tmp_path / "runs", submitted()
    batch = [small("copy", "steps=1000000", "lr=1e-4", plans=(), save_seconds=0.2)]
    driver = multiprocessing.get_context("fork").Process(
        target=lambda: run_jobs(start("slurm", root, OPTIONS), batch)
    )
    driver.start()
    while not until(root, batch[0].name, 1)():
        assert driver.is_alive()
    os.kill(driver.pid, 9)
    driver.join()
    step = queue.saved_step(root / batch[0].name / runs.STATE)
    outcome = run_jobs(start("slurm", root, OPTIONS), batch, stop=until(root, batch[0].name, step + 100))
    assert (outcome.ending, outcome.statuses[0].state) == ("interrupted", "interrupted")
    assert submitted() == before + 1
    assert not files.is_locked(queue.queue_file(root, f"{batch[0].name}.lock")), "it has saved and stopped"
    assert "going on after step" not in queue.queue_file(root, f"{batch[0].name}.log").read_text()


def test_what_cannot_be_done_is_said_and_not_tried_twice(small, tmp_path: Path) -> None:
    before, bad = submitted(), small("parity")
    (tmp_path / "runs" / bad.name).mkdir(parents=True)
    (tmp_path / "runs" / bad.name / "thesis.txt").touch()
    outcome = run_jobs(start("slurm", tmp_path / "runs", OPTIONS), [bad])
    assert (outcome.ending, outcome.statuses[0].state, submitted()) == ("failed", "failed", before + 1)
    assert "is no run's folder (it holds thesis.txt)" in outcome.statuses[0].reason
