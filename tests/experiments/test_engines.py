"""Which engine there is, and `ray` with a Ray that only pretends: what it is told, and what its answers lead to."""

from __future__ import annotations

import dis
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from looped import files
from looped.errors import InputError
from looped.experiments import backends, queue
from looped.experiments.backends import BackendOptions, start


# --- which engine ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("ray", BackendOptions(), r"the engine ray needs the package ray: pip install 'looped\[ray\]'"),
        (
            "slurm",
            BackendOptions(),
            "the engine slurm needs the command sbatch, which is not on the PATH here",
        ),
        ("local", BackendOptions(address="auto"), "--address is for the engine ray, not for local"),
        ("ray", BackendOptions(sbatch=("time=1",)), "--sbatch is for the engine slurm, not for ray"),
        ("cloud", BackendOptions(), "unknown engine 'cloud'; the engines are local, ray, slurm"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: BackendOptions, complaint: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=complaint):
        start(name, tmp_path, options)


# --- ray ---------------------------------------------------------------------------------------------------
class RayError(Exception):
    cause = ValueError("two\nlines")


class Cluster(ModuleType):
    """What the engine uses of the package `ray`; a task ends when the test says how."""

    def __init__(self, gpus: float) -> None:
        super().__init__("ray")
        kinds = (
            "TaskCancelledError",
            "RayTaskError",
            "OutOfMemoryError",
            "NodeDiedError",
            "WorkerCrashedError",
        )
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = RayError
        for kind in kinds:
            setattr(self.exceptions, kind, type(kind, (RayError,), {}))
        self.cloudpickle = SimpleNamespace(register_pickle_by_value=lambda module: self.by_value.add(module))
        self.by_value = set[ModuleType]()
        self.gpus, self.started, self.ends, self.calls = gpus, {}, {}, []

    def init(self, **options: object) -> None:
        self.calls.append(("init", options["address"], options.get("num_cpus")))

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0, **({"GPU": self.gpus} if self.gpus else {})}

    def remote(self, work):
        assert work is backends.run_worker
        assert backends in self.by_value, "no process of Ray's looks for it in the current folder"

        def options(name: str, **share: object):
            def begin(*words: object) -> str:
                self.started[name] = words, share
                return name

            return SimpleNamespace(remote=begin)

        return SimpleNamespace(options=options)

    def wait(self, refs, num_returns: int, timeout: float):
        return [ref for ref in refs if ref in self.ends], []

    def get(self, ref: str) -> int:
        end = self.ends.pop(ref)
        if isinstance(end, int):
            return end
        raise getattr(self.exceptions, end)

    def cancel(self, ref: str, force: bool) -> None:
        self.calls.append(("cancel", ref, force))
        self.ends[ref] = "TaskCancelledError"

    def shutdown(self) -> None:
        self.calls.append(("shutdown",))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch):
    """A pretended Ray without GPUs, and the engine that knows no other."""
    cluster, ours = Cluster(gpus=0), "looped.experiments.backends.ray"
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setitem(sys.modules, "ray.exceptions", cluster.exceptions)
    monkeypatch.delitem(sys.modules, ours, raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("looped.experiments.backends.GRACE_S", 0.1)
    yield cluster
    sys.modules.pop(ours, None)


def test_a_task_for_each_run_and_another_one_when_its_node_is_lost(
    ray: Cluster, three, tmp_path: Path
) -> None:
    engine = start("ray", tmp_path / "runs", BackendOptions(device="cpu", workers=2))
    engine.submit(three)
    names = [job.name for job in three]
    assert ray.calls == [("init", "local", 2)]
    assert [status.state for status in engine.poll()] == ["queued"] * 3
    assert list(ray.started) == names[:2], "no more than two at once"
    (words, log, folder, wish), share = ray.started[names[0]]
    assert words == [str(queue.queue_file(tmp_path / "runs", f"{names[0]}.json")), "--device", "cpu"]
    assert (log, folder, share) == (words[0][:-4] + "log", os.getcwd(), {"max_retries": 0, "num_cpus": 1})
    with files.lock(queue.queue_file(tmp_path / "runs", f"{names[0]}.lock")):
        assert [status.state for status in engine.poll()] == ["running", "queued", "queued"]
    ray.started.clear()
    ray.ends = {names[0]: "NodeDiedError", names[1]: "WorkerCrashedError"}
    statuses = engine.poll()
    assert [status.reason for status in statuses] == [
        "its node was lost", "lost by Ray (WorkerCrashedError)", "",
    ]  # fmt: skip
    assert sorted(ray.started) == sorted(names[:2])
    assert not Path(wish).exists()
    engine.cancel()
    assert Path(wish).exists()
    assert [status.state for status in engine.poll()] == ["cancelled"] * 3
    engine.close()
    assert sorted(ray.calls[1:-1]) == [("cancel", name, False) for name in sorted(names[:2])]
    assert ray.calls[-1] == ("shutdown",)
    assert not Path(wish).exists()


@pytest.mark.parametrize(
    ("end", "times", "reason"),
    [
        (2, 1, "its worker ended with status 2"),
        (1, 3, "its worker ended with status 1 (see its log) (3 times without getting on)"),
        ("RayTaskError", 3, "ValueError: two lines (3 times without getting on)"),
        ("OutOfMemoryError", 10, "its node ran out of memory (10 times without getting on)"),
    ],
)
def test_a_run_that_never_gets_on_is_given_up(
    ray: Cluster, three, tmp_path: Path, end: object, times: int, reason: str
) -> None:
    engine = start("ray", tmp_path / "runs", BackendOptions(device="cpu"))
    engine.submit(three[:1])
    count = 0
    while (status := engine.poll()[0]).state == "queued":
        count += 1
        ray.ends = {three[0].name: end}
    assert (status.state, status.reason, count) == ("failed", reason, times)


@pytest.mark.parametrize(
    ("options", "gpus", "share"),
    [
        (BackendOptions(), 0, {"num_cpus": 1}),
        (BackendOptions(), 8, {"num_cpus": 1, "num_gpus": 1}),
        (BackendOptions(workers=4), 8, {"num_cpus": 1, "num_gpus": 1}),
        (BackendOptions(workers=16), 8, {"num_cpus": 1, "num_gpus": 0.5}),
        (BackendOptions(workers=3), 2, {"num_cpus": 1, "num_gpus": 0.5}),
        (BackendOptions(workers=3), 1, {"num_cpus": 1, "num_gpus": 0.3333}),
        (BackendOptions(device="cpu"), 8, {"num_cpus": 1}),
        (BackendOptions(device="cuda"), 0, {"num_cpus": 1, "num_gpus": 1}),
    ],
)
def test_gpus_are_shared(ray: Cluster, options: BackendOptions, gpus: float, share: dict[str, float]) -> None:
    assert importlib.import_module("looped.experiments.backends.ray").share(options, gpus) == share


def test_bad_options_of_ray(ray: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Ray chooses the GPU of a run itself"):
        start("ray", tmp_path, BackendOptions(device="cuda:1"))
    with pytest.raises(InputError, match=r"no Ray cluster at 127\.0\.0\.1:1: "):
        start("ray", tmp_path, BackendOptions(device="cpu", address="127.0.0.1:1"))
    monkeypatch.setattr(ray, "init", lambda **_: exec("raise ConnectionError('nobody\\nhere')"))
    with pytest.raises(InputError, match="no Ray cluster at auto: nobody here"):
        start("ray", tmp_path, BackendOptions(device="cpu", address="auto"))


def test_what_ray_is_sent_by_value_needs_python_alone() -> None:
    """A process of Ray's gets the function and the globals it names, not the package."""
    code = (
        line for function in (backends.run_worker, backends.spawn) for line in dis.get_instructions(function)
    )
    named = {line.argval for line in code if line.opname == "LOAD_GLOBAL"}
    sent = {name: value for name, value in vars(backends).items() if name in named}
    assert sent.pop("spawn") is backends.spawn
    for name, value in sent.items():
        plain = isinstance(value, ModuleType) and value.__name__ in sys.stdlib_module_names
        assert plain or isinstance(value, int | float | tuple), name


def test_an_interrupt_at_any_moment_leaves_the_childs_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would come inside `Popen.poll`, which has taken its lock by then: every later look finds it taken."""

    class Interrupted(subprocess.Popen):
        def poll(self) -> None:
            self._waitpid_lock.acquire(False)
            raise KeyboardInterrupt

    monkeypatch.setattr(backends.subprocess, "Popen", Interrupted)
    monkeypatch.setattr(backends, "WORKER", ("-c", "import sys; sys.exit(5)"))
    assert backends.run_worker([], str(tmp_path / "log"), str(tmp_path), str(tmp_path / "stop")) == 5


# --- the child ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "blows", [(), ("stop file",), ("interrupt",), ("stop file", "interrupt", "interrupt")]
)
def test_a_child_gives_its_status_and_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blows: tuple[str, ...]
) -> None:
    stub, stop_file, left = tmp_path / "python", tmp_path / "stop file", list(blows)
    waits = "while :; do sleep 0.01; done" if blows else "exit 5"
    stub.write_text(
        "#!/bin/sh\n"
        "trap 'echo asked; trap \"exit 9\" TERM; sleep 0.3; exit 143' TERM\n"  # saving takes its time
        f'echo "$@" from $(pwd); touch ready\n{waits}\n'
    )
    stub.chmod(0o755)
    monkeypatch.setattr(backends, "sys", SimpleNamespace(executable=str(stub)))
    monkeypatch.setattr(backends, "LOOK_S", 0.01)

    def strike(number: int, frame: object) -> None:
        if (tmp_path / "ready").exists() and left:
            if left.pop(0) == "interrupt":
                raise KeyboardInterrupt
            stop_file.touch()

    before = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    try:
        ended = backends.run_worker(
            ["job.json", "--device", "cpu"], str(tmp_path / "log"), str(tmp_path), str(stop_file)
        )
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ended == (143 if blows else 5)
    words = f"-P -m looped.experiments.worker job.json --device cpu --parent {os.getpid()} from {tmp_path}"
    assert (tmp_path / "log").read_text().splitlines() == [words, *(["asked"] if blows else [])]
