"""The public functions that draw data, train and measure: `looped.data`, `looped.train`, `looped.evaluate`.

`looped.register` is here as well, because importing this makes every kind of part known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from looped import devices, registry, serial, tasks
from looped.batches import Batch, lay_out
from looped.errors import InputError
from looped.evaluation import loading
from looped.evaluation.measure import measure
from looped.evaluation.stopping import Rule
from looped.methods import Method
from looped.output import html_table
from looped.tasks.base import Task
from looped.training import recipes
from looped.training.progress import Tracker, tracked
from looped.training.recipes import Recipe
from looped.training.trainer import Backend, Summary
from looped.training.trainer import train as train_run

if TYPE_CHECKING:
    from looped.solve.solver import Solver

register = registry.register
TaskOrName = Task | type[Task] | str  # an object, a class, a name or FILE.py:Name
MethodOrName = Method | str
RecipeOrName = Recipe | str
BlockOrName = Callable[..., Any] | str  # a class, a function that makes a block, or FILE.py:Name
RuleOrName = Rule | str


def train(
    task: TaskOrName,
    *,
    block: BlockOrName | None = None,
    method: MethodOrName = "fop-loop-adaptive",
    recipe: RecipeOrName = "fast",
    seeds: Iterable[int] = (0,),
    out: str | Path | None = None,
    device: str = "auto",
    backend: Backend = "auto",
    time_limit_s: float | None = None,
    stop: Callable[[], bool] = lambda: False,
    track: Tracker | str | None = None,
    keep_replicas: bool = False,
    **changes: object,
) -> Summary:
    """Train a model into a run's folder; the same call again goes on where the last one ended.

    Parts of your own are given as objects or as `FILE.py:Name`. `changes` set fields of the configuration:
    `steps=200`, `model={"width": 64}`, `replicas=8, hold_out=4` (of which `keep_replicas` keeps all weights). `track`
    gets the numbers while it trains: "trackio", "tensorboard", or an object with `log(numbers, step)`, such as a run
    of wandb.
    """
    listeners = [] if track is None else [tracked(track)]
    named = known("task", task), known("method", method), known("recipe", recipe)
    config = recipes.make(*named, tuple(seeds))
    model = dict(changes.pop("model", {}))  # type: ignore[call-overload]
    fields = {f"model.{key}": value for key, value in model.items()} | changes
    if block is not None:
        fields["block"] = known("block", block)
    words = [f"{key}={serial.to_text(value)}" for key, value in fields.items()]
    config = recipes.with_fields(config, words)
    folder = Path(out) if out is not None else Path("runs") / config.name
    return train_run(
        config, folder, devices.pick(device), listeners=listeners, backend=backend,
        time_limit_s=time_limit_s, stop=stop, keep_replicas=keep_replicas,
    )  # fmt: skip


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


def data(
    task: TaskOrName, *, max_length: int, batch: int = 64, seed: int = 0, family: str = "uniform"
) -> TaskData:
    """A torch `IterableDataset` of batches: tokens, targets, loss_mask and steps, for a training loop of one's own."""
    return TaskData(tasks.get(known("task", task)), max_length, batch, seed, family)


def known(kind: str, part: object) -> str:
    """The name that a run records of a part; the part becomes known in this process."""
    return registry.resolve(kind, part) if isinstance(part, str) else registry.register(part, kind=kind)


class ResultRows(list[dict[str, Any]]):
    """Rows as result files hold them; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        columns = list(dict.fromkeys(key for row in self for key in row))
        return html_table(columns, [[row.get(key, "") for key in columns] for row in self])


def evaluate(
    run: Summary | Solver | str | Path,
    *,
    lengths: Sequence[int],
    stop: Sequence[RuleOrName] = ("oracle",),
    samples: int = 640,
    seed: int = 0,
    device: str = "cpu",
    task: TaskOrName | None = None,
    method: MethodOrName | None = None,
    block: BlockOrName | None = None,
) -> ResultRows:
    """Measure a run or a loaded model: a row for every length, stopping rule and seed, as result files hold them.

    A run of a task, method or block of your own needs it here, unless it is known already.
    """
    for kind, part in (("task", task), ("method", method), ("block", block)):
        if part is not None:
            known(kind, part)
    stops = [registry.resolve("stopping rule", each) if isinstance(each, str) else each for each in stop]
    if isinstance(run, (Summary, str, Path)):
        folder = run.folder if isinstance(run, Summary) else run
        subject = loading.load(Path(folder), devices.pick(device)).subject
    else:
        subject = run.subject  # where `looped.load` has put it
    rows = measure(subject, list(lengths), samples, seed=seed, stops=stops)
    return ResultRows(row.as_dict() for row in rows)
