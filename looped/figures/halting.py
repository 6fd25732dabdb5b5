"""Who knows when to stop, as a figure: a pure function of rows that `looped discover` writes. Needs no torch.

A column for each task, and three panels in it:

    exact match against length           under each line's first stopping rule
    loop steps against length            the same; dotted: the step from which the answer is held; grey: T(n)
    exact match against loop steps       every rule of a line, past the training lengths, steps as a share of T(n);
                                         hollow: leaving at random, with as many steps on average
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looped.errors import InputError
from looped.figures.reading import ResultRow, is_number
from looped.figures.style import COLOURS, DASHES, FAINT, MARKS, STYLE

NEEDED = ("stop", "mean_steps", "needed", "held_from", "random_exit")
TALL, WIDE = 1.9, 2.5  # inches of a panel


def is_halting(row: ResultRow) -> bool:
    """Whether a row tells what a model has discovered."""
    numbers = all(row.get(field) is None or is_number(row[field]) for field in NEEDED[1:])
    told = all(field in row for field in NEEDED) and numbers
    return told and all(is_number(row[field]) and row[field] > 0 for field in ("mean_steps", "needed"))


def halting(rows: Iterable[ResultRow], trained: Mapping[str, int] | None = None, title: str = "") -> Figure:
    """Accuracy by length, steps by length, accuracy by steps: a column a task, a line a method or variant."""
    listed = list(rows)
    if not listed or not all(map(is_halting, listed)):
        raise InputError(
            "these rows do not tell what was discovered: `looped discover RUN --out FILE` writes some"
        )
    tasks = list(dict.fromkeys(str(row["task"]) for row in listed))
    names = list(dict.fromkeys(map(name_of, listed)))
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(WIDE * len(tasks) + 0.6, 3 * TALL + 0.7))
        grid = figure.subplots(3, len(tasks), squeeze=False)
        for column, task in enumerate(tasks):
            panels = [grid[i][column] for i in range(3)]
            own = [row for row in listed if row["task"] == task]
            last = (trained or {}).get(task, 0)
            for number, name in enumerate(names):
                _line(panels, number, name, [row for row in own if name_of(row) == name], last)
            _frame(panels, task, own, last)
        for panel, words in zip(grid[:, 0], ("exact match", "loop steps", "exact match"), strict=True):
            panel.set_ylabel(words)
        handles, labels = _legend(figure)
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)))
        if title:
            figure.suptitle(title, parse_math=False)
    return figure


def name_of(row: ResultRow) -> str:
    """A line's name: the method, and its variant where it is one."""
    extra = row.get("variant")
    return f"{row['method']}, {extra}" if extra else str(row["method"])


def _line(panels: Sequence[Axes], number: int, name: str, rows: Sequence[ResultRow], last: int) -> None:
    """One method in the three panels of a task."""
    if not rows:
        return
    look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)]}
    first = rows[0]["stop"]
    main = [row for row in rows if row["stop"] == first]
    lengths = sorted({row["length"] for row in main})
    solid = look | {"linestyle": DASHES[number % len(DASHES)], "marker": MARKS[number % len(MARKS)]}
    every = max(1, len(lengths) // 6)
    label = f"{name} ({first})".replace("$", r"\$")
    panels[0].plot(lengths, _means(main, lengths, "accuracy"), markevery=every, label=label, **solid)
    panels[1].plot(lengths, _means(main, lengths, "mean_steps"), markevery=every, **solid)
    held = [n for n in lengths if any(row["length"] == n and row["held_from"] is not None for row in main)]
    panels[1].plot(held, _means(main, held, "held_from"), linestyle=":", linewidth=1, **look)
    _compute(
        panels[2], [row for row in rows if row["length"] > last] or rows, look, MARKS[number % len(MARKS)]
    )


def _compute(panel: Axes, rows: Sequence[ResultRow], look: Mapping[str, Any], mark: str) -> None:
    """A point for each rule, and beside it what leaving at random is worth."""
    points: list[tuple[float, float, float | None]] = []
    for stop in dict.fromkeys(row["stop"] for row in rows):
        group = [row for row in rows if row["stop"] == stop]
        share = fmean(row["mean_steps"] / row["needed"] for row in group)
        control = [row["random_exit"] for row in group if row["random_exit"] is not None]
        points.append((share, fmean(row["accuracy"] for row in group), fmean(control) if control else None))
    points.sort()
    panel.plot([p[0] for p in points], [p[1] for p in points], marker=mark, **look)
    known = [(x, c) for x, _, c in points if c is not None]
    panel.plot(
        [x for x, _ in known], [c for _, c in known],
        marker=mark, markerfacecolor="none", linestyle="--", linewidth=0.8, **look,
    )  # fmt: skip


def _frame(panels: Sequence[Axes], task: str, rows: Sequence[ResultRow], last: int) -> None:
    """Axes, the training length, and T(n) as a reference."""
    lengths = sorted({row["length"] for row in rows})
    needed = [next(row["needed"] for row in rows if row["length"] == n) for n in lengths]
    panels[1].plot(lengths, needed, color=FAINT, linestyle="--", linewidth=1, label="T(n)")
    panels[0].set(title=task.replace("_", " "), xlabel="length", ylim=(-0.03, 1.03))
    panels[1].set(xlabel="length")
    panels[2].set(xlabel="loop steps / T(n)", ylim=(-0.03, 1.03))
    if last:
        for panel in panels[:2]:
            panel.axvline(last, color=FAINT, linestyle="--", linewidth=1)


def _means(rows: Sequence[ResultRow], lengths: Sequence[int], field: str) -> list[float]:
    """The mean over seeds at each length."""
    return [
        fmean(row[field] for row in rows if row["length"] == n and row[field] is not None) for n in lengths
    ]


def _legend(figure: Figure) -> tuple[list[Any], list[str]]:
    found: dict[str, Any] = {}
    for panel in figure.axes:
        handles, labels = panel.get_legend_handles_labels()
        for handle, label in zip(handles, labels, strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
