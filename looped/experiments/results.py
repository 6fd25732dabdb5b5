"""Measured rows in files: one file for a run and a plan, with where it comes from. Starts no training.

    results/copy-fop-loop-adaptive-fast.accuracy-4608dde8.json
    {"provenance": {"commit": …, "device": …, "plan": {…}, "runs": [{"run": …, "config": {…}}]}, "rows": [{…}, …]}

Rows of `accuracy` plans are those of `looped evaluate`. Rows of `steps` plans have `step` instead of `stop`:
`accuracy` and mean `surprise` after that many loop steps, and in `chosen` the step of least surprise over all
samples, at which the paper stops. Rows of `halting` plans are those of `looped discover`, with the `variant` of the
method where it is one. A file counts only for the configuration and the plan that it names.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from looped import checkpoints, provenance, serial
from looped.errors import InputError
from looped.evaluation.discovery import discover
from looped.evaluation.loading import load
from looped.evaluation.measure import Subject, check, length_grid, measure, oracle_steps
from looped.experiments.partial import Partial, Rows
from looped.experiments.plan import Kind, Plan
from looped.experiments.spec import variant
from looped.tasks.families import UNIFORM
from looped.training.config import TrainConfig

LARGEST = 1 << 28  # bytes of a file of results
PRECISIONS = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


def file_of(folder: Path, run: str, plan: Plan) -> Path:
    """Where the result of a run and a plan is kept."""
    return folder / f"{run}.{plan.name}.json"


def read(path: Path, config: TrainConfig, plan: Plan) -> Rows | None:
    """The rows in a file, or None if there is no file; raises if it holds something else."""
    if not path.is_file():
        return None
    if path.stat().st_size > LARGEST:
        raise InputError(f"{path} is too large for a file of results")
    try:
        data = serial.parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text") from None
    origin, rows = _parts(data, path)
    found = serial.from_json(TrainConfig, origin["runs"][0]["config"], str(path))
    odd = serial.differences(found, config)
    if odd or serial.from_json(Plan, origin["plan"], str(path)) != plan:
        what = f"configuration ({'; '.join(odd[:3])})" if odd else "plan"
        raise InputError(f"{path} is a result of another {what}; move it away or choose another --results")
    return rows


def _parts(data: object, path: Path) -> tuple[dict[str, Any], Rows]:
    """Provenance and rows of a file, if it has the shape of one."""
    origin, rows = (data.get("provenance"), data.get("rows")) if isinstance(data, dict) else (None, None)
    if isinstance(origin, dict) and isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        match origin.get("plan"), origin.get("runs"):
            case dict(), [{"config": _}]:
                return origin, rows
    raise InputError(
        f"{path} is no result of ours: it must hold provenance with a plan and one run, and rows"
    )


def make(
    run: Path,
    plan: Plan,
    device: torch.device,
    on_length: Callable[[int], None] = lambda length: None,
    part: Path | None = None,
) -> dict[str, Any]:
    """Measures a trained run as planned; `on_length` hears of every length that is done.

    What is measured is kept in the file `part`, and the same call goes on from there.
    """
    loaded = load(run, device, plan.precision)
    for family in plan.families:
        check(loaded.subject, plan.lengths, plan.samples, stops=plan.stops, family=family)
    way = f"{PRECISIONS[loaded.products]} {device.type} {provenance.commit()}"  # of which a result names one
    partial = Partial(part, loaded.seeds, way)
    rows: Rows = []
    for family, length in itertools.product(plan.families, plan.lengths):
        found = partial.get(family, length)
        if found is None:
            start = time.monotonic()
            found = _MEASURES[plan.kind](loaded.subject, plan, family, length)
            if plan.kind == "halting" and (named := variant(loaded.seeds[0].config)):
                found = [{**row, "variant": named} for row in found]
            partial.put(family, length, found, time.monotonic() - start)
        rows += found
        on_length(length)
    origin = {
        **provenance.facts(device),
        "precision": PRECISIONS[loaded.products],
        "wall_seconds": round(partial.seconds, 3),
        "plan": serial.to_json(plan),
        "runs": [loaded.origin()],
    }
    return {"provenance": origin, "rows": rows}


def write(path: Path, result: dict[str, Any]) -> None:
    """Puts a result in its place, whole."""
    with checkpoints.disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    checkpoints.write(path, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())


def _accuracy(subject: Subject, plan: Plan, family: str, length: int) -> Rows:
    """Rows of one length, by rule and seed."""
    found = measure(subject, [length], plan.samples, seed=plan.seed, stops=plan.stops, family=family)
    return [row.as_dict() for row in found]


def _steps(subject: Subject, plan: Plan, family: str, length: int) -> Rows:
    """Rows of one length, by seed and loop step, up to twice the steps needed."""
    last = 2 * oracle_steps(subject, length)
    grid = length_grid(subject, length, plan.samples, seed=plan.seed, family=family, max_steps=last)
    accuracy, surprise = grid.correct.double().mean(2).tolist(), grid.surprise.double().mean(2).tolist()
    rows: Rows = []
    for seed, exact, unsure in zip(subject.seeds, accuracy, surprise, strict=True):
        chosen = min(range(last), key=unsure.__getitem__) + 1
        rows += [
            {
                "task": subject.task.name, "method": subject.method.name, "recipe": subject.recipe,
                "seed": seed, "length": length, "step": t + 1, "accuracy": exact[t], "surprise": unsure[t],
                "samples": plan.samples, "chosen": chosen,
            } | ({} if family == UNIFORM else {"family": family})
            for t in range(last)
        ]  # fmt: skip
    return rows


def _halting(subject: Subject, plan: Plan, family: str, length: int) -> Rows:
    """Rows of one length with what was discovered, by rule and seed."""
    return discover(subject, length, plan.samples, seed=plan.seed, stops=plan.stops, family=family)


_MEASURES: dict[Kind, Callable[[Subject, Plan, str, int], Rows]] = {
    "accuracy": _accuracy,
    "steps": _steps,
    "halting": _halting,
}
