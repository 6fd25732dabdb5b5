"""What a run tells while it trains: reports, who listens to them, and what they are made from.

The trainer speaks to listeners and knows none of them. `Lines` is the plain one, for pipes and bare machines;
`Tracked` passes the numbers on to an experiment tracker.
Between two reports readings stay on the device: a `Window` sums them there, and a report fetches the sums.

Shapes: S seeds.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from looped.errors import InputError
from looped.evaluation.measure import Row
from looped.serial import to_json
from looped.training.config import TrainConfig


@dataclass(frozen=True)
class Readings:
    """The last gradient step as numbers on the device, one per seed."""

    loss: Float[Tensor, "S"]
    norm: Float[Tensor, "S"]  # of the gradient, before the clip
    accuracy: Float[Tensor, "S"]  # rows answered exactly
    accuracy_longest: Float[Tensor, "S"]  # the same among rows of the maximum length; NaN if there are none


@dataclass(frozen=True)
class SeedReport:
    """One seed over the gradient steps since the last report; None where there is no number."""

    seed: int
    loss: float | None
    accuracy: float | None
    accuracy_longest: float | None  # among problems of the maximum length
    norm: float | None  # of the gradient, before the clip
    lr: float  # at the last step
    training: bool  # False once it was stopped


@dataclass(frozen=True)
class Report:
    """All seeds at a gradient step."""

    step: int  # gradient steps taken
    length: int  # the maximum length of the last one
    seconds: float  # of training, over all sittings
    steps_per_second: float
    seconds_left: float
    seeds: tuple[SeedReport, ...]


class Listener:
    """Hears what a run tells; this one ignores it all. Each method may be overridden."""

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Training starts, or goes on after `step` gradient steps."""

    def report(self, report: Report) -> None:
        """The last few gradient steps."""

    def evaluation(self, step: int, rows: Sequence[Row]) -> None:
        """Accuracy at and past the training length."""

    def note(self, sentence: str) -> None:
        """Something a person should know."""

    def end(self) -> None:
        """Nothing more will come."""


EVERY_S = 5.0


class Lines(Listener):
    """A line on stderr every `EVERY_S` seconds, and one for everything rare."""

    def __init__(self) -> None:
        self._last = -math.inf
        self._steps = 0

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Says what is trained and where."""
        self._steps = config.steps
        start = f", going on after step {step}" if step else ""
        self.note(f"{config.task} {config.method} {config.recipe}: {config.steps} steps in {folder}{start}")

    def report(self, report: Report) -> None:
        """Loss and accuracy as means over the seeds that still train."""
        if time.monotonic() - self._last < EVERY_S and report.step < self._steps:
            return
        self._last = time.monotonic()
        self.note(line(report, self._steps))

    def evaluation(self, step: int, rows: Sequence[Row]) -> None:
        """Means over seeds, by length."""
        by_length: dict[int, list[float]] = {}
        for row in rows:
            by_length.setdefault(row.length, []).append(row.accuracy)
        shown = ", ".join(f"{length}: {fmean(got):.3f}" for length, got in by_length.items())
        self.note(f"step {step}  exact by length  {shown}")

    def note(self, sentence: str) -> None:
        """One line."""
        print(sentence, file=sys.stderr, flush=True)


class Tracker(Protocol):
    """Anything with the `log` of wandb."""

    def log(self, metrics: dict[str, float], step: int, /) -> object:
        """Take the numbers of one gradient step."""


class Tracked(Listener):
    """Passes the numbers on to a tracker, named `loss/seed-0` and so on."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def report(self, report: Report) -> None:
        """Loss, accuracies and gradient norm of every seed that still trains."""
        numbers: dict[str, float] = {"length": report.length}
        for seed in report.seeds:
            for name in ("loss", "accuracy", "accuracy_longest", "norm", "lr"):
                value = getattr(seed, name)
                if seed.training and value is not None:
                    numbers[f"{name}/seed-{seed.seed}"] = value
        self.tracker.log(numbers, report.step)

    def evaluation(self, step: int, rows: Sequence[Row]) -> None:
        """Accuracy by length."""
        self.tracker.log({f"exact-{row.length}/seed-{row.seed}": row.accuracy for row in rows}, step)


