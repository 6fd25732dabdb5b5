"""`looped publish`: a trained model as a folder that the Hugging Face hub and `looped` read.

$ looped publish copy published/copy-long
wrote published/copy-long: copy-long, copy, 13,158 parameters; upload it with `hf upload OWNER/NAME published/copy-long`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from looped import runs
from looped.cli.arguments import Positional
from looped.cli.output import print_json
from looped.errors import InputError
from looped.model import hub
from looped.model.weights import Layout
from looped.runs import Trained
from looped.zoo import card, find, path


@dataclass(frozen=True)
class PublishArgs:
    """Write a model as a folder of the Hugging Face hub: flat config.json, model.safetensors, a model card."""

    model: Annotated[str, Positional("MODEL")]
    """A shipped model's name, a run's folder (its first seed), a checkpoint's file, or a published model."""
    folder: Annotated[Path, Positional("DIR")]
    """The folder to write, new or empty; `looped solve TASK --model DIR` and all other commands read it."""
    json: bool = False
    """Print what was written as one JSON object."""


def run(args: PublishArgs) -> int:
    """Write the folder and say how to upload it."""
    if args.folder.is_dir() and any(args.folder.iterdir()):
        raise InputError(f"{args.folder} is not empty: choose another folder")
    trained, name, rows = _found(args.model)
    runs.publish(trained, args.folder, name, rows)
    config, own = trained.config, sum(tensor.numel() for tensor in trained.weights.values())
    parameters = own or Layout(config.model).parameters
    if args.json:
        size = sum((args.folder / each).stat().st_size for each in (hub.CONFIG, hub.WEIGHTS, hub.CARD))
        facts = {"folder": str(args.folder), "model": name, "task": config.task, "parameters": parameters}
        print_json(facts | {"accuracies": len(rows), "bytes": size})
        return 0
    upload = f"upload it with `hf upload OWNER/NAME {args.folder}`"
    print(f"wrote {args.folder}: {name}, {config.task}, {parameters:,} parameters; {upload}")
    return 0


def _found(model: str) -> tuple[Trained, str, Sequence[hub.Row]]:
    """The weights that a person means, a name for the card, and the accuracies that were measured of them."""
    shipped = None if Path(model).exists() or "/" in model else find(model)
    if shipped is not None:
        rows = [asdict(row) for row in card(shipped).rows]
        return runs.load_seed(path(shipped)), shipped, rows
    file = runs.weight_files(Path(model))[0]
    trained = runs.load_seed(file)
    return trained, trained.config.name, runs.last_evaluation(file.parent, trained.seed)
