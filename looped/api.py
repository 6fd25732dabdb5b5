"""The public functions that draw data, train and measure: `looped.data`, `looped.train`, `looped.evaluate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from looped import devices, registry, tasks
from looped.batches import Batch, lay_out
from looped.errors import InputError
from looped.evaluation import loading
from looped.evaluation.measure import measure
from looped.tables import html_table
from looped.tasks.base import Task
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


class TaskData(IterableDataset[Batch]):
    """Endless batches of fresh problems of a task, laid out for a model; what `looped.data` gives.

    Lengths are drawn evenly from 1 to `max_length`. Each worker of a `DataLoader` (with `batch_size=None`) has a
    stream of its own.
    """

    def __init__(self, task: Task, max_length: int, batch: int, seed: int, family: str) -> None:
        super().__init__()
        task.check_length(max_length)
        task.check_family(family)
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
        self.task, self.max_length, self.batch, self.seed, self.family = task, max_length, batch, seed, family

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        stream = 0 if worker is None else worker.id
        generator = torch.Generator().manual_seed(self.seed * 1009 + stream)
        task, size = self.task, (self.batch,)
        while True:
            lengths = torch.randint(1, self.max_length + 1, size, generator=generator)
            variants = torch.randint(task.variants, size, generator=generator)
            problems = task.sample(
                lengths, generator, max_length=self.max_length, variants=variants, family=self.family
            )
            yield lay_out(problems, task.vocab, task.row_size(self.max_length))


def data(task: str, *, max_length: int, batch: int = 64, seed: int = 0, family: str = "uniform") -> TaskData:
    """A torch `IterableDataset` of batches: tokens, targets, loss_mask and steps, for a training loop of one's own."""
    return TaskData(tasks.get(task), max_length, batch, seed, family)


def with_block(config: TrainConfig, block: BlockOrName | None) -> TrainConfig:
    """The configuration with a block of the user's, which becomes known in this process."""
    if block is None:
        return config
    name = registry.resolve(block) if isinstance(block, str) else registry.register(block)
    return recipes.with_fields(config, [f"block={name}"])


class ResultRows(list[dict[str, Any]]):
    """Rows as result files hold them; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        columns = list(dict.fromkeys(key for row in self for key in row))
        return html_table(columns, [[row.get(key, "") for key in columns] for row in self])


def evaluate(
    run: Summary | str | Path,
    *,
    lengths: Sequence[int],
    stop: Sequence[str] = ("oracle",),
    samples: int = 640,
    seed: int = 0,
    device: str = "cpu",
    block: BlockOrName | None = None,
) -> ResultRows:
    """Measure a run: a row for every length, stopping rule and seed, as result files hold them."""
    if block is not None:
        registry.resolve(block) if isinstance(block, str) else registry.register(block)
    folder = run.folder if isinstance(run, Summary) else run
    loaded = loading.load(Path(folder), devices.pick(device))
    rows = measure(loaded.subject, list(lengths), samples, seed=seed, stops=tuple(stop))
    return ResultRows(row.as_dict() for row in rows)


def _text(value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
