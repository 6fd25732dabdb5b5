"""n-RASP-L: straight-line programs over sequences, repeated T(n) times. Needs numpy only; knows no task."""

from looped.rasp.core import (
    Selector,
    aggregate,
    equals,
    full,
    geq,
    gt,
    indices,
    kqv,
    leq,
    lt,
    sel_width,
    select,
    seq_map,
    tok_map,
)
from looped.rasp.library import (
    argmax,
    argmin,
    cumsum,
    first_true,
    firsts,
    has_seen,
    index_select,
    induct,
    induct_kqv,
    induct_prev,
    lasts,
    mask,
    maximum,
    minimum,
    mode,
    num_prev,
    sample,
    seen,
    shift_right,
    where,
)
from looped.rasp.lint_rules import RULES, LegalityError, Violation
from looped.rasp.program import BLANK, Loop, Program, State, evaluate, run
from looped.rasp.sequence import Kind, Seq, seq, unwrap

# fmt: off
__all__ = [
    "BLANK", "RULES", "Kind", "LegalityError", "Loop", "Program", "Selector", "Seq", "State", "Violation",
    "aggregate", "argmax", "argmin", "cumsum", "equals", "evaluate", "first_true", "firsts", "full", "geq",
    "gt", "has_seen", "index_select", "indices", "induct", "induct_kqv", "induct_prev", "kqv", "lasts",
    "leq", "lt", "mask", "maximum", "minimum", "mode", "num_prev", "run", "sample", "seen", "sel_width",
    "select", "seq", "seq_map", "shift_right", "tok_map", "unwrap", "where",
]
