"""The engine `slurm` with a Slurm that only pretends: what it is told, and what its answers lead to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from looped.errors import InputError
from looped.experiments import queue
from looped.experiments.backends import LOST, BackendOptions, WorkerEnd, run_jobs, slurm, start
from looped.experiments.backends.slurm import Slurm, rows, sbatch_words, script

FAKES = {
    "sbatch": 'printf "%s\\n" "$@" > sbatch.words; cat > sbatch.script; echo x >> sbatch.times\n'
    'test -e refused && { echo "sbatch: error: $(cat refused)" >&2; exit 1; }\ncat number',
    "squeue": 'test -e down && { echo "slurm_load_jobs error: no controller" >&2; exit 1; }\ncat queue',
    "scancel": 'printf "%s\\n" "$@" >> cancelled',
}


class Fake:
    """Slurm's commands as shell scripts; their answers are files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, body in FAKES.items():
            path = folder / name
            path.write_text(f'#!/bin/sh\ncd "{folder}"\n{body}\n')
            path.chmod(0o755)
        self.says("number", "12")
        self.says("queue", "")

    def says(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text + "\n")

    def heard(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("looped.experiments.backends.slurm.LOOK_S", 0.0)
    monkeypatch.setattr("looped.experiments.backends.slurm.HURRY_S", 0.0)
    monkeypatch.setattr("looped.experiments.backends.GRACE_S", 0.1)
    return Fake(folder)


def submitted(tmp_path: Path, batch, options: BackendOptions | None = None) -> Slurm:
    engine = start("slurm", tmp_path / "runs", options)
    engine.submit(batch)
    return engine


def ids(engine: Slurm) -> dict[str, str]:
    """The task of each started job."""
    return {name: task for name, (task, _) in engine.workers.items()}


def states(engine: Slurm) -> list[tuple[str, str]]:
    return [(status.state, status.reason) for status in engine.poll()]


def test_runs_become_one_array(fake: Fake, three, tmp_path: Path) -> None:
    engine = submitted(tmp_path, three, BackendOptions(2, "cuda", sbatch=("partition=gpu", "exclusive")))
    assert states(engine) == [("queued", "")] * 3
    words = fake.heard("sbatch.words")
    assert {"--requeue", "--array=0-2%2", "--partition=gpu", "--exclusive", "--gres=gpu:1"} <= set(words)
    queue_file = tmp_path / "runs" / ".jobs"
    assert [(queue_file / f"{job.name}.slurm").read_text() for job in three] == ["12_0\n", "12_1\n", "12_2\n"]
    fake.says("queue", "12_0 RUNNING 0 None\n12_1 PENDING 0 Resources\n12_2 REQUEUED 0 BeginTime")
    assert states(engine) == [
        ("running", ""),
        ("queued", "waits in Slurm: Resources"),
        ("queued", "waits in Slurm: BeginTime"),
    ]
    assert len(fake.heard("sbatch.times")) == 1
    engine.cancel()
    assert sorted(fake.heard("cancelled")) == ["12_0", "12_1", "12_2"]
    fake.says("queue", "12_0 CANCELLED 15 None\n12_1 CANCELLED 0 None\n12_2 CANCELLED 0 None")
    assert states(engine) == [("cancelled", "")] * 3


def test_the_script_starts_the_worker_of_its_task(three, tmp_path: Path) -> None:
    root = tmp_path / "it's a $HOME" / "runs"
    queue.put(root, three[1])
    echo = tmp_path / "python"
    echo.write_text(
        '#!/bin/sh\nfor word in "$@" "$OMP_NUM_THREADS" "$PYTHONPATH"; do echo "<$word>"; done\nexit 7\n'
    )
    echo.chmod(0o755)
    text = script(root, [job.name for job in three], "cpu").replace(sys.executable, str(echo))
    environment = {"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": "1", "PYTHONPATH": "/more"}
    assert subprocess.run(["sh"], input=text.encode(), env=environment).returncode == 7
    said = queue.queue_file(root, f"{three[1].name}.log").read_text().splitlines()
    job = queue.queue_file(root, f"{three[1].name}.json")
    assert said[:6] == ["<-P>", "<-m>", "<looped.experiments.worker>", f"<{job}>", "<--device>", "<cpu>"]
    assert said[6] == "<1>"
    assert "/more" not in said[7], "the path is the driver's"


def test_a_task_that_was_lost_is_submitted_again_and_one_cancelled_by_hand_is_not(
    fake: Fake, three, tmp_path: Path
) -> None:
    engine = submitted(tmp_path, three)
    engine.poll()
    fake.says("number", "13;cluster")
    fake.says("queue", "12_0 TIMEOUT 0 TimeLimit\n12_1 CANCELLED 0 None")  # 12_2 is not known any more
    assert states(engine) == [
        ("queued", "Slurm says TIMEOUT"),
        ("cancelled", "cancelled in Slurm"),
        ("queued", "gone from Slurm's queue"),
    ]
    assert "--array=0-1" in fake.heard("sbatch.words")
    assert ids(engine) == {three[2].name: "13_0", three[0].name: "13_1"}


def test_exit_statuses_are_judged_as_everywhere(fake: Fake, three, tmp_path: Path) -> None:
    engine = submitted(tmp_path, three[:2])
    for number in ("12", "13", "14"):
        fake.says("number", number)
        engine.poll()
        if number == "12":
            queue.fail(tmp_path / "runs", three[1].name, "no such thing")
        fake.says("queue", f"{number}_0 FAILED 256 NonZeroExitCode\n{number}_1 FAILED 512 NonZeroExitCode")
    assert states(engine) == [
        ("failed", "its worker ended with status 1 (see its log) (3 times without getting on)"),
        ("failed", "no such thing"),
    ]
    assert len(fake.heard("sbatch.times")) == 3


def test_a_later_driver_finds_the_array_and_what_is_over_counts_no_more(
    fake: Fake, three, tmp_path: Path
) -> None:
    engine = submitted(tmp_path, three)
    engine.poll()
    fake.says(
        "queue", "12_0 RUNNING 0 None\n12_1 PENDING 0 Priority\n12_2 NODE_FAIL 0 None\n7_0 RUNNING 0 None"
    )
    fake.says("number", "20")
    second = submitted(tmp_path, three)
    assert [state for state, _ in states(second)] == ["running", "queued", "queued"]
    assert ids(second) == {three[0].name: "12_0", three[1].name: "12_1", three[2].name: "20_0"}
    assert "--array=0-0" in fake.heard("sbatch.words")


@pytest.mark.parametrize("left", [b"", b"\xff\x00", b"12_0 " * 10**5, b"99_0", None])
def test_what_a_driver_left_may_be_anything(fake: Fake, three, tmp_path: Path, left: bytes | None) -> None:
    path = queue.queue_file(tmp_path / "runs", f"{three[0].name}.slurm")
    os.mkfifo(path) if left is None else path.write_bytes(left)
    fake.says("queue", "12_0 RUNNING 0 None")
    engine = submitted(tmp_path, three)
    assert ids(engine) == {}


def test_a_slurm_that_does_not_answer_is_waited_for(fake: Fake, three, tmp_path: Path) -> None:
    engine = submitted(tmp_path, three[:2])
    engine.poll()
    fake.says("queue", "12_0 RUNNING 0 None\n12_1 RUNNING 0 None")
    engine.poll()
    fake.says("down", "")
    assert [state for state, _ in states(engine)] == ["running", "running"]
    (fake.folder / "down").unlink()
    fake.says("queue", "12_0 PREEMPTED 0 None\n12_1 RUNNING 0 None")
    fake.says("refused", "Batch job submission failed: too many jobs")
    assert [state for state, _ in states(engine)] == ["queued", "running"]
    assert states(engine)[0] == (
        "queued",
        "sbatch: error: Batch job submission failed: too many jobs",
    )
    (fake.folder / "refused").unlink()
    time.sleep(0.01)
    engine.poll()
    assert three[0].name in ids(engine)


def test_a_slurm_that_refuses_all_is_one_sentence(fake: Fake, three, tmp_path: Path) -> None:
    fake.says("refused", "invalid partition specified: moon")
    with pytest.raises(
        InputError, match="Slurm refused the runs: sbatch: error: invalid partition specified: moon"
    ):
        run_jobs(start("slurm", tmp_path / "runs"), three)
    fake.says("down", "")
    with pytest.raises(InputError, match="Slurm does not answer: slurm_load_jobs error: no controller"):
        run_jobs(start("slurm", tmp_path / "runs"), three)


def test_many_runs_are_several_arrays(
    fake: Fake, three, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ARRAY", 2)
    engine = submitted(tmp_path, three)
    fake.says("queue", "12_0 PENDING 0 None\n12_1 PENDING 0 None\n13_0 PENDING 0 None")
    engine.poll()
    fake.says("number", "13")
    engine.poll()
    assert sorted(ids(engine).values()) == ["12_0", "12_1", "13_0"]


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("1_0 RUNNING 0 None", None),
        ("1_0 SUSPENDED 0 None", None),
        ("1_0 COMPLETED 0 None", WorkerEnd(0)),
        ("1_0 FAILED 512 NonZeroExitCode", WorkerEnd(2)),
        ("1_0 FAILED 2:0 NonZeroExitCode", WorkerEnd(2)),
        ("1_0 FAILED 9 RaisedSignal:9(Killed)", WorkerEnd(-9)),
        ("1_0 FAILED 0:9 RaisedSignal:9(Killed)", WorkerEnd(-9)),
        ("1_0 FAILED N/A", WorkerEnd(1)),
        ("1_0 OUT_OF_MEMORY 0 OutOfMemory", WorkerEnd(1, "Slurm says OUT_OF_MEMORY")),
        ("1_0 NODE_FAIL 0 None", WorkerEnd(LOST, "Slurm says NODE_FAIL")),
    ],
)
def test_what_squeue_says(line: str, end: WorkerEnd | None) -> None:
    assert rows(f"{line}  \n\n")["1_0"].end == end


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (BackendOptions(sbatch=("array=0-9",)), "--sbatch cannot set array, which looped sets itself"),
        (
            BackendOptions(sbatch=("--partition gpu",)),
            "--sbatch takes an option of sbatch such as partition=gpu",
        ),
    ],
)
def test_bad_options_of_slurm(options: BackendOptions, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        sbatch_words(options)


def test_slurm_chooses_the_gpu(fake: Fake, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Slurm chooses the GPU of a run itself"):
        start("slurm", tmp_path, BackendOptions(device="cuda:1"))


def test_gpus_asked_for_by_hand_are_not_asked_for_twice() -> None:
    assert "--gres=gpu:1" not in sbatch_words(BackendOptions(device="cuda", sbatch=("gpus=2",)))
