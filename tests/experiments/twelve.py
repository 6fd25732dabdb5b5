"""One sweep of twelve tiny runs, and what must be equal whatever ran it."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from forked import FEW, SMALL, Forked

from looped import runs
from looped.experiments import queue
from looped.experiments.backends import BackendOptions, run_jobs
from looped.experiments.plan import RunSpec
from looped.experiments.queue import Job

TASKS = ("copy", "parity", "binary_sum", "unique_set")
RATES = ("1e-3", "2e-3", "3e-3")


def batch(folder: Path, steps: int) -> list[Job]:
    """Four tasks with three learning rates, two seeds side by side each; results go into a folder."""
    specs = [
        RunSpec(task, recipe="quick", seeds=(0, 1), set=(*SMALL, f"steps={steps}", f"lr={rate}"))
        for task in TASKS
        for rate in RATES
    ]
    return [
        Job(spec.folder, spec.config, (FEW,), str(folder / "results"), save_seconds=0.05) for spec in specs
    ]


def undisturbed(folder: Path, steps: int) -> dict[str, object]:
    """What the local engine makes of them when nobody is killed."""
    jobs = batch(folder, steps)
    assert (
        run_jobs(Forked(folder / "runs", BackendOptions(workers=2, device="cpu")), jobs).ending == "complete"
    )
    return outcome(folder, jobs)


def outcome(folder: Path, jobs: list[Job]) -> dict[str, object]:
    """By run: the bytes of every seed's final weights, and every number that was measured."""
    found: dict[str, object] = {}
    for job in jobs:
        seeds = [runs.load_seed(path) for path in runs.seed_files(folder / "runs" / job.name)]
        assert [seed.step for seed in seeds] == [job.config.steps] * 2
        assert all(torch.isfinite(seed.row).all() for seed in seeds)
        rows = json.loads(queue.result_file(Path(job.results), job.name, FEW).read_text())["rows"]
        found[job.name] = [seed.row.numpy().tobytes() for seed in seeds], rows
    return found
