"""A trained run's best seed onto the shelf: weights, perhaps with shorter numbers, and a card from its results.

Numbers are shortened to float16 only if accuracies stay within the interval of those before, on the same
problems. Knows runs, results and cards; nothing of how a model is used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from looped import __version__, checkpoints, devices, provenance, runs, serial, tasks
from looped.errors import InputError
from looped.evaluation.measure import measure
from looped.evaluation.statistics import wilson
from looped.experiments import results
from looped.model.weights import Layout
from looped.runs import SEED_KIND, Trained
from looped.training import recipes
from looped.training.config import TrainConfig
from looped.zoo import shelf
from looped.zoo.card import Card, Measured, Origin
from looped.zoo.choosing import choose

LARGEST = 40_000_000  # bytes of all shipped models together
WHOLE = "float32, as trained"


@dataclass(frozen=True)
class Order:
    """What is to be shipped."""

    source: Path  # a run's folder or one seed's checkpoint
    name: str  # on the shelf
    results: tuple[Path, ...] = ()  # what `looped evaluate --out` wrote of it; none: it is measured now
    seed: str = "auto"  # auto: the lowest training loss over the last tenth; or its number
    history: Path | None = (
        None  # the run's folder (configuration and metrics), for a checkpoint that lies elsewhere
    )
    half: bool = False  # numbers of 16 bits, if accuracies stay equal
    lengths: tuple[int, ...] = ()  # to measure now, and to compare both precisions at
    samples: int = 256  # a length
    device: str = "auto"
    trained_on: str | None = None  # the device it was trained on, if known


def add(order: Order) -> Card:
    """Puts weights and card on the shelf and returns the card; raises before anything is written."""
    _check_name(order.name)
    trained, chosen, seconds = choose(order.source, order.seed, order.history)
    task = tasks.get(trained.config.task)
    lengths = order.lengths or tuple(sorted({trained.config.max_length, task.paper.test_length}))
    device = devices.pick(order.device)
    rows, measured = _rows(order, trained, lengths, device)
    row, stored, why = trained.row, "float32", WHOLE
    if order.half:
        row, why = _shortened(trained, lengths, order.samples, device)
        stored = "float16"
    card = Card(
        order.name, trained.config.task, trained.config.method, trained.config.recipe, trained.seed,
        trained.config.max_length, trained.step, Layout(trained.config.model).parameters, stored, why, chosen,
        Origin(
            trained.commit, order.trained_on, trained.config.products, command(trained.config), seconds
        ),
        measured, rows, serial.to_json(trained.config),
    )  # fmt: skip
    _write(card, trained, row)
    return card


# --- how good ----------------------------------------------------------------------------------------------
def _rows(
    order: Order, trained: Trained, lengths: Sequence[int], device: torch.device
) -> tuple[tuple[Measured, ...], Origin]:
    """Measured accuracies of this seed from result files, or measured now."""
    if not order.results:
        subject = results.stack(order.source, [trained], device).subject
        found = measure(subject, lengths, order.samples, seed=0)
        facts = provenance.facts(device)
        rows = [Measured(r.length, r.stop, r.accuracy, r.samples, r.mean_steps, r.family) for r in found]
        return tuple(rows), Origin(facts["commit"], facts["device"], "fp32")
    rows, origin = [], Origin()
    for path in order.results:
        part, origin = _read_results(path, trained)
        rows += part
    keys = [(row.length, row.stop, row.family) for row in rows]
    if len(set(keys)) < len(keys):
        raise InputError(
            f"{order.results[0]} measures a length twice for seed {trained.seed}: give one file of one run"
        )
    return tuple(rows), origin


def _read_results(path: Path, trained: Trained) -> tuple[list[Measured], Origin]:
    data = serial.parse(path.read_text(encoding="utf-8"), str(path))
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise InputError(f"{path} is no result of ours: it must hold provenance and rows")
    origin = data.get("provenance", {})
    configs = [serial.from_json(TrainConfig, run["config"], str(path)) for run in origin.get("runs", [])]
    if configs and trained.config not in configs:
        odd = serial.differences(trained.config, configs[0])
        raise InputError(f"{path} measured another run than this one ({'; '.join(odd[:2])})")
    own = {"task": trained.config.task, "method": trained.config.method, "seed": trained.seed}
    rows = [
        Measured(
            row["length"], row["stop"], float(row["accuracy"]), row["samples"], float(row["mean_steps"]),
            row.get("family", "uniform"),
        )
        for row in data["rows"]
        if "stop" in row and all(row.get(key) == value for key, value in own.items())
    ]  # fmt: skip
    if not rows:
        raise InputError(f"{path} has no accuracy of seed {trained.seed} of {own['task']} by {own['method']}")
    seconds = origin.get("wall_seconds")
    return rows, Origin(origin.get("commit"), origin.get("device"), origin.get("precision"), None, seconds)


def _shortened(
    trained: Trained, lengths: Sequence[int], samples: int, device: torch.device
) -> tuple[torch.Tensor, str]:
    """The weights rounded to float16, and what both gave on the same problems; raises if they differ."""
    row = trained.row.half().float()
    if not bool(row.isfinite().all()):
        raise InputError("a weight is too large for float16: leave out --half")
    told = []
    subject = results.stack(Path(), [trained], device).subject
    short = results.stack(Path(), [_with(trained, row)], device).subject
    for length in lengths:
        (whole,), (half,) = (measure(each, [length], samples, seed=1) for each in (subject, short))
        low, high = wilson(whole.accuracy, samples)
        told.append(f"{length}: {whole.accuracy:.4f} and {half.accuracy:.4f}")
        if not low <= half.accuracy <= high:
            raise InputError(
                f"float16 changes the accuracy at length {told[-1]}, outside the interval: leave out --half"
            )
    where = devices.describe(device)
    return (
        row,
        f"float16: with float32 and float16, {samples} problems a length ({where}), at {'; '.join(told)}",
    )


def _with(trained: Trained, row: torch.Tensor) -> Trained:
    return Trained(trained.config, trained.seed, trained.step, row, trained.commit)


# --- what is written ---------------------------------------------------------------------------------------
def command(config: TrainConfig) -> str:
    """The command that trains such a run."""
    plain = serial.to_json(recipes.make(config.task, config.method, config.recipe, config.seeds))
    usual = dict(serial.leaves(plain))
    words = ["looped train", config.task, "--method", config.method, "--recipe", config.recipe]
    words += ["--seeds", ",".join(map(str, config.seeds))]
    for path, value in serial.leaves(serial.to_json(config)):
        if usual[path] != value:
            text = ",".join(map(str, value)) if isinstance(value, list) else json.dumps(value).strip('"')
            words += ["--set", f"{path}={text}"]
    return " ".join(words)


def _check_name(name: str) -> None:
    if not name or not all(sign.isascii() and (sign.isalnum() or sign in "-_") for sign in name):
        raise InputError(f"a shipped model's name is of letters, digits, - and _, not {name[:40]!r}")


def _write(card: Card, trained: Trained, row: torch.Tensor) -> None:
    """Weights first, then the card: a model without a card is seen as broken, not as something else."""
    kind = runs.STORED[card.stored]
    tensors = {name: tensor.to(kind) for name, tensor in Layout(trained.config.model).to_dict(row).items()}
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    others = sum(shelf.path(name).stat().st_size for name in shelf.names() if name != card.name)
    if size + others > LARGEST:
        raise InputError(
            f"all models together would take {(size + others) / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}"
        )
    metadata = {
        "config": json.dumps(serial.to_json(trained.config), sort_keys=True),
        "seed": str(trained.seed),
        "step": str(trained.step),
        "looped": __version__,
        "stored": card.stored,
    }
    if trained.commit:
        metadata["commit"] = trained.commit
    checkpoints.save(shelf.path(card.name), SEED_KIND, tensors, metadata)
    checkpoints.write(shelf.path(card.name).with_suffix(".json"), text(card).encode())


def text(card: Card) -> str:
    """A card as its file holds it: a field a line, a measured row a line."""
    data = card.to_json()
    rows = data.pop("rows")
    lines = [f' "{key}": {json.dumps(value, allow_nan=False)}' for key, value in data.items()]
    body = ",\n  ".join(json.dumps(row, allow_nan=False) for row in rows)
    return "{\n" + ",\n".join([*lines, f' "rows": [\n  {body}\n ]']) + "\n}\n"
