"""The figure of `docs/performance.md`, from measured lines alone: a gradient step, stacked seeds, longer problems.

python -m benchmarks plot results/performance.jsonl results/figures/performance.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Lines, chosen, stacked
from scripts.docs_tables import spaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, PEER, FLOOR = "#0072B2", "#999999", "#D55E00"  # of the house's colours


def save(lines: Lines, path: Path) -> None:
    """Draw into an SVG, PNG or PDF file."""
    import matplotlib

    from looped import figures  # a machine that only measures has no matplotlib

    with matplotlib.rc_context(fname=figures.STYLE):
        figures.save(draw(lines), path)


def draw(lines: Lines) -> Figure:
    """A panel for each kind of measurement that is there, side by side."""
    from matplotlib.figure import Figure

    panels = [(_step, 1.5)]
    panels += [(_seeds, 1.0)] if chosen(lines, "scale") else []
    panels += [(_lengths, 1.0)] if chosen(lines, "infer") else []
    widths = [width for _, width in panels]
    figure = Figure(figsize=(3.2 * sum(widths), 3.6), layout="constrained")
    for axes, (panel, _) in zip(
        figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0], panels, strict=True
    ):
        panel(axes, lines)
    return figure


def _step(axes: Axes, lines: Lines) -> None:
    """Milliseconds a step and seed of both sides, task by task, how many times they lie apart, and the floor."""
    found = stacked(lines)
    for i, line in enumerate(found):
        ours, peer = line["ours"]["ms_per_seed"], line["peer"]["ms_per_step"]
        axes.bar(i - 0.2, peer, 0.38, color=PEER, label="the ordinary way" if i == 0 else None)
        axes.bar(i + 0.2, ours, 0.38, color=OURS, label="this program, stacked seeds" if i == 0 else None)
        axes.plot(
            [i + 0.01, i + 0.39], [line["ours"]["floor_ms_per_seed"]] * 2, color=FLOOR, lw=2,
            label="products at the ceiling" if i == 0 else None,
        )  # fmt: skip
        axes.annotate(f"{line['speedup']:.0f}×", (i + 0.2, ours), ha="center", va="bottom", color=OURS)
    axes.set_yscale("log")
    names = [spaced(line["task"]) for line in found]
    axes.set_xticks(range(len(found)), names, rotation=25, ha="right", rotation_mode="anchor")
    axes.set_ylabel("ms per gradient step and seed")
    axes.set_title("A gradient step, last curriculum stage")
    if found:
        axes.set_ylim(top=3 * max(line["peer"]["ms_per_step"] for line in found))
        legend = axes.legend(loc="upper left", ncols=3, fontsize=6.5, columnspacing=0.8, handlelength=1.2)
        legend.set_in_layout(False)


def _seeds(axes: Axes, lines: Lines) -> None:
    """What a seed costs among others."""
    for line in chosen(lines, "scale"):
        count, cost = ([row[key] for row in line["rows"]] for key in ("seeds", "ms_per_seed"))
        axes.plot(count, cost, "o-", color=OURS)
        axes.set_xticks(count, map(str, count), minor=False)
        axes.set_title(f"Seeds side by side: {spaced(line['task'])}")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seeds stacked")
    axes.set_ylabel("ms per step and seed")


def _lengths(axes: Axes, lines: Lines) -> None:
    """What a loop step of a row costs as problems grow, heads that see all and heads with a band."""
    for line in chosen(lines, "infer"):
        for heads, colour in (("global", PEER), ("banded", OURS)):
            rows = [row for row in line["lengths"] if row["heads"] == heads]
            label = f"{heads} heads, exponent {line['exponents'][heads]:.2f}"
            axes.plot(
                [row["length"] for row in rows], [row["ms"] for row in rows], "o-", color=colour, label=label
            )
        axes.legend(fontsize=7)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("length")
    axes.set_ylabel("ms per loop step and row")
    axes.set_title("Answering longer problems")
