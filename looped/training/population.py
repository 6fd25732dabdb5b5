"""Replicas: several models of each seed, of which one is chosen by training lengths that were held out.

    runs/x/config.json         replicas=8 hold_out=4, seeds 0 to 4: five populations of eight
    runs/x/population/part-0   the replicas, an ordinary run of 40 models, trained on lengths up to max_length - 4
    runs/x/selection.json      every replica's signs, and which one was chosen; written once, before the next phase
    runs/x/seed-0.safetensors  the chosen replica of seed 0, trained on with all lengths (`refine`), or as it was

The trainer goes through the phases in this order, and a run that was killed goes on where it was. Until the choice is
recorded, nothing longer than `max_length` is measured: replicas are evaluated at their training length alone, and
`looped.evaluation.loading` refuses to load them. `looped.evaluation.signs` says what is measured and how it chooses.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from looped import __version__, checkpoints, devices, runs, serial, tasks
from looped.errors import InputError
from looped.evaluation import signs
from looped.evaluation.loading import stack
from looped.model.weights import Layout
from looped.runs import SELECTION, Trained
from looped.training.config import TrainConfig, replica_runs, replica_seed

RULE = (
    "the highest exact match on the held-out lengths, as a mean over lengths and input distributions; among equals, "
    "the highest share of answers that stay the same under noise; then the best mean rank over the label-free signs "
    + ", ".join(signs.LABEL_FREE)
)


def parts(folder: Path, config: TrainConfig) -> list[tuple[Path, TrainConfig]]:
    """The runs of the replicas, each with its folder."""
    return [(folder / runs.POPULATION / f"part-{i}", own) for i, own in enumerate(replica_runs(config))]


def select(
    folder: Path, config: TrainConfig, device: torch.device, check: Callable[[], None] = lambda: None
) -> None:
    """Judge the trained replicas and record the choice, unless it has been recorded."""
    if (folder / SELECTION).exists():
        return
    of_parts = [[_trained(path, seed, own) for seed in own.seeds] for path, own in parts(folder, config)]
    found = [each for part in of_parts for each in part]
    losses = {
        line["seed"]: line["loss"]
        for path, _ in parts(folder, config)
        for line in runs.read_metrics(path)
        if line.get("kind") == "training"
    }
    names = {replica_seed(seed, r): (seed, r) for seed in config.seeds for r in range(config.replicas)}
    order = [names[each.seed] for each in found]
    held_out = range(config.max_length - config.hold_out + 1, config.max_length + 1)
    subjects = [stack(folder, part, device).subject for part in of_parts]
    rows = signs.measure_signs(subjects, held_out, groups=[seed for seed, _ in order], check=check)
    for row, each in zip(rows, found, strict=True):
        row["loss"] = losses.get(each.seed)
    by_name = dict(zip(order, rows, strict=True))
    populations = []
    for seed in config.seeds:
        own = [by_name[seed, r] for r in range(config.replicas)]
        replicas = [{"replica": r, "seed": replica_seed(seed, r), "signs": row} for r, row in enumerate(own)]
        populations.append({"seed": seed, "chosen": signs.choose(own), "replicas": replicas})
    record = {
        "looped": __version__,
        "commit": devices.commit(),
        "recorded": datetime.now(UTC).isoformat(timespec="seconds"),
        "rule": RULE,
        "trained_to": config.max_length - config.hold_out,
        "held_out": list(held_out),
        "input_distributions": list(tasks.get(config.task).families),
        "samples": signs.SAMPLES,
        "populations": populations,
    }
    checkpoints.write_json(folder / SELECTION, record)


def chosen_weights(folder: Path, config: TrainConfig) -> list[Mapping[str, Tensor]]:
    """The weights of the chosen replica of each seed, as a checkpoint holds them."""
    picked = {each["seed"]: each["chosen"] for each in read(folder)["populations"]}
    if sorted(picked) != sorted(config.seeds) or max(picked.values()) >= config.replicas:
        raise InputError(f"{folder / SELECTION} is the choice of another run")
    files = {seed: (path, own) for path, own in parts(folder, config) for seed in own.seeds}
    weights: list[Mapping[str, Tensor]] = []
    for seed in config.seeds:
        own = replica_seed(seed, picked[seed])
        trained = _trained(files[own][0], own, files[own][1])
        weights.append(trained.weights or Layout(config.model).to_dict(trained.row))
    return weights


def read(folder: Path) -> dict[str, Any]:
    """The recorded choice of a run of replicas."""
    path = folder / SELECTION
    if not path.is_file():
        raise InputError(f"{folder} has recorded no choice among replicas: it has no {SELECTION}")
    data: Any = serial.read(path, "a choice among replicas", runs.LARGEST_SELECTION)
    try:
        for each in data["populations"]:
            signed = [replica["signs"] for replica in each["replicas"]]
            if type(each["seed"]) is not int or not 0 <= each["chosen"] < len(signed):
                raise ValueError
        return dict(data)
    except (TypeError, KeyError, ValueError):
        raise InputError(f"{path} is no record of a choice among replicas") from None


def tidy(folder: Path, keep: bool) -> None:
    """Remove what the replicas no longer need; with `keep`, their weights stay."""
    population = folder / runs.POPULATION
    if not keep:
        shutil.rmtree(population, ignore_errors=True)
    for path in population.glob("part-*/state*.safetensors*"):
        path.unlink(missing_ok=True)


def _trained(folder: Path, seed: int, config: TrainConfig) -> Trained:
    """A replica that has been trained to the end."""
    path = folder / f"seed-{seed}.safetensors"
    if not path.exists():
        raise InputError(f"{path} is gone, and with it a replica: delete the run's folder and train it again")
    trained = runs.load_seed(path)
    if trained.config != config:
        raise InputError(f"{path} is no replica of this run: it was trained with another configuration")
    return trained
