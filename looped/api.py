"""The public functions that train and measure: `looped.train` and `looped.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from looped import devices, registry
from looped.evaluation import loading
from looped.evaluation.measure import measure
from looped.training import recipes
from looped.training.backends import Backend
from looped.training.config import TrainConfig
from looped.training.trainer import Summary
from looped.training.trainer import train as train_run

BlockOrName = Callable[..., Any] | str  # a class, a function that makes a block, or FILE.py:Name


def train(
    task: str,
    *,
    block: BlockOrName | None = None,
    method: str = "fop-loop-adaptive",
    recipe: str = "fast",
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    device: str = "auto",
    backend: Backend = "auto",
    time_limit_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    **changes: object,
) -> Summary:
    """Train a model into a run's folder; the same call again goes on where the last one ended.

    `changes` set fields of the configuration: `steps=200`, `model={"width": 64}`.
    """
    config = recipes.make(task, method, recipe, tuple(seeds))
    words = [f"model.{key}={_text(value)}" for key, value in dict(changes.pop("model", {})).items()]  # type: ignore[call-overload]
    config = recipes.with_fields(
        config, [*words, *(f"{key}={_text(value)}" for key, value in changes.items())]
    )
    config = with_block(config, block)
    folder = Path(out) if out is not None else Path("runs") / config.name
    return train_run(
        config, folder, devices.pick(device), backend=backend, time_limit_s=time_limit_s, stop=stop
    )


def with_block(config: TrainConfig, block: BlockOrName | None) -> TrainConfig:
    """The configuration with a block of the user's, which becomes known in this process."""
    if block is None:
        return config
    name = registry.resolve(block) if isinstance(block, str) else registry.register(block)
    return recipes.with_fields(config, [f"block={name}"])


def evaluate(
    run: Summary | str | Path,
    *,
    lengths: Sequence[int],
    stop: Sequence[str] = ("oracle",),
    samples: int = 640,
    seed: int = 0,
    device: str = "cpu",
    block: BlockOrName | None = None,
) -> list[dict[str, Any]]:
    """Measure a run: a row for every length, stopping rule and seed, as result files hold them."""
    if block is not None:
        registry.resolve(block) if isinstance(block, str) else registry.register(block)
    folder = run.folder if isinstance(run, Summary) else run
    loaded = loading.load(Path(folder), devices.pick(device))
    rows = measure(loaded.subject, list(lengths), samples, seed=seed, stops=tuple(stop))
    return [row.as_dict() for row in rows]


def _text(value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
