"""What a shipped model says of itself: what it is, how it came to be, how far it was measured to hold.

A card lies beside its weights as `NAME.json`. Reading one needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from looped import serial
from looped.errors import InputError

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
    """Where weights or measurements come from; None for what nobody wrote down."""

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
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)  # the run's, as its folder has it

    def accuracies(self, stop: str = "oracle", family: str = "uniform") -> dict[int, float]:
        """Accuracy by length under a rule, shortest length first."""
        rows = [row for row in self.rows if (row.stop, row.family) == (stop, family)]
        return {row.length: row.accuracy for row in sorted(rows, key=lambda row: row.length)}

    def holds_to(self, stop: str = "oracle", share: float = SURE) -> int | None:
        """The longest measured length up to which every one has at least this share of right answers."""
        longest = None
        for length, accuracy in self.accuracies(stop).items():
            if accuracy < share:
                break
            longest = length
        return longest

    def to_json(self) -> dict[str, Any]:
        """As the file holds it, one row of measurements a line."""
        return {**asdict(self), "config": dict(self.config)}


def from_json(data: object, what: str) -> Card:
    """A card from a file's JSON; raises a sentence that names the file."""
    if not isinstance(data, dict):
        raise InputError(f"{what} is no card: it must be an object of fields")
    config = data.get("config", {})
    if not isinstance(config, dict):
        raise InputError(f"{what}: config must be an object of fields")
    plain = serial.from_json(_Plain, {key: value for key, value in data.items() if key != "config"}, what)
    return Card(**vars(plain), config=config)


@dataclass(frozen=True)
class _Plain:
    """The fields of a card whose types can be checked, in the same order."""

    name: str
    task: str
    method: str
    recipe: str
    seed: int
    max_length: int
    steps: int
    parameters: int
    stored: str
    stored_why: str
    chosen: str
    trained: Origin
    measured: Origin
    rows: tuple[MeasuredAccuracy, ...]
