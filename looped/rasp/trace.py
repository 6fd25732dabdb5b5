"""A trace of a program: every variable after every step, as a table, as JSON and as grids for figures.

step  variable  1 0 > # #
   0  seq       1 0 # # #
   1  seq       · 1 0 # #
   2  seq       · · 1 0 #
 out            * * 1 0 #
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from looped.output import Cell, html_table
from looped.rasp.attention import Array
from looped.rasp.program import BLANK, Program, read_out, unroll
from looped.rasp.sequence import Kind, kind_of, unwrap
from looped.vocab import EOQ, IGNORED

GAP = "…"
SHOWN_BLANK = "·"
MOST_STEPS = 16  # of a table
Beside = Sequence[tuple[str, Mapping[int, list[str]]]]  # name, step → tokens


@dataclass(frozen=True)
class Entry:
    """One variable after one step. Step 0 is the preparation."""

    step: int
    by: str  # the name of the function that was run
    name: str
    values: Array


@dataclass(frozen=True)
class Trace:
    """A run of a program on one row."""

    program: Program
    row: Array
    entries: tuple[Entry, ...]
    output: Array
    steps: int  # how many were done, whether or not they were kept
    outputs: tuple[Array, ...] = ()  # what it would put out after step 0, 1, …, where that was asked for

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the state, in the order of `prepare`."""
        return tuple(entry.name for entry in self.entries if entry.step == 0)

    @property
    def answer(self) -> list[str]:
        """The answer's token names."""
        return self.program.answer(self.row, self.output)

    def shown(self, entry: Entry) -> list[str]:
        """An entry's values as they are printed: token names where the variable holds tokens."""
        names = self.program.vocab.names if entry.name in self.program.tokens else ()
        return [_token(names, value) for value in entry.values.tolist()]

    def grid(self, name: str) -> list[list[str]]:
        """One variable as step × position, as printed: what a figure draws."""
        return [self.shown(entry) for entry in self.entries if entry.name == name]

    def json(self) -> list[dict[str, object]]:
        """A list of {step, name, values}; the values are token names where the variable holds tokens."""
        own = self.program.tokens
        return [
            {"step": e.step, "name": e.name, "values": self.shown(e) if e.name in own else e.values.tolist()}
            for e in self.entries
        ]

    def table(self, positions: int = 40, steps: int = MOST_STEPS, beside: Beside = ()) -> str:
        """Variable × step as text; beyond so many positions or steps, some of the middle is left out.

        Under a step's variables stands what others would put out after it, by name, from the question's end on; others
        may take more steps than the program.
        """
        lines, columns = self._lines(positions, steps, beside)
        width = max(len(value) for _, _, values in lines for value in values)
        label = max(len(name) for _, name, _ in lines)
        count = max(len(step) for step, _, _ in lines)
        text = []
        for step, name, values in lines:
            cells = [(GAP if c is None else values[c]).rjust(width) for c in columns] if values else []
            text.append(f"{step:>{count}}  {name:<{label}}  {' '.join(cells)}".rstrip())
        return "\n".join(text)

    def _repr_html_(self) -> str:
        lines, columns = self._lines()
        rows = [
            (step, name, *(Cell(GAP if c is None else values[c]) for c in columns if values))
            for step, name, values in lines
        ]
        return html_table((), rows, f"{self.program.name}: every variable after every step")

    def _lines(
        self, positions: int = 40, steps: int = MOST_STEPS, beside: Beside = ()
    ) -> tuple[list[tuple[str, str, list[str]]], list[int | None]]:
        """The lines of a table (step, name, values) and which positions of them are shown."""
        names = self.program.vocab.decode(self.row.tolist())
        start = names.index(EOQ)
        output = [IGNORED] * start + self.program.vocab.decode(self.output[start:].tolist())
        lines = [("step", "variable", names)]
        last = max([self.steps, *(step for _, said in beside for step in said)])
        for step in shown_steps(last, steps):
            if step is None:
                lines.append((GAP, "", []))
                continue
            at = [(entry.name, self.shown(entry)) for entry in self.entries if entry.step == step]
            at += [(name, [IGNORED] * start + said[step]) for name, said in beside if step in said]
            lines += [(str(step) if i == 0 else "", name, values) for i, (name, values) in enumerate(at)]
        lines.append(("out", "", output))
        return lines, _kept(len(names), (0, start - 4, len(names) - positions // 3), positions)


def trace(
    program: Program,
    row: Array | Sequence[int],
    keep: Container[int | None] | None = None,
    outputs: bool = False,
) -> Trace:
    """Run a program on one row of ids and keep every variable after every step (or the steps in `keep`).

    With `outputs`, also what it would put out after every step.
    """
    ids = np.asarray(row, dtype=np.int64)
    entries, put_out = [], []
    for number, by, state in unroll(program, ids, program.sizes(ids.tolist())):
        for name, value in state.items() if keep is None or number in keep else ():
            # Tokens are small: thousands of steps over thousands of positions stay in memory.
            kept = unwrap(value).astype(np.int32 if kind_of(value) is Kind.INDEX else np.int16)
            entries.append(Entry(number, by, name, kept))
        if outputs:
            put_out.append(unwrap(read_out(program, state, ids)))
    output = unwrap(read_out(program, state, ids)).astype(np.int64)
    return Trace(program, ids, tuple(entries), output, number, tuple(put_out))


def shown_steps(steps: int, most: int = MOST_STEPS) -> list[int | None]:
    """The steps that a table shows: all of them, or the first and the last with None for a gap between."""
    return _kept(steps + 1, (0, steps + 1 - most // 2), most)


def _token(names: Sequence[str], value: int) -> str:
    if value == BLANK:
        return SHOWN_BLANK
    if not names:
        return str(value)
    return names[value] if 0 <= value < len(names) else "○"


def _kept(size: int, starts: Sequence[int], most: int) -> list[int | None]:
    """All of 0 … size-1 if at most `most`, else as many from each start, with None for a gap."""
    if size <= most:
        return list(range(size))
    share = most // len(starts)
    chosen = sorted({i for start in starts for i in range(max(start, 0), min(start + share, size))})
    gapped: list[int | None] = []
    for i in chosen:
        if gapped and gapped[-1] != i - 1:
            gapped.append(None)
        gapped.append(i)
    return gapped
