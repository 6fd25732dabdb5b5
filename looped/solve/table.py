"""The steps of a loop as a table: coloured on a terminal, plain columns in a pipe. Knows no model.

    step  answer   row              least sure  changed
       1  0        0 # # # # # #        0.9871        7
       2  01       0 1 # # # # #        0.9993        2

On a terminal a token is blue where it is what the oracle says and orange where not, dim while the model doubts it,
and underlined where it changed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from looped.solve.answers import BAD, GOOD, Step, shown
from looped.tasks.base import Task

DOUBT = 0.9  # a token less sure than this is dim


def print_steps(task: Task, question: list[str], steps: Sequence[Step]) -> None:
    """Prints them on stdout."""
    if sys.stdout.isatty():
        _draw(task, question, steps)
        return
    width = max(len("answer"), *(len(shown(step.answer)) for step in steps))
    room = max(len("row"), *(len(" ".join(step.row)) for step in steps))
    print(f"step  {'answer':<{width}}  {'row':<{room}}  least sure  changed")
    for step in steps:
        cells = f"{step.number:>4}  {shown(step.answer):<{width}}  {' '.join(step.row):<{room}}"
        print(f"{cells}  {min(step.confidence):>10.4f}  {sum(step.changed):>7}")


def _draw(task: Task, question: list[str], steps: Sequence[Step]) -> None:
    from rich import box
    from rich.console import Console
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

    right = task.solve(question)
    table = Table(box=box.SIMPLE_HEAD)
    for name, side in (("step", "right"), ("row", "left"), ("least sure", "right"), ("changed", "right")):
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for step in steps:
        row = Text()
        for i, (token, sure, moved) in enumerate(zip(step.row, step.confidence, step.changed, strict=True)):
            wanted = right[i] if i < len(right) else task.vocab.decode([task.vocab.eos])[0]
            colour = GOOD if token == wanted else BAD
            row.append(token, Style(color=colour, dim=sure < DOUBT, underline=moved and step.number > 1))
            row.append(" ")
        table.add_row(str(step.number), row, f"{min(step.confidence):.4f}", str(sum(step.changed)))
    Console().print(table)
