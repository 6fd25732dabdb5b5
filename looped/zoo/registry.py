"""The shipped models by name: where their files are, what their cards say, and all of them as a table. No torch.

    addition-long.safetensors   addition-long.json      trained with the recipe `long`
    addition-fast.safetensors   addition-fast.json      trained with the recipe `fast`

A task's own name, `addition`, stands for the first of its models in the order of `PREFERRED`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from looped import serial
from looped.errors import InputError
from looped.zoo.card import Card, from_json

FOLDER = Path(__file__).parent
PREFERRED = ("long", "fast", "paper", "quick")  # suffixes of names, the one that holds furthest first
LARGEST_CARD = 1 << 22  # bytes


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


def card(name: str) -> Card:
    """What a shipped model says of itself."""
    return _read(FOLDER / f"{name}.json")


def cards() -> Mapping[str, Card]:
    """Every shipped model's card, by name."""
    return MappingProxyType({name: card(name) for name in names()})


@cache
def _read(file: Path) -> Card:
    try:
        if file.stat().st_size > LARGEST_CARD:
            raise InputError(f"{file} is too large for a card")
        return from_json(serial.parse(file.read_text(encoding="utf-8"), str(file)), str(file))
    except (OSError, UnicodeDecodeError):
        raise InputError(f"{file} cannot be read as a card") from None


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
        table = [COLUMNS, *self.lines()]
        widths = [max(len(row[i]) for row in table) for i in range(len(COLUMNS))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        return "\n".join([*lines, NOTE])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in self.lines())
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table><p>{NOTE}</p>"


NOTE = "* what the task's name stands for; holds to: the last length before one with less than 99 % right (oracle)"


def zoo() -> Zoo:
    """Every shipped model with its card."""
    return Zoo(cards().values())
