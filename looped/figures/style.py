"""The house style: colours, marks and dashes that differ in grey too, panels in rows, one legend for all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from looped.errors import InputError

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
        figure.legend(
            [found[name] for name in order], order, loc="outside lower center", ncols=min(4, len(order))
        )
    if title:
        figure.suptitle(title, parse_math=False)


def words(name: str) -> str:
    """A name as it stands in a figure; a dollar is a dollar there, not the start of a formula."""
    return name.replace("_", " ").replace("$", r"\$")
