"""Results to figures: pure functions of rows, in one house style. Needs no torch and no run folder.

A row is what `looped evaluate` writes, `{"task", "method", "seed", "length", "stop", "accuracy", …}`; with `"step"`,
`"surprise"` and `"chosen"` it is one loop step of the figure `stopping`. Every function returns a matplotlib figure and
`save` writes it; the same rows give the same bytes. `looped.result_files` reads the rows.

Colours, marks and dashes differ in grey too; panels stand in rows, with one legend for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator

from looped.errors import InputError
from looped.result_files import is_number, over_seeds, reach_text, read_length_sweeps, read_metrics, read_rows

__all__ = [
    "COLOURS", "STYLE", "SUFFIXES", "accuracy_by_length", "by_step", "halting", "is_halting", "length_sweep",
    "programs", "read_length_sweeps", "read_metrics", "read_rows", "save", "training",
]  # fmt: skip

STYLE = str(Path(__file__).with_name("house.mplstyle"))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (6, 2, 1, 2)))
INK, FAINT = "#222222", "#888888"
SUFFIXES = (".svg", ".png", ".pdf")
COLUMNS = 3  # panels side by side
ResultRow = Mapping[str, Any]
SweepSummary = Mapping[str, Any]
Grids = Mapping[str, Sequence[Sequence[str]]]  # variable → step × position


def save(figure: Figure, path: Path) -> None:
    """Write SVG, PNG or PDF, by the name's ending; nothing in the file tells when."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"a figure's name ends in {', '.join(SUFFIXES)}, not {path.suffix or 'nothing'!r}")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no plain file, so it is not written")
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # whole, or the old one stays
    try:
        with matplotlib.rc_context(fname=STYLE):
            figure.savefig(temporary, format=path.suffix[1:], metadata=dates[path.suffix])
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path} could not be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def panels_of(count: int) -> tuple[Figure, list[Axes]]:
    """A figure of so many panels, in rows of `COLUMNS`, four in two rows; the last row may have places left over."""
    columns = 2 if count == 4 else min(COLUMNS, max(1, count))
    rows = -(-count // columns)
    width, height = (4.2, 2.4) if count == 1 else (2.5, 2.0)
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.6))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels


def label_rows(panels: Sequence[Axes], words: str) -> None:
    """Say what lies upwards, once a row of panels."""
    for panel in panels:
        place = panel.get_subplotspec()
        if place is not None and place.is_first_col():
            panel.set_ylabel(words)


def legend(figure: Figure, names: Sequence[str], title: str) -> None:
    """One legend below all panels, in the order of `names` where there are any; and the title."""
    found: dict[str, Any] = {}
    for each in figure.axes:
        handles, labels = each.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    order = [name for name in map(words, names) if name in found] or list(found)
    if len(order) > 1 or names:
        handles = [found[name] for name in order]
        figure.legend(handles, order, loc="outside lower center", ncols=min(4, len(order)))
    if title:
        figure.suptitle(title, parse_math=False)


def words(name: str) -> str:
    """A name as it stands in a figure; a dollar is a dollar there, not the start of a formula."""
    return name.replace("_", " ").replace("$", r"\$")


def look_of(number: int) -> dict[str, Any]:
    """Colour, dashes and mark of a line, told apart in grey too."""
    looks = {"color": COLOURS, "linestyle": DASHES, "marker": MARKS}
    return {name: each[number % len(each)] for name, each in looks.items()}


CLOSEST = 1.15  # how many times the last one named a length must be, to be named on an axis of doublings


def accuracy_by_length(
    rows: Iterable[ResultRow],
    trained: Mapping[str, int] | None = None,
    title: str = "",
    doubling: bool = False,
    score: str = "exact match",
) -> Figure:
    """A panel for each task, a line for each method (and rule, where several are there); mean ± standard error.

    The longest training length is a dashed upright; with `doubling`, every doubling of the length takes the same
    width. `score` says what kind of accuracy the rows have.
    """
    groups = _by_task(rows)
    names = list(dict.fromkeys(name for task in groups.values() for name in task))
    with matplotlib.rc_context(fname=STYLE):
        figure, panels = panels_of(len(groups))
        for panel, (task, series) in zip(panels, groups.items(), strict=False):
            for number, name in enumerate(names):
                if name in series:
                    _length_line(panel, number, name, series[name])
            panel.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
            if doubling:
                _doubling(panel, sorted({length for values in series.values() for length in values}))
            if trained and task in trained:
                _mark_trained(panel, trained[task])
            panel.set(title=words(task), xlabel="length", ylim=(-0.03, 1.03))
        label_rows(panels, score)
        legend(figure, names, title)
    return figure


