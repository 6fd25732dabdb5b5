# ruff: noqa: F403, F405 - core.py and library.py say what they export
"""n-RASP-L: straight-line programs over sequences, repeated T(n) times. Needs numpy only; knows no task."""

from looped.rasp.core import *
from looped.rasp.library import *
from looped.rasp.lint_rules import RULES, LegalityError, Violation
from looped.rasp.program import BLANK, Loop, Program, State, evaluate, run
from looped.rasp.sequence import Kind, Seq, seq, unwrap

__all__ = [
    "BLANK", "RULES", "Kind", "LegalityError", "Loop", "Program", "Selector", "Seq", "State", "Violation",
    "aggregate", "argmax", "argmin", "cumsum", "equals", "evaluate", "first_true", "firsts", "full", "geq",
    "gt", "has_seen", "index_select", "indices", "induct", "induct_kqv", "induct_prev", "kqv", "lasts",
    "leq", "lt", "mask", "maximum", "minimum", "mode", "num_prev", "run", "sample", "seen", "sel_width",
    "select", "seq", "seq_map", "shift_right", "tok_map", "unwrap", "where",
]  # fmt: skip
