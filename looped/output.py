"""What people see: tables as text, on a terminal and as HTML in a notebook; JSON, notes and progress of a command.

    html_table(("step", "says"), [(1, "0 <"), (2, Cell("0 1", fill=0.9))])

Facts go to stdout through `print_json` or `print_table`; everything said about the work goes to stderr through `note`,
so that `looped … --json > file` holds JSON and nothing else. In HTML every text is escaped, and colours are laid over
the page's own, so that they can be read on light and on dark. Imports nothing of the package, and rich where it draws.
"""

from __future__ import annotations

import html
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

GOOD, BAD = "#0072B2", "#D55E00"  # told apart in colour blindness too
LONGEST = 40  # characters of a text that is not broken into lines
STRONGEST = 0.45  # of a fill: text of either theme can be read on it
QUIET_S = 10.0  # between two lines of progress


def text_table(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Texts in columns two spaces apart, those whose numbers are given to the right."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sizes = [f"{'>' if i in right else '<'}{width}" for i, width in enumerate(widths)]
    padded = ([f"{cell:{size}}" for cell, size in zip(line, sizes, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def print_json(value: object) -> None:
    """One value as one line of strict JSON on stdout: `{"task": "parity", "length": 4}`.

    Signs such as `×` stay readable where stdout can write them and are escaped where it cannot.
    """
    readable = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(value, ensure_ascii=not readable, allow_nan=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table on stdout: drawn on a terminal, plain aligned columns in a pipe; numbers to the right.

        task    length
        parity       4

    Cells are printed with `str`, never wrapped or cut in a pipe, and never read as markup.
    """
    body = [list(row) for row in rows]
    for row in body:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(columns)} columns: {row}")
    cells = enumerate(zip(*body, strict=True))
    right = [i for i, column in cells if all(isinstance(cell, int | float) for cell in column)]
    lines = [list(map(str, row)) for row in body]
    if not sys.stdout.isatty():
        print((f"{title}\n" if title else "") + text_table([columns, *lines], right))
        return
    from rich import box
    from rich.console import Console
    from rich.text import Text

    head: dict[str, Any] = {"title": Text(title) if title else None, "title_justify": "left"}
    Console().print(rich_table(columns, lines, right, box=box.SIMPLE_HEAD, **head))


def rich_table(
    columns: Sequence[str], lines: Iterable[Sequence[object]], right: Collection[int] = (), **look: Any
) -> Table:
    """A table to be drawn on a terminal, the columns of `right` to the right; no cell is read as markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(**look)
    for i, name in enumerate(columns):
        table.add_column(Text(name), justify="right" if i in right else "left", overflow="fold")
    for line in lines:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in line))
    return table


def note(message: str) -> None:
    """A sentence about the work, not part of its result, on stderr: `wrote figure.svg`."""
    print(message, file=sys.stderr)


class Progress:
    """How much of some work is done: a bar on a terminal; elsewhere a line on stderr now and then."""

    def __init__(self, total: int, move: Callable[..., None] | None = None) -> None:
        self.total, self._move = total, move  # the total may be set later
        self._count, self._said = 0, time.monotonic()

    def done(self, what: str, left: str = "") -> None:
        """Count one part of the work, described in a few words, and the time that is left where it is known."""
        self._count += 1
        if self._move is not None:
            self._move(total=self.total, completed=self._count, description=what, left=left)
        elif time.monotonic() - self._said > QUIET_S:
            self._said = time.monotonic()
            note(f"measured {self._count} of {self.total}: {what}" + (f"; {left}" if left else ""))


@contextmanager
def progress(total: int = 0, what: str = "measuring", left: str = "") -> Iterator[Progress]:
    """Show how work goes on; `left` is the time left at the start, where it is known: then `done` is told, too."""
    if not sys.stderr.isatty():
        yield Progress(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    told: list[str | ProgressColumn] = [MofNCompleteColumn(), TextColumn("{task.fields[left]}")]
    columns = [TextColumn("{task.description}"), BarColumn(), *told] if left else Bars.get_default_columns()
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        yield Progress(total, partial(bars.update, bars.add_task(what, total=total, left=left)))


# --- in a notebook ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cell:
    """A text that is set as code, in a colour, or on a fill from 0 (none) to 1."""

    text: str
    colour: str = ""
    fill: float = 0.0
    bold: bool = False
    note: str = ""  # shown when it is pointed at

    def html(self) -> str:
        """As a table's cell."""
        style = "text-align:left;padding:1px 5px;"
        if self.colour:
            style += f"color:{self.colour};"
        if self.fill:
            style += f"background:rgba(0,114,178,{STRONGEST * self.fill:.2f});"
        if self.bold:
            style += "font-weight:bold;"
        note = f' title="{html.escape(self.note)}"' if self.note else ""
        wrap = ";word-break:break-all;white-space:normal" if len(self.text) > LONGEST else ""
        code = f'<code style="color:inherit;background:none{wrap}">{html.escape(self.text)}</code>'
        return f'<td style="{style}"{note}>{code}</td>'


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; a cell is a `Cell` or anything that prints."""
    top = "".join(f'<th style="text-align:left">{html.escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    above = f"<p>{html.escape(caption)}</p>" if caption else ""
    return f"{above}<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def html_facts(facts: Mapping[str, object]) -> str:
    """A table of names and what they stand for, in two columns."""
    return html_table((), facts.items())


def _cell(value: object) -> str:
    if isinstance(value, Cell):
        return value.html()
    return f'<td style="text-align:left">{html.escape(str(value))}</td>'
