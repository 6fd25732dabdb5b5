"""The length sweep as a figure, in the house style: a pure function of a sweep's result file. Needs no torch.

A row for each model, a bar for each stopping rule, lengths on a logarithmic axis:

    addition  ████┆██|███◆████▒▒▒▒▒▒▒▒  60, uniform 100

    ┆ trained to    | the paper    █ L99, worst input distribution    ◆ L999, the same    ▒ L99 on uniform inputs

The number behind a bar is the worst input distribution's L99, and the uniform one where it differs: `≥` where
longer lengths have not been measured, `×` where not even the first length holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from looped.figures.curves import COLOURS, INK, STYLE

SweepSummary = Mapping[str, Any]
UNIFORM, WORST = "uniform", "all families"
TRAINED = (0, (2, 1))  # dashes of the training length
THICK = 0.8  # of a row, for all its bars


def length_sweep(sweeps: Sequence[SweepSummary], title: str = "") -> Figure:
    """A row for each model, from top to bottom; the training length, the paper's and how far each rule reaches."""
    stops = list(dict.fromkeys(entry["stop"] for each in sweeps for entry in each["reach"]))
    marks = sorted({length for each in sweeps for length in each["lengths"]})
    first = min(*marks, *(each["trained"] for each in sweeps)) / 1.5
    with matplotlib.rc_context(fname=STYLE):
        figure = Figure(figsize=(6.2, 0.9 + len(sweeps) * (0.16 + 0.17 * max(1, len(stops)))))
        panel = figure.subplots()
        for number, each in enumerate(sweeps):
            _row(panel, number, each, stops, first)
        panel.set_xscale("log")
        panel.set(xlim=(first, 1.35 * marks[-1]), ylim=(len(sweeps) - 0.4, -0.6), xlabel="length")
        panel.set_title(title, parse_math=False)
        panel.set_xticks(_apart(marks), [str(mark) for mark in _apart(marks)], minor=False)
        panel.set_xticks([], minor=True)
        panel.set_yticks(range(len(sweeps)), _names(sweeps))
        panel.tick_params(axis="y", length=0)
        panel.grid(visible=False, axis="y")
        handles = _legend(stops, sweeps)
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def _row(panel: Axes, number: int, each: SweepSummary, stops: Sequence[str], first: float) -> None:
    """The bars of one model, then its training length and the paper's over them."""
    thick = THICK / max(1, len(stops))
    reach = {(entry["inputs"], entry["stop"]): entry for entry in each["reach"]}
    for i, stop in enumerate(stops):
        y = number + (i + 0.5) * thick - THICK / 2
        uniform = reach.get((UNIFORM, stop))
        if uniform is None:
            continue
        worst = reach.get((WORST, stop))
        colour = COLOURS[i % len(COLOURS)]
        for entry, strength in ((uniform, 1.0 if worst is None else 0.3), (worst, 1.0)):
            if entry is not None and entry["L99"] is not None:
                size: dict[str, Any] = {"height": 0.86 * thick, "left": first, "alpha": strength}
                panel.barh(y, entry["L99"] - first, color=colour, linewidth=0, **size)
        strict = (worst or uniform)["L999"]
        if strict is not None:
            panel.plot([strict], [y], "D", color="white", markeredgecolor=INK, markeredgewidth=0.7, zorder=4)
        _label(panel, y, first, uniform, worst)
    top, bottom = number - THICK / 2 - 0.04, number + THICK / 2 + 0.04
    for width, colour, dashes in (
        (3.6, "white", "-"),
        (1.6, "#555555", TRAINED),
    ):  # white keeps it off the bars
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": width}
        panel.plot([each["trained"]] * 2, [top, bottom], zorder=3, **look)
    panel.plot([each["paper"]] * 2, [top, bottom], color=INK, linewidth=1.8, zorder=3)


def _label(panel: Axes, y: float, first: float, uniform: SweepSummary, worst: SweepSummary | None) -> None:
    """The number behind the longer bar: the worst input distribution's, and the uniform one where it differs."""
    told = [_told(entry) for entry in (worst, uniform) if entry is not None]
    text = told[0] if len(set(told)) == 1 else f"{told[0]}, uniform {told[1]}"
    reached = [entry["L99"] for entry in (uniform, worst) if entry is not None and entry["L99"] is not None]
    at = max([*reached, first])
    panel.annotate(
        text, (at, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=6.5, color=INK, zorder=5,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
    )  # fmt: skip


def _told(entry: SweepSummary) -> str:
    end = entry["L99_ended_by"]
    open_end = end is not None and end.get("accuracy") is None
    if entry["L99"] is None:
        return "?" if open_end else "×"
    return f"≥ {entry['L99']}" if open_end else str(entry["L99"])


def _names(sweeps: Sequence[SweepSummary]) -> list[str]:
    """Tasks; where one stands more than once, with its recipe, or else with its run."""
    plain = [each["task"].replace("_", " ") for each in sweeps]
    longer = [f"{name}, {each.get('recipe')}" for name, each in zip(plain, sweeps, strict=True)]
    longest = [f"{name}, {each['run']}" for name, each in zip(plain, sweeps, strict=True)]
    return [
        a if plain.count(a) == 1 else b if longer.count(b) == 1 else c
        for a, b, c in zip(plain, longer, longest, strict=True)
    ]


def _apart(marks: Sequence[int]) -> list[int]:
    """Lengths whose numbers do not overlap on a logarithmic axis, the longest kept."""
    kept: list[int] = []
    for mark in reversed(marks):
        if not kept or kept[-1] / mark > 1.18:
            kept.append(mark)
    return kept[::-1]


def _legend(stops: Sequence[str], sweeps: Sequence[SweepSummary]) -> list[Patch | Line2D]:
    families = any(entry["inputs"] == WORST for each in sweeps for entry in each["reach"])
    rules = [Patch(color=COLOURS[i % len(COLOURS)], label=f"stop: {stop}") for i, stop in enumerate(stops)]
    worst = ", worst inputs" if families else ""
    return [
        *rules,
        Patch(color=INK, label=f"L99{worst}"),
        *([Patch(color=INK, alpha=0.3, linewidth=0, label="L99, uniform")] if families else []),
        Line2D([], [], marker="D", linestyle="", color="white", markeredgecolor=INK, label=f"L999{worst}"),
        Line2D([], [], color="#555555", linestyle=TRAINED, linewidth=1.6, label="trained to"),
        Line2D([], [], color=INK, linewidth=1.8, label="the paper"),
    ]
