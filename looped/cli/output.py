"""What every command prints with: JSON, a table, a note, a progress bar.

A command is a frozen dataclass, whose fields become the options and the texts below them the help, and a function
`run(args: ThatClass) -> int`, the exit status. `looped.cli` finds it by name and makes an `InputError` one sentence.
Facts go to stdout through `print_json` or `print_table`; everything said about the work goes to
stderr through `note`, so that `looped … --json > file` holds JSON and nothing else. Knows no task, no model
and no command.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

QUIET_S = 10.0  # between two lines of progress


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
    numeric = [_is_numeric([row[i] for row in body]) for i in range(len(columns))]
    if sys.stdout.isatty():
        _draw(columns, body, numeric, title)
    else:
        _list(columns, body, numeric, title)


def note(message: str) -> None:
    """A sentence about the work, not part of its result, on stderr: `wrote figure.svg`."""
    print(message, file=sys.stderr)


class Progress:
    """How much of some work is done: a line on stderr now and then, silence where the work is quick."""

    def __init__(self, total: int = 0) -> None:
        self.total, self._count, self._said = total, 0, time.monotonic()

    def done(self, what: str, left: str = "") -> None:
        """Count one part of the work, described in a few words, and the time that is left where it is known."""
        self._count += 1
        if time.monotonic() - self._said > QUIET_S:
            self._said = time.monotonic()
            note(f"measured {self._count} of {self.total}: {what}" + (f"; {left}" if left else ""))


@contextmanager
def progress(total: int = 0, what: str = "measuring", left: str = "") -> Iterator[Progress]:
    """A bar on a terminal, a line now and then elsewhere; the total may be set later.

    `left` is the time left at the start, where it is known: then `done` is told what is left, and the bar shows it.
    """
    if not sys.stderr.isatty():
        yield Progress(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn
    from rich.progress import Progress as Bars

    told: list[str | ProgressColumn] = [MofNCompleteColumn(), TextColumn("{task.fields[left]}")]
    columns = [TextColumn("{task.description}"), BarColumn(), *told] if left else Bars.get_default_columns()
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task(what, total=total, left=left)

        class Bar(Progress):
            def done(self, what: str, left: str = "") -> None:
                bars.update(bar, total=self.total, advance=1, description=what, left=left)

        yield Bar(total)


def _is_numeric(cells: list[object]) -> bool:
    return bool(cells) and all(isinstance(cell, int | float) for cell in cells)


def _draw(columns: Sequence[str], rows: list[list[object]], numeric: list[bool], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console().print(table)


def _list(columns: Sequence[str], rows: list[list[object]], numeric: list[bool], title: str) -> None:
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    if title:
        print(title)
    for row in cells:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        )
        print("  ".join(padded).rstrip())