class Trackio(Tracked):
    """The tracker trackio, which keeps its records on this machine."""

    def __init__(self) -> None:
        self._trackio = _package("trackio", "track")
        super().__init__(self._trackio)

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Open a record under the folder's name."""
        self._trackio.init(project="looped", name=folder.name, config=to_json(config), resume="allow")

    def end(self) -> None:
        """Close the record."""
        self._trackio.finish()


class TensorBoard(Tracked):
    """Event files in the run's folder: `tensorboard --logdir runs` shows all runs below it."""

    def __init__(self) -> None:
        self._open = _package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._writer: Any = None
        super().__init__(self)

    def begin(self, config: TrainConfig, folder: Path, step: int) -> None:
        """Open a new file; what an interrupted session wrote after its last checkpoint is dropped."""
        self._writer = self._open(folder / "tensorboard", purge_step=step + 1 if step else None)

    def log(self, metrics: dict[str, float], step: int, /) -> None:
        """Every number is a scalar of its own."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def end(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()


def _package(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        name = module.rpartition(".")[2]
        raise InputError(f"tracking needs the package {name}: pip install 'looped[{extra}]'") from None


TrackerName = Literal["trackio", "tensorboard"]
TRACKERS: dict[str, Callable[[], Tracked]] = {"trackio": Trackio, "tensorboard": TensorBoard}


def tracked(tracker: Tracker | str) -> Listener:
    """A listener that passes numbers on to a tracker given by name, or to any object with `log(numbers, step)`."""
    if isinstance(tracker, str):
        if tracker not in TRACKERS:
            raise InputError(f"unknown tracker {tracker!r}; there are {', '.join(TRACKERS)}")
        return TRACKERS[tracker]()
    if not callable(getattr(tracker, "log", None)):
        kind = type(tracker).__name__
        raise InputError(f"a tracker needs a method log(numbers, step), and {kind} has none")
    return Tracked(tracker)


def line(report: Report, steps: int) -> str:
    """A report in one line: `step 500/1000  length 10  loss 0.0123  …`."""

    def mean(name: str) -> str:
        values = [getattr(seed, name) for seed in report.seeds if seed.training]
        numbers = [value for value in values if value is not None]
        return f"{fmean(numbers):.4f}" if numbers else "–"

    return (
        f"step {report.step}/{steps}  length {report.length}  loss {mean('loss')}  exact {mean('accuracy')}  "
        f"at the longest {mean('accuracy_longest')}  {report.steps_per_second:.1f} steps/s  "
        f"{clock(report.seconds_left)} left"
    )


def clock(seconds: float) -> str:
    """Seconds as people read them: `1:05`, `2:00:10`."""
    minutes, left = divmod(max(0, round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}" if minutes >= 60 else f"{minutes}:{left:02}"


class Window:
    """Sums of the readings since the last report, on the device."""

    def __init__(self, seeds: int, device: torch.device) -> None:
        # loss, norm, accuracy, accuracy at the longest, steps that had a longest problem, steps
        self.sums: Float[Tensor, "6 S"] = torch.zeros(6, seeds, device=device)

    def add(self, readings: Readings) -> None:
        """Takes one gradient step in, without waiting for it."""
        longest, one = readings.accuracy_longest, torch.ones_like(readings.loss)
        numbers = [
            readings.loss,
            readings.norm,
            readings.accuracy,
            longest.nan_to_num(0.0),
            ~longest.isnan(),
            one,
        ]
        self.sums += torch.stack([each.float() for each in numbers])

    def take(self, alive: Bool[Tensor, "S"]) -> tuple[list[list[float | None]], list[bool], int]:
        """Per seed the means of loss, norm and both accuracies; who trains; over how many steps. Empties."""
        fetched = torch.cat([self.sums, alive[None].float()]).double().cpu()
        self.sums.zero_()
        steps, longest = fetched[5], fetched[4]
        means = fetched[:4] / torch.stack([steps, steps, steps, longest])
        rows = [[x if math.isfinite(x) else None for x in column] for column in means.T.tolist()]
        return rows, fetched[6].bool().tolist(), int(steps[0])
