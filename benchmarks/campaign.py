"""What training a whole figure takes: a share of the gradient steps of every stage of every task, runs side by side.

    python -m benchmarks campaign --workers 3       six tasks by `paper`, five seeds, 5 % of the steps, three at a time
    python -m benchmarks campaign parity --set steps=20 --set interval=2 --set max_length=3 --seeds 2        in small

A curriculum stage takes its first step, which on CUDA also records the stage's graph, and then all others in the same
time each. Of these a share is taken and timed. `--workers` processes measure at once, the largest runs first, so that
runs slow each other down as they do in `looped reproduce --workers`. The seconds of all are those of handing the runs
to as many workers in that order. Evaluations and checkpoints are not in them.

    task    minutes   stages   recording   ms per step and seed
    parity     6.40       20       14.1 s                  0.66
"""

from __future__ import annotations

import heapq
import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks import timing
from looped import devices, tasks
from looped.errors import InputError
from looped.fast.engine import Engine
from looped.training import cost, curriculum, recipes
from looped.training.config import TrainConfig

METHOD = "fop-loop-adaptive"


@dataclass(frozen=True)
class Campaign:
    """What is measured, and how."""

    tasks: tuple[str, ...] = tuple(tasks.TASKS)
    recipe: str = "paper"
    seeds: int = 5
    share: float = 0.05  # of the steps of each stage
    workers: int = 1
    device: str = "auto"
    set: tuple[str, ...] = ()  # fields of every configuration

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"--share must be above 0 and at most 1, not {self.share:g}")
        if min(self.workers, self.seeds) < 1 or not self.tasks:
            raise InputError("a campaign needs at least one worker, one seed and one task")

    def config(self, task: str) -> TrainConfig:
        """The run of a task."""
        made = recipes.make(tasks.get(task).name, METHOD, self.recipe, tuple(range(self.seeds)))
        return recipes.with_fields(made, self.set)


def measure(campaign: Campaign) -> dict[str, Any]:
    """The runs, each with the seconds that it would take in full, and the seconds of all."""
    where = devices.pick(campaign.device)
    on = cost.device("h200" if where.type == "cuda" else "cpu")
    ordered = sorted(campaign.tasks, key=lambda task: -cost.estimate(campaign.config(task), on).seconds)
    jobs = [(campaign, task, str(where)) for task in ordered]
    if campaign.workers == 1:
        runs = [_measure_run(*job) for job in jobs]
    else:
        # Processes that are started anew: CUDA does not survive a fork.
        with multiprocessing.get_context("spawn").Pool(campaign.workers, maxtasksperchild=1) as pool:
            runs = pool.starmap(_measure_run, jobs, chunksize=1)
    total = packed([run["seconds"] for run in runs], campaign.workers)
    asked = {
        "recipe": campaign.recipe,
        "seeds": campaign.seeds,
        "share": campaign.share,
        "set": list(campaign.set),
    }
    return {"runs": runs, "seconds": total, "workers": campaign.workers, **asked, **devices.facts(where)}


def table(measured: dict[str, Any]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Columns and rows for a person."""
    seeds = measured["seeds"]
    rows: list[tuple[object, ...]] = []
    for run in measured["runs"]:
        first = sum(stage["first_seconds"] for stage in run["stages"])
        each = (
            1000
            * (run["seconds"] - first)
            / (sum(stage["steps"] - 1 for stage in run["stages"]) or 1)
            / seeds
        )
        rows.append(
            (run["task"], f"{run['seconds'] / 60:.2f}", len(run["stages"]), f"{first:.1f} s", f"{each:.2f}")
        )
    rows.append(("all, side by side", f"{measured['seconds'] / 60:.2f}", "", "", ""))
    columns = ("task", "minutes", "stages", "recording", "ms per step and seed")
    return columns, rows


def _measure_run(campaign: Campaign, task: str, device: str) -> dict[str, Any]:
    """A run's stages, and the seconds that it would take in full."""
    where = torch.device(device)
    if campaign.workers > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // campaign.workers))
    config = campaign.config(task)
    engine = Engine(config, where)
    measured = []
    for longest, start, steps in stages(config):
        engine.done = (
            start  # weights and moments go on from where the timed steps of the stage before left them
        )
        first = timing.seconds(engine.step, where)
        timed = math.ceil(campaign.share * (steps - 1))
        each = timing.seconds(engine.step, where, timed) if timed else 0.0
        measured.append(
            {"longest": longest, "steps": steps, "timed": timed, "first_seconds": first, "step_seconds": each}
        )
    total = sum(stage["first_seconds"] + (stage["steps"] - 1) * stage["step_seconds"] for stage in measured)
    return {"task": task, "seconds": total, "stages": measured}


def stages(config: TrainConfig) -> Iterator[tuple[int, int, int]]:
    """The maximum length, first gradient step and number of steps of every stage."""
    start, longest = 0, curriculum.max_length(config, 0)
    while start < config.steps:
        last = longest >= config.max_length
        end = config.steps if last else min(config.stage_end(longest), config.steps)
        if end > start:
            yield longest, start, end - start
        start, longest = end, longest + 1


def packed(seconds: Sequence[float], workers: int) -> float:
    """When the last of so many workers is done, each taking the next run as soon as it is free."""
    free = [0.0] * workers
    for run in seconds:
        heapq.heapreplace(free, free[0] + run)
    return max(free)
