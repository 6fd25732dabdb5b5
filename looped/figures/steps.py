"""Accuracy and confidence after every loop step, and the step that was chosen."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import matplotlib
from matplotlib.figure import Figure

from looped.errors import InputError
from looped.figures.reading import Row
from looped.figures.style import COLOURS, FAINT, STYLE, label_rows, panels_of, words


def by_step(rows: Iterable[Row], title: str = "") -> Figure:
    """Accuracy and surprise after every loop step, a panel for each task and length; the chosen step marked."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if not {"step", "surprise", "chosen"} <= row.keys():
            raise InputError(
                "these rows have no loop steps: a figure by step needs step, surprise and chosen"
            )
        groups.setdefault((row["task"], row["length"]), []).append(row)
    with matplotlib.rc_context(fname=STYLE):
        figure, panels = panels_of(len(groups))
        for panel, ((task, length), found) in zip(panels, groups.items(), strict=False):
            steps = sorted({row["step"] for row in found})
            exact = [fmean([row["accuracy"] for row in found if row["step"] == t]) for t in steps]
            surprise = [fmean([row["surprise"] for row in found if row["step"] == t]) for t in steps]
            panel.plot(steps, exact, color=COLOURS[0], label="exact match")
            panel.set(title=f"{words(task)}, length {length}", xlabel="loop step", ylim=(-0.03, 1.03))
            other = panel.twinx()
            other.plot(
                steps, surprise, color=COLOURS[1], linestyle="--", label="cross entropy with its own answer"
            )
            other.grid(visible=False)
            for chosen in sorted({row["chosen"] for row in found}):
                panel.axvline(chosen, color=FAINT, linestyle=":", linewidth=1.2, label="step chosen")
        label_rows(panels, "exact match")
        other.set_ylabel("cross entropy")
        handles = [*panels[0].get_lines()[:2], *other.get_lines()]
        figure.legend(
            handles, [str(line.get_label()) for line in handles], loc="outside lower center", ncols=3
        )
        if title:
            figure.suptitle(title, parse_math=False)
    return figure
