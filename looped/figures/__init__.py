"""Results to figures: pure functions of rows, in one house style. Needs no torch and no run folder.

A row is what `looped evaluate` writes, `{"task", "method", "seed", "length", "stop", "accuracy", …}`; with `"step"`,
`"surprise"` and `"chosen"` it is one loop step of the figure `stopping`. Every function returns a matplotlib figure and
`save` writes it; the same rows give the same bytes. `looped.result_files` reads the rows.

    curves.py         house style, `save`; exact match by length or loop step, loss, learned halting, programs at work
    length_sweep.py   how far every seed is exact
"""

from looped.figures.curves import (
    COLOURS,
    STYLE,
    SUFFIXES,
    accuracy_by_length,
    by_step,
    halting,
    is_halting,
    programs,
    save,
    training,
)  # fmt: skip
from looped.figures.length_sweep import length_sweep
from looped.result_files import read_length_sweeps, read_metrics, read_rows

__all__ = [
    "COLOURS", "STYLE", "SUFFIXES", "accuracy_by_length", "by_step", "halting", "is_halting", "length_sweep",
    "programs", "read_length_sweeps", "read_metrics", "read_rows", "save", "training",
]  # fmt: skip
