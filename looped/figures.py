"""Results to figures: pure functions of rows, in one house style. Needs no torch and no run folder.

A row is what `looped evaluate` writes, `{"task", "method", "seed", "length", "stop", "accuracy", …}`; with `"step"`,
`"surprise"` and `"chosen"` it is one loop step of the figure `stopping`. Every function returns a matplotlib figure and
`save` writes it; the same rows give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from looped import serial
from looped.errors import InputError

Row = Mapping[str, Any]
STYLE = str(Path(__file__).with_name("house.mplstyle"))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (6, 2, 1, 2)))
SUFFIXES = (".svg", ".png", ".pdf")
LARGEST_FILE = 256 * 2**20
COLUMNS = 3  # panels side by side
CLOSEST = 1.15  # how many times the last one named a length must be, to be named on an axis of doublings
INK, FAINT = "#222222", "#888888"


# --- reading and writing ------------------------------------------------------------------------------------
def read_rows(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Rows of result files, and the longest training length of each task the files name."""
    rows: list[dict[str, Any]] = []
    trained: dict[str, int] = {}
    for path in paths:
        found = _parse(path, _text(path))
        rows += found[0]
        trained |= found[1]
    if not rows:
        raise InputError("there are no rows to draw in " + ", ".join(map(str, paths)))
    return rows, trained


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a last line that was cut off is left out."""
    lines = _text(path).splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = serial.parse(line, f"line {number} of {path}")
        except InputError:
            if number == len(lines):
                break
            raise
        if not isinstance(row, dict) or (row.get("kind") == "training" and not _fits(row, _TRAINING)):
            raise InputError(f"line {number} of {path} is no line of a run's metrics")
        rows.append(row)
    return rows


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is too large for a file of results")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a file of results: {_reason(error)}") from None


def _parse(path: Path, text: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    lines = [line for line in text.splitlines() if line.strip()]
    whole: Any
    try:
        whole = serial.parse(text, str(path))
    except InputError:  # rows may also stand one on a line
        if len(lines) == 1:
            raise
        whole = {"rows": [serial.parse(line, str(path)) for line in lines]}
    rows = whole.get("rows") if isinstance(whole, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f'{path} is no file of results: it has no list of "rows"')
    for row in rows:
        for field, check in _NEEDED.items():
            if not check(row.get(field)):
                raise InputError(f"{path} is no file of results: a row has no valid {field!r}")
        for field, check in _OPTIONAL.items():
            if row.get(field) is not None and not check(row[field]):
                raise InputError(f"{path} is no file of results: a row has no valid {field!r}")
        if not 0 <= row["accuracy"] <= 1:
            raise InputError(f"{path} is no file of results: an accuracy lies outside 0 to 1")
    return rows, _trained(whole.get("provenance"))


def is_text(value: object) -> bool:
    """Whether a value can be printed in a figure."""
    return isinstance(value, str) and len(value) <= 200 and value.isprintable()


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of a size that can be drawn."""
    return type(value) is int and abs(value) <= 10**9


