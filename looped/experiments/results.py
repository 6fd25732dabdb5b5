"""Result files: one for a run and a measurement plan, with provenance; measured length by length, resumable.

    results/copy-fop-loop-adaptive-fast.accuracy-4608dde8.json
    {"provenance": {"commit": …, "device": …, "plan": {…}, "runs": [{"run": …, "config": {…}}]}, "rows": [{…}, …]}

Rows of `accuracy` plans are those of `looped evaluate`. Rows of `steps` plans have `step` instead of `stop`: `accuracy`
and mean `surprise` (negative log-likelihood of the decoded answer) after that many loop steps, and in `chosen` the step
of the least, at which the paper stops. Rows of `halting` plans are those of `looped discover`, with the `variant` of
the method where it is one. A file counts only for the configuration and the plan that it names.

Lengths are measured independently of each other, so a measurement that is stopped keeps the rows of finished lengths in
a `.part` file. They count only for the same weights, measured the same way; a file that cannot be read counts for
nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from looped import checkpoints, devices, files, serial
from looped.errors import InputError
from looped.evaluation.loading import load
from looped.evaluation.measure import Subject, check, length_grid, measure, oracle_steps
from looped.evaluation.steps import discover
from looped.experiments.plan import Kind, MeasurementPlan, variant
from looped.result_files import LARGEST, an, fits, is_positive, is_share, list_of
from looped.runs import Trained
from looped.tasks.families import UNIFORM
from looped.training.config import TrainConfig

Rows = list[dict[str, Any]]
DIFFERS = "differs.json"  # in a folder of results that an earlier version of a recipe gave
PRECISIONS = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


def file_of(folder: Path, run: str, plan: MeasurementPlan) -> Path:
    """Where the result of a run and a plan is kept."""
    return folder / f"{run}.{plan.name}.json"


def read(path: Path, config: TrainConfig, plan: MeasurementPlan) -> Rows | None:
    """The rows in a file, or None if there is no file; raises if it holds something else."""
    if not path.exists():
        return None
    origin, rows = _checked(serial.read(path, "a file of results", LARGEST), path)
    found = serial.from_json(TrainConfig, origin["runs"][0]["config"], str(path))
    known = _known_differences(path.parent)
    odd = [line for line in serial.differences(found, config) if line.partition(":")[0] not in known]
    if odd or serial.from_json(MeasurementPlan, origin["plan"], str(path)) != plan:
        what = f"configuration ({'; '.join(odd[:3])})" if odd else "plan"
        raise InputError(f"{path} is a result of another {what}; move it away or choose another --results")
    return rows


def _known_differences(folder: Path) -> frozenset[str]:
    """Fields in which the runs of an archive may differ from today's recipes: what its `differs.json` names."""
    file = folder / DIFFERS
    if not file.is_file():
        return frozenset()
    data = serial.read(file, "a list of differing fields", LARGEST)
    fields = data.get("fields") if isinstance(data, dict) else None
    if not isinstance(fields, list) or not all(isinstance(field, str) for field in fields):
        raise InputError(f"{file} must hold an object with a list of names, `fields`")
    return frozenset(fields)


def _checked(data: object, path: Path) -> tuple[dict[str, Any], Rows]:
    """Provenance and rows of a file, if it has the shape of one."""
    if fits(data, _RESULT):
        return data["provenance"], data["rows"]  # type: ignore[index]
    raise InputError(
        f"{path} is no result of ours: it must hold provenance with a plan and one run, and rows"
    )


_ROW = {"length": is_positive, "samples": is_positive, "accuracy": is_share}
_UNTOLD = {"length": 1, "samples": 1, "accuracy": 0.0}  # what a row need not say
_ORIGIN = {
    "plan": an(dict),
    "runs": lambda runs: list_of(lambda run: type(run) is dict and "config" in run)(runs) and len(runs) == 1,
}
_RESULT = {"provenance": lambda origin: fits(origin, _ORIGIN), "rows": list_of(lambda row: _is_row(row))}
_PART = {
    "seconds": an(float),
    "parts": lambda parts: type(parts) is dict and all(map(list_of(an(dict)), parts.values())),
}


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and fits({**_UNTOLD, **row}, _ROW)


