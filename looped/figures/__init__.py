"""Results to figures: pure functions of rows, in one house style. Needs no torch and no run folder.

A row is what `looped evaluate` writes, `{"task", "method", "seed", "length", "stop", "accuracy", …}`; with `"step"`,
`"surprise"` and `"chosen"` it is one loop step of the figure `stopping`. Every function returns a matplotlib figure and
`save` writes it; the same rows give the same bytes.

    reading.py    rows and metrics from files, checked
    style.py      house style, panels, legend, `save`
    lengths.py    exact match against length
    steps.py      accuracy and confidence after every loop step
    training.py   how a run went
    programs.py   n-RASP-L programs at work
    ladder.py     how far every seed is exact
    halting.py    who knows when to stop
"""

from looped.figures.halting import halting, is_halting
from looped.figures.ladder import ladder, read_ladders
from looped.figures.lengths import accuracy_by_length
from looped.figures.programs import programs
from looped.figures.reading import read_metrics, read_rows
from looped.figures.steps import by_step
from looped.figures.style import COLOURS, STYLE, SUFFIXES, save
from looped.figures.training import training

__all__ = [
    "COLOURS",
    "STYLE",
    "SUFFIXES",
    "accuracy_by_length",
    "by_step",
    "halting",
    "is_halting",
    "ladder",
    "programs",
    "read_ladders",
    "read_metrics",
    "read_rows",
    "save",
    "training",
]