def is_number(value: object) -> bool:
    """Whether a value is a number of a size that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e9


_NEEDED = {"task": is_text, "method": is_text, "length": is_whole, "accuracy": is_number}
_OPTIONAL = {
    "recipe": is_text, "stop": is_text, "family": is_text, "variant": is_text,
    "step": is_whole, "chosen": is_whole, "surprise": is_number,
}  # fmt: skip
_TRAINING = {"step": is_whole, "seed": is_whole, "loss": is_number, "accuracy": is_number}


def _fits(row: Row, checks: Mapping[str, Callable[[object], bool]]) -> bool:
    """Whether a line has these fields, each of its kind or null."""
    return all(field in row and (row[field] is None or check(row[field])) for field, check in checks.items())


def _trained(provenance: Any) -> dict[str, int]:
    """Longest training length by task, where the provenance's configurations tell."""
    found: dict[str, int] = {}
    runs = provenance.get("runs") if isinstance(provenance, dict) else None
    single = provenance.get("config") if isinstance(provenance, dict) else None
    configs = (
        [run.get("config") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else [single]
    )
    for config in configs:
        if isinstance(config, dict) and is_whole(config.get("max_length")):
            found[str(config.get("task"))] = config["max_length"]
    return found


def _reason(error: Exception) -> str:
    return error.strerror or "no reason given" if isinstance(error, OSError) else "it is not text"


def save(figure: Figure, path: Path) -> None:
    """Writes SVG, PNG or PDF, by the name's ending; nothing in the file tells when."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"a figure's name ends in {', '.join(SUFFIXES)}, not {path.suffix or 'nothing'!r}")
    if not path.parent.is_dir():
        raise InputError(f"there is no folder {path.parent} to write {path.name} into")
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
    with matplotlib.rc_context(fname=STYLE):
        figure.savefig(path, metadata=dates[path.suffix])


# --- accuracy by length -------------------------------------------------------------------------------------
def accuracy_by_length(
    rows: Iterable[Row],
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
        figure, panels = _panels(len(groups))
        for panel, (task, series) in zip(panels, groups.items(), strict=False):
            for name in names:
                if name in series:
                    _line(panel, names.index(name), name, series[name])
            if doubling:
                _doubling(panel, sorted({length for values in series.values() for length in values}))
            if task in (trained or {}):
                _mark(panel, (trained or {})[task])
            panel.set(title=_words(task), xlabel="length", ylim=(-0.03, 1.03))
        _label(panels, "exact match")
        _legend(figure, panels[0], names, title)
    return figure


def _by_task(rows: Iterable[Row]) -> dict[str, dict[str, dict[int, list[float]]]]:
    """task → line → length → accuracies, one a seed."""
    listed = list(rows)
    fields = ("recipe", "variant", "stop", "family")
    several = {field: len({row.get(field) for row in listed}) > 1 for field in fields}
    found: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in listed:
        extra = [str(row[field]) for field in several if several[field] and row.get(field)]
        name = ", ".join([str(row["method"]), *extra])
        lengths = found.setdefault(row["task"], {}).setdefault(name, {})
        lengths.setdefault(row["length"], []).append(float(row["accuracy"]))
    return found


def _line(panel: Axes, number: int, name: str, values: Mapping[int, Sequence[float]]) -> None:
    lengths = sorted(values)
    means = [_mean(values[n]) for n in lengths]
    errors = [_error(values[n]) for n in lengths]
    colour = COLOURS[number % len(COLOURS)]
    panel.plot(
        lengths, means, color=colour, linestyle=DASHES[number % len(DASHES)], marker=MARKS[number % len(MARKS)],
        markevery=max(1, len(lengths) // 8), label=_words(name),
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


def _mark(panel: Axes, trained: int) -> None:
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


# --- accuracy and confidence by step ------------------------------------------------------------------------
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
        figure, panels = _panels(len(groups))
        for panel, ((task, length), found) in zip(panels, groups.items(), strict=False):
            steps = sorted({row["step"] for row in found})
            exact = [_mean([row["accuracy"] for row in found if row["step"] == t]) for t in steps]
            surprise = [_mean([row["surprise"] for row in found if row["step"] == t]) for t in steps]
            panel.plot(steps, exact, color=COLOURS[0], label="exact match")
            panel.set(title=f"{_words(task)}, length {length}", xlabel="loop step", ylim=(-0.03, 1.03))
            other = panel.twinx()
            other.plot(
                steps, surprise, color=COLOURS[1], linestyle="--", label="cross entropy with its own answer"
            )
            other.grid(visible=False)
            for chosen in sorted({row["chosen"] for row in found}):
                panel.axvline(chosen, color=FAINT, linestyle=":", linewidth=1.2, label="step chosen")
        _label(panels, "exact match")
        other.set_ylabel("cross entropy")
        handles = [*panels[0].get_lines()[:2], *other.get_lines()]
        figure.legend(
            handles, [str(line.get_label()) for line in handles], loc="outside lower center", ncols=3
        )
        if title:
            figure.suptitle(title)
    return figure


# --- a run --------------------------------------------------------------------------------------------------
def training(metrics: Iterable[Row], title: str = "") -> Figure:
    """Loss and accuracy against the gradient step, a line for each seed, from a run's metrics."""
    lines = [row for row in metrics if row.get("kind") == "training"]
    if not lines:
        raise InputError("these metrics have no training steps to draw")
    with matplotlib.rc_context(fname=STYLE):
        figure, (left, right) = _panels(2)
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
        _legend(figure, left, [], title)
    return figure


# --- a program ----------------------------------------------------------------------------------------------
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
    panel.set(xlim=(-3.6, len(row) + 0.1), ylim=(height, 0), title=_words(name), aspect="equal")
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


# --- shared -------------------------------------------------------------------------------------------------
def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(COLUMNS, max(1, count))
    rows = -(-count // columns)
    width, height = (4.2, 2.4) if count == 1 else (2.5, 2.0)
    figure = Figure(figsize=(width * columns + 0.4, height * rows + 0.6))
    panels = [panel for line in figure.subplots(rows, columns, squeeze=False) for panel in line]
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels


def _label(panels: Sequence[Axes], words: str) -> None:
    """What lies upwards, said once a row of panels."""
    for panel in panels[::COLUMNS]:
        panel.set_ylabel(words)


def _legend(figure: Figure, panel: Axes, names: Sequence[str], title: str) -> None:
    found: dict[str, Any] = {}
    for each in figure.axes:
        handles, labels = each.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    order = [name for name in map(_words, names) if name in found] or list(found)
    if len(order) > 1 or names:
        figure.legend(
            [found[name] for name in order], order, loc="outside lower center", ncols=min(4, len(order))
        )
    if title:
        figure.suptitle(title)


def _words(name: str) -> str:
    """A name as it stands in a figure; a dollar is a dollar there, not the start of a formula."""
    return name.replace("_", " ").replace("$", r"\$")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean over seeds; 0 for one."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
