"""One job in a process of its own: trains what is not trained and measures what is not measured.

    python -m looped.experiments.worker DIR/.jobs/NAME.json --device cuda:0

Every backend starts this and looks at nothing but the exit status and the folder:

| status  | means                                                                |
|---------|----------------------------------------------------------------------|
| 0       | the job is done                                                      |
| 1       | it crashed; the reason is in a file                                  |
| 2       | it cannot be done, or every seed went wrong; the reason is in a file |
| 74      | the disk is full                                                     |
| 75      | another worker has the job                                           |
| 128 + n | it was asked to stop and saved first                                 |

It stops, and saves first, on SIGTERM and SIGINT, when `looped cancel` asks, and when its parent is gone. Needs no more
than torch: it runs on a bare machine. Lengths are measured independently of each other, so a measurement that is
stopped keeps the rows of finished lengths in a `.part` file. They count only for equal weights, measured the same way.
"""

from __future__ import annotations

import argparse
import errno
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from looped import checkpoints, devices, files, registry, runs, serial
from looped.errors import InputError
from looped.evaluation.loading import load
from looped.evaluation.measure import check
from looped.experiments import queue
from looped.experiments.plan import MeasurementPlan
from looped.experiments.queue import Job, Rows
from looped.result_files import an, fits, list_of
from looped.training.interrupt import Interrupt, mend_streams
from looped.training.progress import Lines
from looped.training.trainer import Cadence, train

CRASHED, IMPOSSIBLE, FULL, HELD = 1, 2, 74, 75
PRECISIONS = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}


class StopRequested(Exception):
    """Raised out of a measurement that was asked to stop."""


def main(words: Sequence[str] | None = None) -> int:
    """Work on the job the words name; returns the exit status."""
    mend_streams()
    args = _parser().parse_args(words)
    root, name = args.job.parent.parent, args.job.stem
    lock = files.lock(args.job.with_suffix(".lock"))
    if lock is None:
        print(f"another process works on {name}", file=sys.stderr)
        return HELD
    with lock, Interrupt() as asked:
        queue.clear_failure(root, name)
        stop = queue.stop_request(
            asked, lambda: queue.is_cancelled(root) or args.parent not in (None, os.getppid())
        )
        try:
            registry.resolve_named(args.own)
            work(root, queue.read_job(args.job), args.device, stop)
        except StopRequested:
            return asked.status or 128 + signal.SIGTERM
        except Exception as error:  # whatever it is, the sweep has to know
            known = isinstance(error, InputError)
            told = str(error) if known else registry.fault(error) or f"{type(error).__name__}: {error}"
            reason = " ".join(told.split())
            print(f"looped: {reason}", file=sys.stderr)
            queue.fail(root, name, reason)
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            if full or reason.startswith("the disk is full"):
                return FULL  # has a status of its own, as the reason cannot be written
            if not known:
                raise
            return IMPOSSIBLE
    return 0


def work(root: Path, job: Job, device_name: str, stop: Callable[[], bool]) -> None:
    """Bring a job to its end, or raise `StopRequested`."""
    folder, device = root / job.name, devices.pick(device_name)
    missing = queue.missing_plans(job)
    if job.plans and not missing:
        return
    if not queue.trained(folder, job.config) or not _intact(folder):
        # What is measured afterwards is not evaluated on the way, only once at the end.
        cadence = Cadence(save_seconds=job.save_seconds, evaluate_steps=job.config.steps if job.plans else 0)
        summary = train(job.config, folder, device, listeners=[Lines()], cadence=cadence, stop=stop)
        if summary.ending == "every seed stopped":
            why = "; ".join(f"seed {seed['seed']}: {seed['stopped']}" for seed in summary.seeds)
            raise InputError(f"every seed stopped ({why})")
        if summary.ending != "finished":
            raise StopRequested

    def on_step() -> None:
        if stop():
            raise StopRequested

    for plan in missing:
        on_step()
        print(f"measuring {job.name}: {plan.name}", file=sys.stderr, flush=True)
        part = queue.part_file(root, job, plan)
        result = make_result(folder, plan, device, on_step, part)
        checkpoints.write_json(queue.result_file(Path(job.results), job.name, plan), result)
        part.unlink(missing_ok=True)


def _intact(folder: Path) -> bool:
    """Whether every seed's file can be read, or there is nothing left to make it again from."""
    try:
        for path in runs.seed_files(folder):
            runs.load_seed(path)
    except InputError:
        return not (folder / runs.STATE).exists()
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m looped.experiments.worker", description="Work on a job.")
    parser.add_argument("job", type=Path, help="DIR/.jobs/NAME.json")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    own = {"metavar": "KIND=FILE.py:Name", "help": "a part that the person who asked named"}
    parser.add_argument("--own", action="append", default=[], **own)  # type: ignore[arg-type]
    parser.add_argument("--parent", type=int, help="stop when this is no longer the parent's process number")
    return parser


# --- measuring ---------------------------------------------------------------------------------------------
def make_result(
    run: Path,
    plan: MeasurementPlan,
    device: torch.device,
    on_step: Callable[[], None] = lambda: None,
    part: Path | None = None,
) -> dict[str, Any]:
    """Measure a trained run as planned, or go on from the file `part`; `on_step`, called between steps, may raise."""
    loaded = load(run, device, plan.precision)
    loaded = replace(loaded, subject=replace(loaded.subject, on_step=on_step))
    precision = PRECISIONS[loaded.products]
    for family in plan.families:
        check(loaded.subject, plan.lengths, plan.samples, stops=plan.stops, family=family)
    weights = {f"{each.seed} {each.step}": each.row for each in loaded.seeds}
    way = f"{precision} {device.type} {devices.commit()}"
    about = {"weights": checkpoints.digest(weights, {}), "way": way}
    kept = {} if part is None else queue.read_part(part)
    if not fits(kept, _PART) or not about.items() <= kept.items():
        kept = {**about, "seconds": 0.0, "parts": {}}  # rows by distribution and length, and what they took
    rows: Rows = []
    for family, length in itertools.product(plan.families, plan.lengths):
        name = f"{family} {length}"
        if name not in kept["parts"]:
            start = time.monotonic()
            drawn: dict[str, Any] = {"seed": plan.seed, "stops": plan.stops, "family": family}
            kept["parts"][name] = loaded.rows(plan.kind, length, plan.samples, **drawn)
            kept["seconds"] += time.monotonic() - start
            if part is not None:
                checkpoints.write(part, json.dumps(kept).encode())
            on_step()
        rows += kept["parts"][name]
    origin = {
        **devices.facts(device), "precision": precision, "wall_seconds": round(kept["seconds"], 3),
        "plan": serial.to_json(plan), "runs": [loaded.origin()],
    }  # fmt: skip
    return {"provenance": origin, "rows": rows}


_PART = {
    "seconds": an(float),
    "parts": lambda parts: type(parts) is dict and all(map(list_of(an(dict)), parts.values())),
}


if __name__ == "__main__":
    sys.exit(main())
