"""The queue of a folder of runs: which jobs are asked for, and their status, read from the disk. Starts nothing.

    DIR/NAME/                a run's folder, as `looped train` makes it
    DIR/.jobs/NAME.json      what is asked for: configuration and measurement plans
    DIR/.jobs/NAME.lock      held by the worker of the job
    DIR/.jobs/NAME.log       the worker's output
    DIR/.jobs/NAME.failed    why it ended, if it failed
    DIR/.jobs/NAME.PLAN.part what was measured of a plan so far
    DIR/.jobs/cancel         the request that every worker in DIR saves and stops
    RESULTS/NAME.PLAN.json   {"provenance": {…, "plan": {…}, "runs": [{…, "config": {…}}]}, "rows": [{…}, …]}

No state is kept anywhere else. A job is done if its weights are trained to the last step and every result is there; it
runs while its lock is held, which the operating system frees when the worker dies. A result counts only for the
configuration and the plan that it names.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from looped import checkpoints, files, runs, serial
from looped.errors import InputError
from looped.experiments.plan import MeasurementPlan, check_name
from looped.result_files import LARGEST, an, fits, is_positive, is_share, list_of
from looped.training.config import TrainConfig

State = Literal["queued", "running", "done", "failed", "interrupted", "cancelled"]
QUEUE_FOLDER, CANCEL = ".jobs", "cancel"
LARGEST_REASON = 1 << 16  # bytes of the file that says why a job failed
TAIL = 1 << 16  # bytes at the end of the metrics that hold the last report
LOOK_S = 0.25  # seconds between two looks for a request to stop
WRITING_S = 30.0  # longest wait for another process that writes a job


@dataclass(frozen=True)
class Job:
    """One run, trained and measured."""

    name: str  # of its folder
    config: TrainConfig
    plans: tuple[MeasurementPlan, ...] = ()
    results: str = ""  # the folder of its results
    save_seconds: float = 60.0  # between two checkpoints

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.plans and not self.results:
            raise InputError(f"{self.name} is to be measured but has no folder for its results")
        if not self.save_seconds > 0:
            raise InputError(f"the seconds between two checkpoints must be above 0, not {self.save_seconds}")

    @cached_property
    def result_files(self) -> list[Path]:
        """Where the results of its plans are kept."""
        return [result_file(Path(self.results), self.name, plan) for plan in self.plans]


@dataclass(frozen=True)
class Status:
    """How a job stands."""

    state: State
    step: int = 0  # gradient steps taken
    loss: float | None = None  # mean over seeds, at the last report
    measured: int = 0  # plans done
    reason: str = ""  # why it failed, or what it waits for


def facts(job: Job, status: Status) -> dict[str, Any]:
    """A job and how it stands, for a machine."""
    config = job.config
    return {
        "run": job.name, "task": config.task, "method": config.method, "recipe": config.recipe,
        "seeds": list(config.seeds), "state": status.state, "step": status.step, "steps": config.steps,
        "loss": status.loss, "measured": status.measured, "plans": len(job.plans), "reason": status.reason,
    }  # fmt: skip


# --- what is asked for -------------------------------------------------------------------------------------
def queue_file(root: Path, name: str) -> Path:
    """A file in the queue of a folder of runs."""
    return root / QUEUE_FOLDER / name


def put(root: Path, job: Job) -> None:
    """Write down what is asked for; the same job again changes nothing."""
    path = queue_file(root, f"{job.name}.json")
    with checkpoints.disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    data = (json.dumps(serial.to_json(job), indent=1) + "\n").encode()
    lock = files.lock(queue_file(root, "lock"), WRITING_S)  # two drivers may want to write the same job
    if lock is None:
        raise InputError(f"another process has been writing in {path.parent} for {WRITING_S:g} seconds")
    with lock:
        if not path.exists() or files.read_bytes(path, "a job", runs.LARGEST_CONFIG) != data:
            checkpoints.write(path, data)


def read_job(path: Path) -> Job:
    """A job as it was written down."""
    job = serial.from_json(Job, serial.read(path, "a job", runs.LARGEST_CONFIG), str(path))
    if job.name != path.stem:
        raise InputError(f"{path} is the job of another run, {job.name!r}")
    return job


def jobs_in(root: Path) -> tuple[list[Job], list[str]]:
    """Every job in a folder by name, and runs that were trained there without being one; what is wrong with others."""
    if not root.is_dir():
        raise InputError(f"there is no folder {root}")
    found: dict[str, Job] = {}
    problems: list[str] = []
    for path in (*sorted((root / QUEUE_FOLDER).glob("*.json")), *sorted(root.glob(f"*/{runs.CONFIG}"))):
        is_run = path.name == runs.CONFIG and path.parent.name != QUEUE_FOLDER
        name = path.parent.name if is_run else path.stem
        try:
            if name not in found:
                found[name] = Job(name, runs.read_config(path.parent)) if is_run else read_job(path)
        except InputError as error:  # one damaged file is no reason to say nothing of the rest
            problems.append(str(error))
    return [found[name] for name in sorted(found)], problems


def check_folder(root: Path, job: Job) -> None:
    """Raise if a job's folder holds a run of another configuration."""
    folder = root / job.name
    if not (folder / runs.CONFIG).exists():
        return
    if odd := "; ".join(serial.differences(runs.read_config(folder), job.config)[:3]):
        raise InputError(f"{folder} holds a run of another configuration ({odd}); choose another --out")


