"""Which seed of a run is shipped: the one with the lowest final training loss, or one named by hand.

Nothing that was measured past the training lengths has a say. Knows runs, no shelf.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from looped import runs, serial
from looped.errors import InputError
from looped.runs import Trained
from looped.training.config import TrainConfig


def choose(source: Path, wanted: str, summary: Path | None) -> tuple[Trained, str, float | None]:
    """The weights of the seed wanted (`auto` or its number), how it was chosen, and the run's seconds of training.

    `summary` is what training printed, for a checkpoint that lies outside its run's folder.
    """
    if source.is_dir():
        metrics = [row for row in runs.read_metrics(source) if row.get("kind") == "training"]
        losses = {row["seed"]: row["loss"] for row in metrics}
        seconds = metrics[-1]["seconds"] if metrics else None
        seed = _best(losses) if wanted == "auto" else _number(wanted)
        return runs.load_seed(source / f"seed-{seed}.safetensors"), reason(losses, seed), seconds
    trained = runs.load_seed(source)
    if wanted not in ("auto", str(trained.seed)):
        raise InputError(f"{source} holds seed {trained.seed}, not {wanted}")
    if summary is None:
        return trained, f"seed {trained.seed}, given as a file; how it was chosen is not known", None
    told = _summary(summary, trained.config)
    losses = {each["seed"]: each.get("loss") for each in told["seeds"]}
    return trained, reason(losses, trained.seed), round(told["seconds"], 1)


def _best(losses: Mapping[int, float | None]) -> int:
    known = {seed: loss for seed, loss in losses.items() if loss is not None}
    if not known:
        raise InputError("the run's metrics hold no training loss to choose a seed by; name one with --seed")
    return min(known, key=known.__getitem__)


def reason(losses: Mapping[int, float | None], seed: int) -> str:
    """How a seed was chosen, in words, with the losses of all."""
    told = ", ".join(
        f"{s}: {'none' if loss is None else f'{loss:.2g}'}" for s, loss in sorted(losses.items())
    )
    if len(losses) == 1:
        return f"the only seed of its run (final training loss by seed: {told})"
    if any(loss is not None for loss in losses.values()) and seed == _best(losses):
        return f"the lowest final training loss of its run (by seed: {told})"
    return f"named by hand (final training loss by seed: {told})"


def _summary(path: Path, config: TrainConfig) -> dict[str, Any]:
    """The line of a file of training summaries that is about this configuration."""
    for line in path.read_text(encoding="utf-8").splitlines():
        data = serial.parse(line, str(path))
        if not isinstance(data, dict) or not isinstance(data.get("seeds"), list):
            raise InputError(f"{path} holds no summaries of training: each line must have its seeds")
        same = all(data.get(key) == getattr(config, key) for key in ("task", "method", "recipe"))
        if same and [each.get("seed") for each in data["seeds"]] == list(config.seeds):
            return data
    raise InputError(
        f"{path} has no summary of {config.task}, {config.method}, {config.recipe} with these seeds"
    )


def _number(text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"--seed takes auto or a whole number, not {text[:20]!r}")
    return int(text)
