"""What a legal n-RASP-L program may not do: the rules by name, and the error that cites one.

sort.py:12: index-arithmetic: an index takes only comparison, +1 and -1 …
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from looped.errors import InputError

RULES: dict[str, str] = {
    "control-flow": "a program is straight-line code: nothing may branch, repeat or stop on the way",
    "indexing": "a sequence is whole: it may not be indexed, sliced, iterated over or turned into numbers",
    "index-arithmetic": "an index or a count takes only order comparison, +1 and -1",
    "index-to-token": "an index or a count never mixes with a token",
    "causality": "a position sees only itself and earlier positions",
    "step-varies": "a step does the same operations at every iteration and every length",
    "recursion": "a function may not call itself, directly or through others",
    "numpy": "only n-RASP-L operations may touch a sequence, numpy's may not",
    "unknown-name": "a program calls only n-RASP-L operations and its own module's functions",
    "hidden-state": "values flow only through arguments, local names and the returned variables",
    "precision": "a token is a small integer: the values may not outgrow a fixed range",
    "argument": "an operation got an argument that it cannot take",
}

_PACKAGE = Path(__file__).parent
_PROGRAMS = _PACKAGE / "programs"


@dataclass(frozen=True)
class Violation:
    """One broken rule at one place."""

    rule: str
    file: str
    line: int
    detail: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.detail}"


class LegalityError(InputError):
    """Raised for a program that breaks a rule of n-RASP-L; the message has file, line and rule."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation

    @property
    def rule(self) -> str:
        """The name of the broken rule, a key of `RULES`."""
        return self.violation.rule

    @property
    def line(self) -> int:
        """The line of the program that broke it."""
        return self.violation.line


def caller() -> tuple[str, int]:
    """File and line of the innermost code on the stack that is a program's, not the interpreter's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_interpreter(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def refuse(rule: str, detail: str) -> NoReturn:
    """Raises a `LegalityError` that points at the running program's line."""
    assert rule in RULES, rule
    file, line = caller()
    raise LegalityError(Violation(rule, file, line, f"{detail} ({RULES[rule]})"))


def _is_interpreter(filename: str) -> bool:
    path = Path(filename)
    return _PACKAGE in path.parents and path.parent != _PROGRAMS


def function_place(function: object) -> tuple[str, int]:
    """File and first line of a function."""
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("?", 0)
