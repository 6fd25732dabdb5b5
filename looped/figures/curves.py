"""The house style, and the figures in it: accuracy by length or loop step, a run's loss, programs, learned halting.

Colours, marks and dashes differ in grey too; panels stand in rows, with one legend for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from looped.errors import InputError
from looped.result_files import is_number, over_seeds

STYLE = str(Path(__file__).with_name("house.mplstyle"))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (6, 2, 1, 2)))
INK, FAINT = "#222222", "#888888"
SUFFIXES = (".svg", ".png", ".pdf")
COLUMNS = 3  # panels side by side


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
    """A figure of so many panels, in rows of `COLUMNS`; the last row may have places left over."""
    columns = min(COLUMNS, max(1, count))
    rows = -(-count // columns)
    width, height = (4.2, 2.4) if count == 1 else (2.5, 2.0)
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.6))
    panels = [panel for line in figure.subplots(rows, columns, squeeze=False) for panel in line]
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels


def label_rows(panels: Sequence[Axes], words: str) -> None:
    """What lies upwards, said once a row of panels."""
    for panel in panels[::COLUMNS]:
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


ResultRow = Mapping[str, Any]
CLOSEST = 1.15  # how many times the last one named a length must be, to be named on an axis of doublings


def accuracy_by_length(
    rows: Iterable[ResultRow],
    trained: Mapping[str, int] | None = None,
    title: str = "",
    doubling: bool = False,
) -> Figure:
    """A panel for each task, a line for each method (and rule, where several are there); mean ± standard error.

    The longest training length is a dashed upright; with `doubling`, every doubling of the length takes the same
    width.
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
            if task in (trained or {}):
                _mark_trained(panel, (trained or {})[task])
            panel.set(title=words(task), xlabel="length", ylim=(-0.03, 1.03))
        label_rows(panels, "exact match")
        legend(figure, names, title)
    return figure


def _by_task(rows: Iterable[ResultRow]) -> dict[str, dict[str, dict[int, list[float]]]]:
    """task → line → length → accuracies, one per seed; raises where a seed has two, which are of different runs."""
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
    spreads = [over_seeds(values[n]) for n in lengths]
    means, errors = [each.mean for each in spreads], [each.error or 0.0 for each in spreads]
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
        labels = [str(line.get_label()) for line in handles]
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
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
            look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "linewidth": 1}
            look |= {"label": f"seed {seed}"}
            left.plot([row["step"] for row in own], [max(row["loss"], 1e-9) for row in own], **look)
            right.plot([row["step"] for row in own], [row["accuracy"] for row in own], **look)
        left.set(title="loss", xlabel="gradient step", yscale="log")
        right.set(title="exact match in training", xlabel="gradient step", ylim=(-0.03, 1.03))
        legend(figure, [], title)
    return figure


# --- n-RASP-L programs at work: every variable after every step, position by position -------------------------


def programs(traces: Sequence[tuple[str, Sequence[str], Mapping[str, Sequence[Sequence[str]]]]]) -> Figure:
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
        for column, task in enumerate(tasks):
            panels = [grid[i][column] for i in range(3)]
            own = [row for row in listed if row["task"] == task]
            last = (trained or {}).get(task, 0)
            for number, name in enumerate(names):
                _line(panels, number, name, [row for row in own if name_of(row) == name], last)
            _frame(panels, task, own, last)
        for panel, words in zip(grid[:, 0], ("exact match", "loop steps", "exact match"), strict=True):
            panel.set_ylabel(words)
        legend(figure, [], title)
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
    beyond = [row for row in rows if row["length"] > last]
    _compute(panels[2], beyond or rows, look, MARKS[number % len(MARKS)])


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
    known = [row for row in rows if row[field] is not None]
    return [fmean(row[field] for row in known if row["length"] == n) for n in lengths]
