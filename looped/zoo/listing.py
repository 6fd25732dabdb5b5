"""The shipped models as a table, for a terminal and for a notebook. No torch."""

from __future__ import annotations

import html

from looped.zoo import shelf
from looped.zoo.card import Card

COLUMNS = ("name", "task", "method", "recipe", "trained to", "holds to", "parameters", "MB")


class Zoo(tuple[Card, ...]):
    """The cards of all shipped models; prints as a table."""

    def lines(self) -> list[tuple[str, ...]]:
        """A row of text for each card, as `COLUMNS` says; a star marks what a task's name stands for."""
        return [
            (
                card.name + ("*" if shelf.find(card.task) == card.name else ""),
                card.task,
                card.method,
                card.recipe,
                str(card.max_length),
                "–" if (held := card.holds_to()) is None else str(held),
                f"{card.parameters:,}",
                f"{shelf.path(card.name).stat().st_size / 1e6:.1f}",
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
    return Zoo(shelf.cards().values())