def _by_task(rows: Iterable[ResultRow]) -> dict[str, dict[str, dict[int, dict[object, float]]]]:
    """task → line → length → seed → accuracy; raises where a seed has two, which are of different runs."""
    listed = list(rows)
    fields = ("recipe", "variant", "stop", "family")
    several = [field for field in fields if len({row.get(field) for row in listed}) > 1]
    found: dict[str, dict[str, dict[int, dict[object, float]]]] = {}
    for row in listed:
        name = ", ".join([str(row["method"]), *(str(row[field]) for field in several if row.get(field))])
        seeds = found.setdefault(row["task"], {}).setdefault(name, {}).setdefault(row["length"], {})
        seed = len(seeds) if row.get("seed") is None else str(row["seed"])  # a number: a row without a seed
        accuracy = float(row["accuracy"])
        if seeds.setdefault(seed, accuracy) != accuracy:
            raise InputError(
                f"{row['task']} at length {row['length']} has two accuracies for seed {str(seed)[:20]} of {name}: "
                "these are different runs; draw each by itself"
            )
    return found


def _length_line(panel: Axes, number: int, name: str, values: Mapping[int, Mapping[object, float]]) -> None:
    lengths, look = sorted(values), look_of(number)
    spreads = [over_seeds([*values[n].values()]) for n in lengths]
    every = max(1, len(lengths) // 8)
    panel.plot(lengths, [each.mean for each in spreads], markevery=every, label=words(name), **look)
    low = [each.mean - (each.error or 0.0) for each in spreads]
    high = [each.mean + (each.error or 0.0) for each in spreads]
    panel.fill_between(lengths, low, high, color=look["color"], alpha=0.15, linewidth=0)


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


def _means(rows: Sequence[ResultRow], by: str, places: Sequence[int], field: str) -> list[float]:
    """The mean of a field over seeds at each length, or at each step."""
    known = [row for row in rows if row[field] is not None]
    return [fmean(row[field] for row in known if row[by] == place) for place in places]


def by_step(rows: Iterable[ResultRow], title: str = "") -> Figure:
    """Accuracy and NLL of the argmax after every loop step, by task and length, with the chosen step."""
    groups: dict[tuple[str, int], list[ResultRow]] = {}
    for row in rows:
        if not {"step", "surprise", "chosen"} <= row.keys():
            raise InputError(
                "these rows have no loop steps: a figure by step needs `step`, `surprise` and `chosen`"
            )
        groups.setdefault((row["task"], row["length"]), []).append(row)
    with matplotlib.rc_context(fname=STYLE):
        figure, panels = panels_of(len(groups))
        for panel, ((task, length), found) in zip(panels, groups.items(), strict=False):
            steps = sorted({row["step"] for row in found})
            exact, surprise = (_means(found, "step", steps, field) for field in ("accuracy", "surprise"))
            panel.plot(steps, exact, color=COLOURS[0], label="exact match")
            panel.set(title=f"{words(task)}, length {length}", xlabel="loop step", ylim=(-0.03, 1.03))
            other, own = panel.twinx(), "cross entropy with its own answer"
            other.plot(steps, surprise, color=COLOURS[1], linestyle="--", label=own)
            other.grid(visible=False)
            for chosen in sorted({row["chosen"] for row in found}):
                panel.axvline(chosen, color=FAINT, linestyle=":", linewidth=1.2, label="step chosen")
        label_rows(panels, "exact match")
        other.set_ylabel("cross entropy")
        legend(figure, [], title)
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
            steps, colour = [row["step"] for row in own], COLOURS[number % len(COLOURS)]
            look: dict[str, Any] = {"color": colour, "linewidth": 1, "label": f"seed {seed}"}
            left.plot(steps, [max(row["loss"], 1e-9) for row in own], **look)
            right.plot(steps, [row["accuracy"] for row in own], **look)
        left.set(title="loss", xlabel="gradient step", yscale="log")
        right.set(title="exact match in training", xlabel="gradient step", ylim=(-0.03, 1.03))
        legend(figure, [], title)
    return figure


# --- n-RASP-L programs at work: every variable after every step, position by position -------------------------


def programs(traces: Sequence[tuple[str, Sequence[str], Grids]]) -> Figure:
    """Programs at work: for each (name, input row, variable → step × position), a grid of symbols.

    Steps run down, positions across; a cell that changed since the step before is shaded.
    """
    with matplotlib.rc_context(fname=STYLE):
        heights = [sum(len(grid) + 1 for grid in variables.values()) + 2 for _, _, variables in traces]
        widths = [len(row) + 4 for _, row, _ in traces]
        figure = Figure(figsize=(0.3 * sum(widths) + 0.3, 0.27 * max(heights) + 0.3))
        panels = figure.subplots(1, len(traces), squeeze=False, width_ratios=widths)[0]
        for panel, (name, row, variables) in zip(panels, traces, strict=True):
            _program(panel, name, row, variables, max(heights))
    return figure


def _program(panel: Axes, name: str, row: Sequence[str], variables: Grids, height: int) -> None:
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


# --- learned halting: a column for each task, three panels in it ------------------------------------------------


NEEDED = ("stop", "mean_steps", "needed", "held_from", "random_exit")
TALL, WIDE = 1.9, 2.5  # inches of a panel


def is_halting(row: ResultRow) -> bool:
    """Whether a row tells what a model has discovered."""
    numbers = all(row.get(field) is None or is_number(row[field]) for field in NEEDED[1:])
    told = all(field in row for field in NEEDED) and numbers
    return told and all(is_number(row[field]) and row[field] > 0 for field in ("mean_steps", "needed"))


def halting(rows: Iterable[ResultRow], trained: Mapping[str, int] | None = None, title: str = "") -> Figure:
    """A column for each task, a line for each method or variant, from the rows of `looped discover`. From above:

    exact match by length        under each line's first stopping rule
    loop steps by length         the same; dotted: the step from which the answer is held; grey: T(n)
    exact match by loop steps    every rule of a line, past the training lengths, steps as a share of T(n);
                                 hollow: leaving at random, with as many steps on average
    """
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
        for task, panels in zip(tasks, grid.T, strict=True):
            own = [row for row in listed if row["task"] == task]
            last = (trained or {}).get(task, 0)
            for number, name in enumerate(names):
                if found := [row for row in own if name_of(row) == name]:
                    _line(panels, number, name, found, last)
            _frame(panels, task, own, last)
        for panel, words in zip(grid[:, 0], ("exact match", "loop steps", "exact match"), strict=True):
            panel.set_ylabel(words)
        legend(figure, [], title)
    return figure


def name_of(row: ResultRow) -> str:
    """A line's name: the method, and its variant where it is one."""
    return ", ".join(str(row[field]) for field in ("method", "variant") if row.get(field))


def _line(panels: Sequence[Axes], number: int, name: str, rows: Sequence[ResultRow], last: int) -> None:
    """One method in the three panels of a task."""
    look, first = look_of(number), rows[0]["stop"]
    main = [row for row in rows if row["stop"] == first]
    lengths = sorted({row["length"] for row in main})
    every = max(1, len(lengths) // 6)
    label = f"{name} ({first})".replace("$", r"\$")
    panels[0].plot(lengths, _means(main, "length", lengths, "accuracy"), markevery=every, label=label, **look)
    panels[1].plot(lengths, _means(main, "length", lengths, "mean_steps"), markevery=every, **look)
    held = sorted({row["length"] for row in main if row["held_from"] is not None})
    since = _means(main, "length", held, "held_from")
    panels[1].plot(held, since, color=look["color"], linestyle=":", linewidth=1)
    beyond = [row for row in rows if row["length"] > last]
    _compute(panels[2], beyond or rows, look["color"], look["marker"])


def _compute(panel: Axes, rows: Sequence[ResultRow], colour: str, mark: str) -> None:
    """A point for each rule, and beside it what leaving at random is worth."""
    points, controls = [], []
    for stop in dict.fromkeys(row["stop"] for row in rows):
        group = [row for row in rows if row["stop"] == stop]
        share = fmean(row["mean_steps"] / row["needed"] for row in group)
        points.append((share, fmean(row["accuracy"] for row in group)))
        if known := [row["random_exit"] for row in group if row["random_exit"] is not None]:
            controls.append((share, fmean(known)))
    hollow: dict[str, Any] = {"markerfacecolor": "none", "linestyle": "--", "linewidth": 0.8}
    for found, look in ((points, {}), (controls, hollow)):
        panel.plot(*np.array(sorted(found)).reshape(-1, 2).T, marker=mark, color=colour, **look)


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


# --- the length sweep: how far every seed is exact ----------------------------------------------------------
#
# A row for each model, a bar for each stopping rule, lengths on a logarithmic axis:
#
#     addition  ████┆██|███◆████▒▒▒▒▒▒▒▒  60, uniform 100
#
#     ┆ trained to    | the paper    █ L99, worst input distribution    ◆ L999, the same    ▒ L99 on uniform inputs
#
# The number behind a bar is the worst input distribution's L99, and the uniform one where it differs: `≥` where
# longer lengths have not been measured, `×` where not even the first length holds.
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
        uniform, worst = reach.get((UNIFORM, stop)), reach.get((WORST, stop))
        if uniform is None:
            continue
        colour = COLOURS[i % len(COLOURS)]
        for entry, strength in ((uniform, 1.0 if worst is None else 0.3), (worst, 1.0)):
            if entry is not None and entry["L99"] is not None:
                size: dict[str, Any] = {"height": 0.86 * thick, "left": first, "alpha": strength}
                panel.barh(y, entry["L99"] - first, color=colour, linewidth=0, **size)
        strict = (worst or uniform)["L999"]
        if strict is not None:
            panel.plot([strict], [y], "D", color="white", markeredgecolor=INK, markeredgewidth=0.7, zorder=4)
        _label(panel, y, first, each["paper"], uniform, worst)
    top, bottom = number - THICK / 2 - 0.04, number + THICK / 2 + 0.04
    for width, colour, dashes in ((3.6, "white", "-"), (1.6, "#555555", TRAINED)):  # white: off the bars
        look: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": width}
        panel.plot([each["trained"]] * 2, [top, bottom], zorder=3, **look)
    panel.plot([each["paper"]] * 2, [top, bottom], color=INK, linewidth=1.8, zorder=3)


def _label(
    panel: Axes, y: float, first: float, paper: int, uniform: SweepSummary, worst: SweepSummary | None
) -> None:
    """The number behind the longer bar: the worst input distribution's, and the uniform one where it differs."""
    told = [reach_text(entry, nowhere="×") for entry in (worst, uniform) if entry is not None]
    text = told[0] if len(set(told)) == 1 else f"{told[0]}, uniform {told[1]}"
    reached = [entry["L99"] for entry in (uniform, worst) if entry is not None and entry["L99"] is not None]
    at = max([*reached, first])
    if at < paper < 1.3 * at:  # no room before the paper's line
        at = paper
    panel.annotate(
        text, (at, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=6.5, color=INK, zorder=5,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
    )  # fmt: skip


def _names(sweeps: Sequence[SweepSummary]) -> list[str]:
    """Tasks; where one stands more than once, with its recipe, or else with its run."""
    plain = [each["task"].replace("_", " ") for each in sweeps]
    names = []
    for task, each in zip(plain, sweeps, strict=True):
        twins = [other.get("recipe") for other in sweeps if other["task"] == each["task"]]
        recipe = each.get("recipe")
        names.append(
            task if len(twins) == 1 else f"{task}, {recipe if twins.count(recipe) == 1 else each['run']}"
        )
    return names


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
