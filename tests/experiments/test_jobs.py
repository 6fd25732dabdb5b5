"""How a job stands is read from its files, and damaged or foreign ones are named."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from forked import FEW

from looped import files, runs, serial
from looped.cli import sweep
from looped.cli.sweep import StatusLines, StatusTable, totals
from looped.errors import InputError
from looped.experiments import queue, worker
from looped.experiments.plan import MeasurementPlan
from looped.experiments.queue import Job, Status
from looped.training.trainer import Cadence, train


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def work(root: Path, job: Job, *more: str) -> int:
    """A worker in this process."""
    queue.put(root, job)
    return worker.main([str(queue.queue_file(root, f"{job.name}.json")), "--device", "cpu", *more])


def test_the_life_of_a_job(small, root: Path) -> None:
    job = small()
    assert queue.status_of(root, job) == Status("queued")
    queue.put(root, job)
    assert queue.jobs_in(root)[0] == [job]
    with files.lock(queue.queue_file(root, f"{job.name}.lock")):
        assert queue.status_of(root, job).state == "running"
    train(job.config, root / job.name, stop=lambda: queue.last_report(root / job.name)[0] >= 20)
    half = queue.status_of(root, job)
    assert (half.state, half.step) == ("interrupted", 20)
    assert half.loss == pytest.approx(sum(row["loss"] for row in runs.read_metrics(root / job.name)[-2:]) / 2)
    queue.cancel(root)
    assert queue.status_of(root, job).state == "cancelled"
    other = replace(job, name="never-asked-for")
    assert queue.status_of(root, other).state == "queued", "only what was asked for here can be cancelled"
    queue.clear_cancel(root)
    queue.fail(root, job.name, "it\nbroke")
    assert queue.status_of(root, job) == replace(half, state="failed", reason="it broke")
    assert work(root, job) == 0
    assert queue.status_of(root, job).state == "done"
    assert queue.failure(root, job.name) == "", "a failure is forgiven when it is tried again"
    (path,) = Path(job.results).iterdir()
    path.unlink()
    assert queue.status_of(root, job).state == "queued", "trained, but not measured"
    assert queue.trained(root / job.name, job.config)


def test_a_result_alone_is_enough(small, root: Path) -> None:
    """In a clone that has the results and no runs, nothing is left to do."""
    job = small()
    assert work(root, job) == 0
    os.rename(root, root.parent / "elsewhere")
    assert queue.status_of(root, job).state == "done"
    assert work(root, job) == 0
    assert not (root / job.name).exists()


def test_a_run_trained_without_a_job_is_listed(small, root: Path) -> None:
    job = small()
    train(job.config, root / "by-hand", cadence=Cadence(samples=4))
    assert queue.jobs_in(root)[0] == [Job("by-hand", job.config)]
    assert queue.status_of(root, Job("by-hand", job.config)).state == "done"
    with runs.Run(root / "by-hand", job.config):
        assert files.is_locked(root / "by-hand" / "lock")


@pytest.mark.parametrize("blow", [b"", b"half", None])
def test_a_damaged_seed_is_made_again_from_the_last_checkpoint(small, root: Path, blow: bytes | None) -> None:
    job = small()
    assert work(root, job) == 0
    (path,) = Path(job.results).iterdir()
    before = json.loads(path.read_text())["rows"]
    path.unlink()
    seed = root / job.name / "seed-1.safetensors"
    good = seed.read_bytes()
    seed.write_bytes(good[:-1] + bytes([good[-1] ^ 1]) if blow is None else blow)
    assert work(root, job) == 0
    assert json.loads(path.read_text())["rows"] == before


def test_a_job_somebody_has_is_left_alone(small, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.1)
    job = small()
    queue.put(root, job)
    with files.lock(queue.queue_file(root, f"{job.name}.lock")) as lock:
        assert lock is not None
        assert work(root, job) == worker.HELD
    assert not (root / job.name).exists()


def test_many_may_write_the_same_job_down(small, root: Path) -> None:
    wanted = [small(), small(plans=(MeasurementPlan((3,)),))]

    def write(job: Job) -> None:
        for _ in range(40):
            queue.put(root, job)

    writers = [multiprocessing.get_context("fork").Process(target=write, args=(job,)) for job in wanted]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert queue.jobs_in(root)[0][0] in wanted


@pytest.mark.parametrize("why", ["cancelled", "orphaned", "asked while measuring"])
def test_a_worker_stops_when_nobody_wants_it(
    small, root: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = small()
    queue.put(root, job)
    if why == "cancelled":
        queue.cancel(root)
    if why == "asked while measuring":
        train(job.config, root / job.name, cadence=Cadence(samples=4))
        make = worker.make_result

        def slow(*words: object) -> dict[str, object]:
            os.kill(os.getpid(), signal.SIGTERM)
            return make(*words)  # type: ignore[arg-type]

        monkeypatch.setattr(worker, "make_result", slow)
    parent = ["--parent", "1"] if why == "orphaned" else ["--parent", str(os.getppid())]
    assert work(root, job, *parent) == 128 + signal.SIGTERM
    assert queue.missing_plans(job) == [FEW]
    assert not list(Path(job.results).glob("*")) if Path(job.results).exists() else True


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": "../x"}, "cannot name a run"),
        ({"name": "other"}, "is the job of another run, 'other'"),
        ({"plans": [{}]}, "lacks the field 'plans[0].lengths'"),
        ({"nmae": "x"}, "unknown field 'nmae'"),
        ({"config": {}}, "lacks the field 'config.task'"),
        ({"results": ""}, "has no folder for its results"),
        ({"save_seconds": 0}, "the seconds between two checkpoints must be above 0"),
    ],
)
def test_forged_jobs_are_refused(small, root: Path, change: dict[str, object], complaint: str) -> None:
    job = small()
    queue.put(root, job)
    path = queue.queue_file(root, f"{job.name}.json")
    path.write_text(json.dumps({**serial.to_json(job), **change}))
    with pytest.raises(InputError) as raised:
        queue.read_job(path)
    assert complaint in str(raised.value)
    status = worker.main([str(path)])
    assert status == worker.IMPOSSIBLE
    assert complaint in queue.failure(root, job.name)


def test_a_folder_of_another_configuration_is_named_before_anything_starts(small, root: Path) -> None:
    job = small()
    train(small("copy", "steps=3").config, root / job.name, cadence=Cadence(samples=4))
    with pytest.raises(InputError, match=r"another configuration \(steps: 3 → 30\); choose another --out"):
        queue.check_folder(root, job)


def test_metrics_in_any_state_can_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert queue.last_report(tmp_path) == (0, None)
    lines = ['{"kind": "training", "step": 10, "loss": 0.5}', '{"kind": "training", "step": 10, "loss": 1.5}']
    path.write_text("\n".join(["x" * 100_000, "[]", *lines, '{"kind": "evaluation", "step": 10}', '{"ki']))
    assert queue.last_report(tmp_path) == (10, 1.0)
    path.write_text('{"kind": "training", "step": 20, "loss": null}\n')
    assert queue.last_report(tmp_path) == (20, None)


# --- what a person sees ------------------------------------------------------------------------------------
def test_lines_tell_only_what_is_new(small, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = small("copy"), small("parity")
    lines = StatusLines()
    states = [
        [Status("done"), Status("queued")],
        [Status("done"), Status("running", 3)],
        [Status("done"), Status("running", 9)],
        [Status("done"), Status("failed", 9, reason="the disk is full")],
    ]
    for statuses in states:
        lines.show([one, two], statuses)
    assert capsys.readouterr().err.splitlines() == [
        f"{two.name} running at step 3 of 30",
        f"{two.name} failed at step 9 of 30: the disk is full",
    ]
    assert totals(states[-1]) == "1 done, 1 failed"


def test_the_live_table_shows_what_matters_most(small, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    batch = [small("copy", f"batch={i}") for i in range(1, 9)]
    statuses = [Status("done")] * 5 + [
        Status("running", 7, 0.25),
        Status("failed", reason="[odd]"),
        Status("queued"),
    ]
    console = Console(width=160)
    console.print(sweep.table(batch, statuses, room=3))
    shown = capsys.readouterr().out
    assert "7/30" in shown
    assert "0.2500" in shown
    assert "[odd]" in shown, "a reason is never read as markup"
    assert "done" not in shown.replace("5 done, 1 running, 1 queued, 1 failed", "")
    live = StatusTable()
    live.show(batch, statuses)
    live.end()


def test_a_damaged_run_does_not_hide_the_others(small, cli, tmp_path: Path) -> None:
    """Those that can be read are shown and can be stopped; the other is named."""
    queue.put(tmp_path, small())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("")
    found, problems = queue.jobs_in(tmp_path)
    assert found == [small()]
    assert len(problems) == 1
    code, out, err = cli("status", tmp_path)
    assert code == 1
    assert small().name in out
    assert "broken/config.json is not JSON" in err
    code, _, err = cli("cancel", tmp_path)
    assert code == 0
    assert "broken/config.json is not JSON" in err