def make(
    run: Path,
    plan: MeasurementPlan,
    device: torch.device,
    on_step: Callable[[], None] = lambda: None,
    part: Path | None = None,
) -> dict[str, Any]:
    """Measure a trained run as planned; `on_step` is called between loop steps, and what it raises ends it.

    What is measured is kept in the file `part`, and the same call goes on from there.
    """
    loaded = load(run, device, plan.precision)
    subject = replace(loaded.subject, on_step=on_step)
    for family in plan.families:
        check(subject, plan.lengths, plan.samples, stops=plan.stops, family=family)
    way = f"{PRECISIONS[loaded.products]} {device.type} {devices.commit()}"  # of which a result names one
    partial = PartialResult(part, loaded.seeds, way)
    rows: Rows = []
    for family, length in itertools.product(plan.families, plan.lengths):
        found = partial.parts.get(f"{family} {length}")
        if found is None:
            start = time.monotonic()
            found = _MEASURES[plan.kind](subject, plan, family, length)
            if plan.kind == "halting" and (named := variant(loaded.seeds[0].config)):
                found = [{**row, "variant": named} for row in found]
            partial.put(f"{family} {length}", found, time.monotonic() - start)
            on_step()
        rows += found
    origin = {
        **devices.facts(device),
        "precision": PRECISIONS[loaded.products],
        "wall_seconds": round(partial.seconds, 3),
        "plan": serial.to_json(plan),
        "runs": [loaded.origin()],
    }
    return {"provenance": origin, "rows": rows}


def _accuracy(subject: Subject, plan: MeasurementPlan, family: str, length: int) -> Rows:
    """Rows of one length, by rule and seed."""
    found = measure(subject, [length], plan.samples, seed=plan.seed, stops=plan.stops, family=family)
    return [row.as_dict() for row in found]


def _steps(subject: Subject, plan: MeasurementPlan, family: str, length: int) -> Rows:
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


def _halting(subject: Subject, plan: MeasurementPlan, family: str, length: int) -> Rows:
    """Rows of one length with what was discovered, by rule and seed."""
    return discover(subject, length, plan.samples, seed=plan.seed, stops=plan.stops, family=family)


_MEASURES: dict[Kind, Callable[[Subject, MeasurementPlan, str, int], Rows]] = {
    "accuracy": _accuracy, "steps": _steps, "halting": _halting,
}  # fmt: skip


class PartialResult:
    """Rows measured so far; kept in a file if it is given one."""

    def __init__(self, path: Path | None, seeds: Sequence[Trained], way: str) -> None:
        self._path, self._about = path, {"weights": _fingerprint(seeds), "way": way}
        self.parts: dict[str, Rows] = {}  # by input distribution and length: `uniform 20`
        self.seconds = 0.0  # that the rows took
        data = None if path is None else _part_data(path)
        if fits(data, _PART) and self._about.items() <= data.items():  # type: ignore[attr-defined]
            self.parts, self.seconds = data["parts"], data["seconds"]  # type: ignore[index]

    def put(self, name: str, rows: Rows, seconds: float) -> None:
        """Keep them, on the disk as well."""
        self.parts[name] = rows
        self.seconds += seconds
        if self._path is not None:
            data = self._about | {"seconds": self.seconds, "parts": self.parts}
            checkpoints.write(self._path, json.dumps(data).encode())


def kept_lengths(path: Path) -> int:
    """How many lengths such a file holds, of whatever weights."""
    data = _part_data(path)
    return len(data["parts"]) if fits(data, {"parts": an(dict)}) else 0  # type: ignore[index]


def _part_data(path: Path) -> object:
    """What a file holds; nothing if it is not there or cannot be read: half a file is no measurement."""
    try:
        return serial.parse(files.read_text(path, "a part of results", LARGEST), str(path))
    except (ValueError, OSError):
        return None


def _fingerprint(seeds: Sequence[Trained]) -> str:
    """Tell weights apart."""
    sha = hashlib.sha256()
    for seed in seeds:
        sha.update(f"{seed.seed} {seed.step} ".encode())
        sha.update(seed.row.numpy().tobytes())
    return sha.hexdigest()
