"""How a run went: loss and accuracy against the gradient step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from looped.errors import InputError
from looped.figures.reading import Row
from looped.figures.style import COLOURS, STYLE, legend, panels_of


def training(metrics: Iterable[Row], title: str = "") -> Figure:
    """Loss and accuracy against the gradient step, a line for each seed, from a run's metrics."""
    lines = [row for row in metrics if row.get("kind") == "training"]
    if not lines:
        raise InputError("these metrics have no training steps to draw")
    with matplotlib.rc_context(fname=STYLE):
        figure, (left, right) = panels_of(2)
        for number, seed in enumerate(sorted({row["seed"] for row in lines})):
            own = [row for row in lines if row["seed"] == seed and row["loss"] is not None]
            look: dict[str, Any] = {
                "color": COLOURS[number % len(COLOURS)],
                "linewidth": 1,
                "label": f"seed {seed}",
            }
            left.plot([row["step"] for row in own], [max(row["loss"], 1e-9) for row in own], **look)
            right.plot([row["step"] for row in own], [row["accuracy"] for row in own], **look)
        left.set(title="loss", xlabel="gradient step", yscale="log")
        right.set(title="exact match in training", xlabel="gradient step", ylim=(-0.03, 1.03))
        legend(figure, [], title)
    return figure
