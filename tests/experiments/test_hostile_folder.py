"""Modules that lie beside a sweep file or in the folder of runs: no worker of any backend imports them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import slurm_node
from forked import count

from looped.experiments import backends, queue
from looped.experiments.backends import BackendOptions, Local, run_jobs, safe_path, start
from looped.experiments.backends.slurm import script
from looped.experiments.queue import Job

TRAP = "import pathlib, sys; pathlib.Path({mark!r}).open('a').write(f'{{__name__}} in {{sys.argv}}\\n')\n"
HOSTILE = ("safetensors.py", "torch.py", "numpy.py", "looped/__init__.py", "sitecustomize.py")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that must not appear; the current folder and the folder of runs are full of modules that make it."""
    mark = tmp_path / "pwned"
    for folder in (tmp_path, tmp_path / "runs", tmp_path / "runs" / ".jobs"):
        for name in HOSTILE:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(TRAP.format(mark=str(mark)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(["", ".", "runs", str(tmp_path), str(tmp_path / "runs")])
    )
    return mark


def by_local(job: Job) -> int:
    backend = Local.__new__(Local)
    backend.root = Path("runs")
    words = [str(queue.queue_file(Path("runs"), f"{job.name}.json")), "--device", "cpu"]
    with open(queue.queue_file(Path("runs"), f"{job.name}.log"), "ab") as log:
        return backend._spawn(words, log).wait()


def by_slurm(job: Job) -> int:
    text = script(Path("runs"), [job.name], "cpu")
    return subprocess.run(
        ["sh"], input=text, text=True, env={**os.environ, "SLURM_ARRAY_TASK_ID": "0"}
    ).returncode


def by_ray(job: Job) -> int:
    paths = {"PYTHONPATH": safe_path(Path("runs"))}  # Ray gives it to every process of ours
    old = {name: os.environ[name] for name in paths}
    os.environ.update(paths)
    try:
        words = [str(queue.queue_file(Path("runs"), f"{job.name}.json")), "--device", "cpu"]
        log = str(queue.queue_file(Path("runs"), f"{job.name}.log"))
        return backends.run_worker(words, log, str(Path.cwd()), "stop")
    finally:
        os.environ.update(old)


@pytest.mark.parametrize("way", [by_local, by_slurm, by_ray])
def test_a_worker_imports_nothing_from_where_it_stands(
    way: Callable[[Job], int], small: Callable[..., Job], mark: Path
) -> None:
    job = small("copy", "steps=1", plans=())
    queue.put(Path("runs"), job)
    status = way(job)
    log = queue.queue_file(Path("runs"), f"{job.name}.log").read_text()
    assert not mark.exists(), log
    assert (status, (Path("runs") / job.name / "seed-0.safetensors").exists()) == (0, True), log


def test_other_folders_of_the_path_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/more", "", "relative", str(tmp_path), "/and/more"]))
    first, *others = safe_path(Path("runs")).split(os.pathsep)
    assert (Path(first) / "looped" / "experiments").is_dir()
    assert others == ["/more", "/and/more"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_real_ray_imports_nothing_from_where_it_stands(small: Callable[..., Job], mark: Path) -> None:
    pytest.importorskip("ray", reason="no ray here: pip install 'looped[ray]'")
    through("ray", BackendOptions(device="cpu", workers=2), small("copy", "steps=1", plans=()), mark)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(bool(slurm_node.missing()), reason=slurm_node.missing() or "-")
def test_a_real_slurm_imports_nothing_from_where_it_stands(
    small: Callable[..., Job],
    mark: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with slurm_node.slurm(tmp_path_factory.mktemp("slurm") / "node") as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        through("slurm", BackendOptions(device="cpu"), small("copy", "steps=1", plans=()), mark)


def through(engine: str, options: BackendOptions, job: Job, mark: Path) -> None:
    """Run a job by a real engine, as `looped sweep` does."""
    path = os.environ["PYTHONPATH"]
    outcome = run_jobs(start(engine, Path("runs"), options), [job])
    assert os.environ["PYTHONPATH"] == path
    logs = "".join(path.read_text() for path in Path("runs/.jobs").glob("*.log"))
    assert not mark.exists(), mark.read_text() + logs
    assert (outcome.ending, count(outcome, "done")) == ("complete", 1), logs
