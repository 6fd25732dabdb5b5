"""n-RASP-L programs at work: every variable after every step, position by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from looped.figures.style import FAINT, INK, STYLE, words


def programs(traces: Sequence[tuple[str, Sequence[str], Mapping[str, Sequence[Sequence[str]]]]]) -> Figure:
    """Programs at work: for each (name, input row, variable → step × position), a grid of symbols.

    Steps run down, positions across; a cell that changed since the step before is shaded.
    """
    with matplotlib.rc_context(fname=STYLE):
        heights = [
            sum(len(grid) for grid in variables.values()) + len(variables) + 2 for _, _, variables in traces
        ]
        widths = [len(row) + 4 for _, row, _ in traces]
        figure = Figure(figsize=(0.3 * sum(widths) + 0.3, 0.27 * max(heights) + 0.3))
        panels = figure.subplots(1, len(traces), squeeze=False, width_ratios=widths)[0]
        for panel, (name, row, variables) in zip(panels, traces, strict=True):
            _program(panel, name, row, variables, max(heights))
    return figure


def _program(
    panel: Axes, name: str, row: Sequence[str], variables: Mapping[str, Sequence[Sequence[str]]], height: int
) -> None:
    panel.set(xlim=(-3.6, len(row) + 0.1), ylim=(height, 0), title=words(name), aspect="equal")
    panel.axis("off")
    _cells(panel, 0.5, "input", row, row)
    y = 2.0
    for variable, grid in variables.items():
        panel.text(-3.5, y + 0.45, variable, fontsize=7, weight="bold", va="center", color=INK)
        y += 0.9
        for step, values in enumerate(grid):
            _cells(panel, y, f"step {step}" if step else "prepared", values, grid[max(step - 1, 0)])
            y += 1


def _cells(panel: Axes, y: float, label: str, values: Sequence[str], before: Sequence[str]) -> None:
    panel.text(-0.25, y + 0.5, label, fontsize=6.5, ha="right", va="center", color=FAINT)
    for x, (value, old) in enumerate(zip(values, before, strict=True)):
        face = "#ffffff" if value == old else "#cfe3f2"
        panel.add_patch(Rectangle((x, y), 1, 1, facecolor=face, edgecolor="#bbbbbb", linewidth=0.6))
        panel.text(x + 0.5, y + 0.52, value, fontsize=7.5, ha="center", va="center", color=INK)
