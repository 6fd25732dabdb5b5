"""Which seed of a run is shipped: the lowest training loss over its last tenth, or one named by hand.

Nothing that was measured past the training lengths has a say. Knows runs, no shelf.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from looped import runs, serial
from looped.errors import InputError
from looped.runs import Trained

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
    return trained, reason(losses, trained.seed), seconds


def reason(losses: Losses, seed: int) -> str:
    """How a seed was chosen, in words, with the losses of all."""
    if not losses:
        return f"seed {seed} was given as a file; how it was chosen is not known"
    told = ", ".join(f"{each}: {loss:.2g}" for each, loss in sorted(losses.items()))
    if len(losses) == 1:
        return f"the only seed of its run (mean training loss over the last tenth by seed: {told})"
    return f"{RULE if seed == _best(losses) else 'named by hand'} (by seed: {told})"


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