# --- how it stands -----------------------------------------------------------------------------------------
def status_of(root: Path, job: Job) -> Status:
    """How a job stands, from its files alone."""
    folder = root / job.name
    step, loss = last_report(folder)
    missing = missing_plans(job)
    measured = len(job.plans) - len(missing)
    if not missing and (job.plans or trained(folder, job.config)):
        return Status("done", job.config.steps, loss, measured)
    if files.is_locked(queue_file(root, f"{job.name}.lock")) or files.is_locked(folder / "lock"):
        return Status("running", step, loss, measured)
    states = (folder / runs.STATE, folder / runs.POPULATION / "part-0" / runs.STATE)
    step = max(step, *(saved_step(path) or 0 for path in states))  # it may have saved before its first report
    reason = failure(root, job.name)
    if reason:
        return Status("failed", step, loss, measured, reason)
    asked_for = folder.exists() or queue_file(root, f"{job.name}.json").exists()
    if asked_for and is_cancelled(root):
        return Status("cancelled", step, loss, measured)
    return Status("interrupted" if 0 < step < job.config.steps else "queued", step, loss, measured)


def missing_plans(job: Job) -> list[MeasurementPlan]:
    """The plans whose results are not there; raises for a file that holds something else."""
    pairs = zip(job.plans, job.result_files, strict=True)
    return [plan for plan, file in pairs if read_result(file, job.config, plan) is None]


def trained(folder: Path, config: TrainConfig) -> bool:
    """Whether every seed's weights are those of the last step."""
    steps = {saved_step(folder / f"seed-{seed}.safetensors") for seed in config.seeds}
    return steps == {config.steps}


def saved_step(path: Path) -> int | None:
    """The gradient step a checkpoint says it was taken at; None where it says nothing."""
    if not path.is_file():
        return None
    try:
        text = checkpoints.header(path).get("step", "")
    except (InputError, OSError):
        return None
    return int(text) if text.isdecimal() and len(text) < 19 else None


def last_report(folder: Path) -> tuple[int, float | None]:
    """The last step in a run's metrics and the mean loss of its seeds there; reads only the end of the file."""
    step = 0
    losses: list[float] = []
    for row in _tail(folder / runs.METRICS):
        if row.get("kind") != "training" or not isinstance(row.get("step"), int):
            continue
        if row["step"] != step:
            step, losses = row["step"], []
        if isinstance(row.get("loss"), float):
            losses.append(row["loss"])
    return step, sum(losses) / len(losses) if losses else None


