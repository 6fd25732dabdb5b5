"""Curves: exact match against length, accuracy and confidence after every loop step, a run's loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from looped.errors import InputError
from looped.figures.reading import ResultRow
from looped.figures.style import COLOURS, DASHES, FAINT, MARKS, STYLE, label_rows, legend, panels_of, words

CLOSEST = 1.15  # how many times the last one named a length must be, to be named on an axis of doublings


def accuracy_by_length(
    rows: Iterable[ResultRow],
    trained: Mapping[str, int] | None = None,
    title: str = "",
    lines: Sequence[str] = (),
    doubling: bool = False,
) -> Figure:
    """A panel for each task, a line for each method (and rule, where several are there); mean ± standard error.

    The longest training length is a dashed upright; `lines` fixes the order of the legend; with `doubling`, every
    doubling of the length takes the same width.
    """
    groups = _by_task(rows)
    names = [*lines, *dict.fromkeys(name for task in groups.values() for name in task)]
    names = [name for name in dict.fromkeys(names) if any(name in task for task in groups.values())]
    with matplotlib.rc_context(fname=STYLE):
        figure, panels = panels_of(len(groups))
        for panel, (task, series) in zip(panels, groups.items(), strict=False):
            for name in names:
                if name in series:
                    _length_line(panel, names.index(name), name, series[name])
            panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
            if doubling:
                _doubling(panel, sorted({length for values in series.values() for length in values}))
            if task in (trained or {}):
                _mark_trained(panel, (trained or {})[task])
            panel.set(title=words(task), xlabel="length", ylim=(-0.03, 1.03))
        label_rows(panels, "exact match")
        legend(figure, names, title)
    return figure


def _by_task(rows: Iterable[ResultRow]) -> dict[str, dict[str, dict[int, list[float]]]]:
    """task → line → length → accuracies, one a seed; raises where a seed has two, which are of different runs."""
    listed = list(rows)
    known: dict[tuple[object, ...], float] = {}
    fields = ("recipe", "variant", "stop", "family")
    several = {field: len({row.get(field) for row in listed}) > 1 for field in fields}
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in listed:
        extra = [str(row[field]) for field in several if several[field] and row.get(field)]
        name = ", ".join([str(row["method"]), *extra])
        accuracy = float(row["accuracy"])
        if row.get("seed") is not None:
            key = (row["task"], name, row["length"], str(row["seed"]))
            if known.get(key, accuracy) != accuracy:
                raise InputError(
                    f"{row['task']} at length {row['length']} has two accuracies for seed {key[3][:20]} of {name}: "
                    "these are different runs; draw each by itself"
                )
            if key in known:  # the same row from another file
                continue
            known[key] = accuracy
        found.setdefault(row["task"], {}).setdefault(name, {}).setdefault(row["length"], []).append(accuracy)
    return found


def _length_line(panel: Axes, number: int, name: str, values: Mapping[int, Sequence[float]]) -> None:
    lengths = sorted(values)
    means = [fmean(values[n]) for n in lengths]
    errors = [_error(values[n]) for n in lengths]
    colour = COLOURS[number % len(COLOURS)]
    panel.plot(
        lengths, means, color=colour, linestyle=DASHES[number % len(DASHES)], marker=MARKS[number % len(MARKS)],
        markevery=max(1, len(lengths) // 8), label=words(name),
    )  # fmt: skip
    low = [mean - error for mean, error in zip(means, errors, strict=True)]
    high = [mean + error for mean, error in zip(means, errors, strict=True)]
    panel.fill_between(lengths, low, high, color=colour, alpha=0.15, linewidth=0)


def _doubling(panel: Axes, lengths: Sequence[int]) -> None:
    """A logarithmic axis that names the lengths themselves, as far as their names do not touch."""
    named: list[int] = []
    for length in lengths:
        if not named or length >= CLOSEST * named[-1]:
            named.append(length)
    panel.set_xscale("log")
    panel.set_xticks(named, [str(length) for length in named])
    panel.minorticks_off()


def _mark_trained(panel: Axes, trained: int) -> None:
    """A dashed upright at the longest training length, its words on the side where there is room."""
    panel.axvline(trained, color=FAINT, linestyle="--", linewidth=1)
    low, here = (
        float(panel.transAxes.inverted().transform(panel.transData.transform((x, 0)))[0])
        for x in (panel.get_xlim()[0], trained)
    )
    side = -1 if here - low > 0.12 else 1
    panel.annotate(
        "trained to here", (trained, 0.02), xytext=(3 * side, 0), textcoords="offset points",
        fontsize=6.5, color=FAINT, rotation=90, va="bottom", ha="right" if side < 0 else "left",
    )  # fmt: skip


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean over seeds; 0 for one."""
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def by_step(rows: Iterable[ResultRow], title: str = "") -> Figure:
    """Accuracy and surprise after every loop step, a panel for each task and length; the chosen step marked."""
    groups: dict[tuple[str, int], list[ResultRow]] = {}
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


def training(metrics: Iterable[ResultRow], title: str = "") -> Figure:
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
