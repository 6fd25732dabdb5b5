"""Publish a model: a trained run's best seed into `looped/zoo`, with a card from its results.

    python -m scripts.publish_model                    what is shipped
    python -m scripts.publish_model add runs/copy-fast --name copy-fast --results results/copy-fast.json --half
    python -m scripts.publish_model add copy.safetensors --name copy-fast --results copy.json --history runs/copy-fast

The seed with the lowest mean training loss over the last tenth of its run is chosen (`--seed auto`), or one named by
hand; nothing that was measured past the training lengths has a say, and the card says which it was. Weights are rounded
to float16 (`--half`) only if accuracies stay within the interval of those before, on the same problems.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import looped.zoo as zoo
from looped import __version__, checkpoints, devices, runs, serial, tasks
from looped.errors import InputError
from looped.evaluation import loading
from looped.evaluation.measure import measure
from looped.model.weights import Layout
from looped.result_files import wilson
from looped.runs import SEED_KIND, Trained
from looped.training import recipes
from looped.training.config import TrainConfig
from looped.zoo import Card, MeasuredAccuracy, Origin

LARGEST_RESULTS = 1 << 28  # bytes
LARGEST = 40_000_000  # bytes of all shipped models together
WHOLE = "float32, as trained"
BY_HAND = "named by hand"


@dataclass(frozen=True)
class Publication:
    """What is to be shipped."""

    source: Path  # a run's folder or one seed's checkpoint
    name: str  # of the shipped model
    results: tuple[Path, ...] = ()  # what `looped evaluate --out` wrote of it; none: it is measured now
    seed: str = "auto"  # auto: the lowest training loss over the last tenth; or its number
    history: Path | None = None  # the run's folder, for a checkpoint that lies elsewhere
    half: bool = False  # numbers of 16 bits, if accuracies stay equal
    lengths: tuple[int, ...] = ()  # to measure now, and to compare both precisions at
    samples: int = 256  # a length
    device: str = "auto"
    trained_on: str | None = None  # the device it was trained on, if known
    why: str = ""  # this seed was named, where it is not the one with the lowest loss


def add(order: Publication) -> Card:
    """Put weights and card among the shipped models and return the card; raises before anything is written."""
    _check_name(order.name)
    trained, chosen, seconds = choose(order.source, order.seed, order.history)
    chosen = chosen.replace(BY_HAND, order.why or BY_HAND)
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
    order: Publication, trained: Trained, lengths: Sequence[int], device: torch.device
) -> tuple[tuple[MeasuredAccuracy, ...], Origin]:
    """Measured accuracies of this seed from result files, or measured now."""
    if not order.results:
        subject = loading.stack(order.source, [trained], device).subject
        found = measure(subject, lengths, order.samples, seed=0)
        facts = devices.facts(device)
        rows = [
            MeasuredAccuracy(r.length, r.stop, r.accuracy, r.samples, r.mean_steps, r.family) for r in found
        ]
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


def _read_results(path: Path, trained: Trained) -> tuple[list[MeasuredAccuracy], Origin]:
    data = serial.read(path, "a file of results", LARGEST_RESULTS)
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise InputError(f"{path} is no result of ours: it must hold provenance and rows")
    origin = data.get("provenance", {})
    configs = [serial.from_json(TrainConfig, run["config"], str(path)) for run in origin.get("runs", [])]
    if configs and trained.config not in configs:
        odd = serial.differences(trained.config, configs[0])
        raise InputError(f"{path} measured another run than this one ({'; '.join(odd[:2])})")
    own = {"task": trained.config.task, "method": trained.config.method, "seed": trained.seed}
    rows = [
        MeasuredAccuracy(
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
    subject = loading.stack(Path(), [trained], device).subject
    short = loading.stack(Path(), [_with(trained, row)], device).subject
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
        f"float16: with float32 and float16, {samples} problems per length ({where}), at {'; '.join(told)}",
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
    others = sum(zoo.path(name).stat().st_size for name in zoo.names() if name != card.name)
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
    checkpoints.save(zoo.path(card.name), SEED_KIND, tensors, metadata)
    checkpoints.write(zoo.path(card.name).with_suffix(".json"), text(card).encode())


def text(card: Card) -> str:
    """A card as its file holds it: one line per field, one per measured row."""
    data = card.to_json()
    rows = data.pop("rows")
    lines = [f' "{key}": {json.dumps(value, allow_nan=False)}' for key, value in data.items()]
    body = ",\n  ".join(json.dumps(row, allow_nan=False) for row in rows)
    return "{\n" + ",\n".join([*lines, f' "rows": [\n  {body}\n ]']) + "\n}\n"


RULE = "the lowest mean training loss over the last tenth of its run"
Losses = Mapping[int, float]


def choose(source: Path, wanted: str, history: Path | None = None) -> tuple[Trained, str, float | None]:
    """The weights of the seed wanted (`auto` or its number), how it was chosen, and the run's seconds of training.

    `history` is the run's folder, or what is left of it, for a checkpoint that lies elsewhere.
    """
    folder = source if source.is_dir() else history
    losses, seconds = ({}, None) if folder is None else _history(folder)
    if source.is_dir():
        seed = _best(losses) if wanted == "auto" else _number(wanted)
        trained = runs.load_seed(source / f"seed-{seed}.safetensors")
    else:
        trained = runs.load_seed(source)
        if wanted not in ("auto", str(trained.seed)):
            raise InputError(f"{source} holds seed {trained.seed}, not {wanted}")
    if folder is not None:
        odd = serial.differences(trained.config, runs.read_config(folder))
        if odd:
            raise InputError(f"{folder} is another run than that of {source} ({'; '.join(odd[:2])})")
    how = loading.selected(trained.config)
    return trained, reason(losses, trained.seed) + (f"; {how}" if how else ""), seconds


def reason(losses: Losses, seed: int) -> str:
    """How a seed was chosen, in words, with the losses of all."""
    if not losses:
        return f"seed {seed} was given as a file; how it was chosen is not known"
    told = ", ".join(f"{each}: {loss:.2g}" for each, loss in sorted(losses.items()))
    if len(losses) == 1:
        return f"the only seed of its run (mean training loss over the last tenth by seed: {told})"
    return f"{RULE if seed == _best(losses) else BY_HAND} (by seed: {told})"


def _history(folder: Path) -> tuple[Losses, float | None]:
    """Each seed's mean loss over the last tenth of the gradient steps, and the seconds of training."""
    rows: list[dict[str, Any]] = [row for row in runs.read_metrics(folder) if row.get("kind") == "training"]
    if not rows:
        return {}, None
    late = [row for row in rows if row["step"] > 0.9 * rows[-1]["step"] and row["loss"] is not None]
    seeds = sorted({row["seed"] for row in late if row["training"]})
    losses = {seed: fmean(row["loss"] for row in late if row["seed"] == seed) for seed in seeds}
    return losses, round(rows[-1]["seconds"], 1)


