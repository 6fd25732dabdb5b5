"""The shipped models: weights as `NAME.safetensors`, a card beside each as `NAME.json`. No torch to list them.

>>> import looped
>>> looped.zoo()                                    # a table of what is there
>>> looped.load("copy")                             # one of them, ready to answer

A card says what the model is, how it was trained, and its measured accuracies. A task's own name, `addition`, stands
for the first of its models in the order of `PREFERRED`: `addition-long`, trained with the recipe `long`. `python -m
scripts.publish_model add RUN --name NAME` puts a trained run's best seed here. `looped.zoo` is this package and the
function `looped.zoo()` at once, so the module itself can be called.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

from looped import serial
from looped.output import html_facts, html_table, text_table

FOLDER = Path(__file__).parent
PREFERRED = ("long", "fast", "paper", "quick", "chomsky")  # suffixes of names, the farthest first
LARGEST_CARD = 1 << 22  # bytes
SURE = 0.99  # the share of right answers that counts as holding


@dataclass(frozen=True)
class MeasuredAccuracy:
    """One measured accuracy."""

    length: int
    stop: str
    accuracy: float
    samples: int
    mean_steps: float
    family: str = "uniform"


@dataclass(frozen=True)
class Origin:
    """Where weights or measurements come from; None for what is not known."""

    commit: str | None = None
    device: str | None = None
    precision: str | None = None
    command: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Card:
    """What a shipped model says of itself."""

    name: str
    task: str
    method: str
    recipe: str
    seed: int
    max_length: int  # trained on lengths from 1 to this
    steps: int  # gradient steps
    parameters: int
    stored: str  # type of the numbers in the file
    stored_why: str  # what was measured before numbers were shortened
    chosen: str  # how this seed was chosen among its run's
    trained: Origin
    measured: Origin
    rows: tuple[MeasuredAccuracy, ...]
    config: dict[str, Any] = field(default_factory=dict, compare=False)  # the run's, as its folder has it

    def accuracies(self, stop: str = "oracle", family: str = "uniform") -> dict[int, float]:
        """Accuracy by length under a rule, shortest length first."""
        rows = [row for row in self.rows if (row.stop, row.family) == (stop, family)]
        return {row.length: row.accuracy for row in sorted(rows, key=lambda row: row.length)}

    def holds_to(self) -> int | None:
        """The longest measured length up to which every one has hardly a wrong answer."""
        held = [length for length, _ in takewhile(lambda pair: pair[1] >= SURE, self.accuracies().items())]
        return held[-1] if held else None

    def _repr_html_(self) -> str:
        facts = {
            "model": f"{self.name}: {self.task}, {self.method}, recipe {self.recipe}, seed {self.seed}",
            "trained": f"on lengths to {self.max_length}, {self.steps:,} gradient steps",
            "parameters": f"{self.parameters:,}, stored as {self.stored}",
            "chosen": self.chosen,
        }
        columns = ("length", "stopping rule", "inputs", "accuracy", "questions", "mean steps")
        rows = [
            (row.length, row.stop, row.family, f"{row.accuracy:.4f}", row.samples, f"{row.mean_steps:.1f}")
            for row in self.rows
        ]
        return html_facts(facts) + html_table(columns, rows, "Measured accuracy")

    def to_json(self) -> dict[str, Any]:
        """As the file holds it, one row of measurements a line."""
        return asdict(self)


def names() -> list[str]:
    """Every shipped model, by name."""
    return sorted(path.stem for path in FOLDER.glob("*.safetensors"))


def path(name: str) -> Path:
    """The file of a shipped model's weights."""
    return FOLDER / f"{name}.safetensors"


def find(name: str) -> str | None:
    """The shipped model that a name stands for: its own, or a task's; `binary-sum` will do for `binary_sum`."""
    wanted = _alike(name)
    known = {_alike(each): each for each in names()}
    tries = [wanted, *(f"{wanted}-{suffix}" for suffix in PREFERRED)]
    return next((known[each] for each in tries if each in known), None)


def located(source: str) -> Path | None:
    """The file of a shipped model where its name is given, and nothing of that name lies here; else None."""
    plain = len(Path(source).parts) == 1 and not Path(source).exists()
    return path(name) if plain and (name := find(source)) else None


def card(name: str) -> Card:
    """What a shipped model says of itself."""
    return _read(FOLDER / f"{name}.json")


@cache
def _read(file: Path) -> Card:
    return serial.from_json(Card, serial.read(file, "a card", LARGEST_CARD), str(file))


def _alike(name: str) -> str:
    return name.strip().replace("_", "-").lower()


COLUMNS = ("name", "task", "method", "recipe", "trained to", "holds to", "parameters", "MB")


class Zoo(tuple[Card, ...]):
    """The cards of all shipped models; prints as a table."""

    def lines(self) -> list[tuple[str, ...]]:
        """A row of text for each card, as `COLUMNS` says; a star marks what a task's name stands for."""
        return [
            (
                card.name + ("*" if find(card.task) == card.name else ""),
                card.task,
                card.method,
                card.recipe,
                str(card.max_length),
                "–" if (held := card.holds_to()) is None else str(held),
                f"{card.parameters:,}",
                f"{path(card.name).stat().st_size / 1e6:.1f}",
            )
            for card in self
        ]

    def __repr__(self) -> str:
        if not self:
            return "no trained model is shipped with this version; TASK-compiled always loads"
        return f"{text_table([COLUMNS, *self.lines()])}\n{NOTE}"

    def _repr_html_(self) -> str:
        return html_table(COLUMNS, self.lines(), NOTE)


NOTE = "* what the task's name stands for; holds to: the last length before one with less than 99 % right (oracle)"


def zoo() -> Zoo:
    """Every shipped model with its card."""
    return Zoo(map(card, names()))


class _Callable(ModuleType):
    def __call__(self) -> Zoo:
        return zoo()


sys.modules[__name__].__class__ = _Callable