def _tail(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines at the end of a file of JSON lines."""
    try:
        with files.open_regular(path, "a file of metrics", runs.LARGEST_METRICS) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL))
            lines = file.read().split(b"\n")
    except (OSError, InputError):
        return
    for line in lines:
        with contextlib.suppress(ValueError):
            row = serial.parse(line.decode("utf-8"), str(path))
            if isinstance(row, dict):
                yield row


# --- results -----------------------------------------------------------------------------------------------
Rows = list[dict[str, Any]]
DIFFERS = "differs.json"  # in a folder of results that an earlier version of a recipe gave
_ROW = {"length": is_positive, "samples": is_positive, "accuracy": is_share}
_UNTOLD = {"length": 1, "samples": 1, "accuracy": 0.0}  # what a row need not say
_ORIGIN = {
    "plan": an(dict),
    "runs": lambda runs: list_of(lambda run: type(run) is dict and "config" in run)(runs) and len(runs) == 1,
}
_RESULT = {
    "provenance": lambda origin: fits(origin, _ORIGIN),
    "rows": list_of(lambda row: is_row(row)),
}


def is_row(row: object) -> bool:
    """Whether this is a row whose numbers can be counted on."""
    return isinstance(row, dict) and fits({**_UNTOLD, **row}, _ROW)


def result_file(folder: Path, run: str, plan: MeasurementPlan) -> Path:
    """Where the result of a run and a plan is kept: `copy-fop-loop-adaptive-fast.accuracy-4608dde8.json`."""
    return folder / f"{run}.{plan.name}.json"


def read_result(path: Path, config: TrainConfig, plan: MeasurementPlan) -> Rows | None:
    """The rows in a file, or None if there is no file; raises if it holds something else."""
    if not path.exists():
        return None
    data: Any = serial.read(path, "a file of results", LARGEST)
    if not fits(data, _RESULT):
        raise InputError(
            f"{path} is no result of ours: it must hold provenance with a plan and one run, and rows"
        )
    origin = data["provenance"]
    found = serial.from_json(TrainConfig, origin["runs"][0]["config"], str(path))
    known = _known_differences(path.parent)
    odd = [line for line in serial.differences(found, config) if line.partition(":")[0] not in known]
    if odd or serial.from_json(MeasurementPlan, origin["plan"], str(path)) != plan:
        what = f"configuration ({'; '.join(odd[:3])})" if odd else "plan"
        raise InputError(f"{path} is a result of another {what}; move it away or choose another --results")
    rows: Rows = data["rows"]
    return rows


def _known_differences(folder: Path) -> frozenset[str]:
    """Fields in which the runs of an archive may differ from today's recipes: what its `differs.json` names."""
    file = folder / DIFFERS
    if not file.is_file():
        return frozenset()
    data: Any = serial.read(file, "a list of differing fields", LARGEST)
    if not fits(data, {"fields": list_of(an(str))}):
        raise InputError(f"{file} must hold an object with a list of names, `fields`")
    return frozenset(data["fields"])


def part_file(root: Path, job: Job, plan: MeasurementPlan) -> Path:
    """Where a worker keeps what it has measured of a plan so far."""
    return queue_file(root, f"{job.name}.{plan.name}.part")


def read_part(path: Path) -> dict[str, Any]:
    """What such a file holds; nothing if it is not there or cannot be read: half a file is no measurement."""
    try:
        data = serial.parse(files.read_text(path, "a part of results", LARGEST), str(path))
    except (ValueError, OSError):
        return {}
    return data if isinstance(data, dict) else {}


def kept_lengths(path: Path) -> int:
    """How many lengths such a file holds, of whatever weights."""
    parts = read_part(path).get("parts")
    return len(parts) if isinstance(parts, dict) else 0


# --- failing and cancelling --------------------------------------------------------------------------------
def fail(root: Path, name: str, reason: str) -> None:
    """Write down why a job failed, if that is still possible."""
    with contextlib.suppress(OSError, InputError):
        checkpoints.write(queue_file(root, f"{name}.failed"), f"{' '.join(reason.split())[:2000]}\n".encode())


def failure(root: Path, name: str) -> str:
    """Why a job failed; empty if it did not."""
    try:
        path = queue_file(root, f"{name}.failed")
        data = files.read_bytes(path, "the reason of a failure", LARGEST_REASON)
        return data.decode("utf-8", errors="replace").strip()
    except OSError:
        return ""
    except InputError as error:
        return str(error)


def clear_failure(root: Path, name: str) -> None:
    """Forget a failure, for another try."""
    queue_file(root, f"{name}.failed").unlink(missing_ok=True)


def cancel(root: Path) -> None:
    """Ask every worker of a folder to save and stop."""
    queue_file(root, CANCEL).parent.mkdir(parents=True, exist_ok=True)
    queue_file(root, CANCEL).touch()


def clear_cancel(root: Path) -> None:
    """Take the request to stop back, for another start."""
    queue_file(root, CANCEL).unlink(missing_ok=True)


def stop_request(asked: Callable[[], bool], look: Callable[[], bool]) -> Callable[[], bool]:
    """Whether to stop; asked after every gradient step, so that it has a `look` at the disk only now and then."""
    looked, wanted = 0.0, False

    def stop() -> bool:
        nonlocal looked, wanted
        if time.monotonic() - looked > LOOK_S:
            looked, wanted = time.monotonic(), wanted or look()
        return wanted or asked()

    return stop


def is_cancelled(root: Path) -> bool:
    """Whether a stop is requested."""
    return queue_file(root, CANCEL).exists()


def cancel_requested_at(root: Path) -> int | None:
    """When a stop was last requested, in nanoseconds; None if it is not."""
    try:
        return queue_file(root, CANCEL).stat().st_mtime_ns
    except OSError:
        return None