def _best(losses: Losses) -> int:
    if not losses:
        raise InputError("the run's metrics hold no training loss to choose a seed by; name one with --seed")
    return min(losses, key=losses.__getitem__)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"--seed takes auto or a whole number, not {text[:20]!r}")
    return int(text)


def main(words: Sequence[str] | None = None) -> int:
    """List or adds; 2 is bad input."""
    args = _parser().parse_args(words)
    if args.action != "add":
        print(zoo.zoo())
        return 0
    try:
        lengths = tuple(loading.parse_lengths(args.lengths)) if args.lengths else ()
        order = Publication(
            args.run, args.name, tuple(args.results), args.seed, args.history, args.half, lengths, args.samples,
            args.device, args.trained_on, args.why,
        )  # fmt: skip
        card = add(order)
    except (InputError, OSError) as error:
        print(f"looped: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    held = card.holds_to()
    print(
        f"{card.name}: seed {card.seed}, {card.chosen}; {card.stored_why}; holds to {held}; {len(card.rows)} rows"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.publish_model", description="The shipped models."
    )
    actions = parser.add_subparsers(dest="action")
    actions.add_parser("list", help="what is shipped (the default)")
    one = actions.add_parser("add", help="put a trained run's seed among the shipped models")
    one.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or one seed's checkpoint")
    one.add_argument("--name", required=True, help="TASK-RECIPE, such as addition-fast")
    one.add_argument(
        "--results", type=Path, nargs="*", default=[], help="what `looped evaluate --out` wrote of it"
    )
    one.add_argument(
        "--seed", default="auto", help="auto: the lowest training loss over the last tenth; or a number"
    )
    one.add_argument("--history", type=Path, help="the run's folder, for a checkpoint that lies elsewhere")
    one.add_argument("--half", action="store_true", help="numbers of 16 bits, if accuracies stay equal")
    one.add_argument("--lengths", help="to measure, or to compare both precisions at: 20,40")
    one.add_argument("--samples", type=int, default=256, help="problems per length")
    one.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    one.add_argument("--trained-on", help="the device it was trained on")
    one.add_argument("--why", default="", help="why --seed names another than the one with the lowest loss")
    return parser


if __name__ == "__main__":
    sys.exit(main())
