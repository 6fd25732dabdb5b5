"""The rules of n-RASP-L by name, and the errors that cite one with file and line.

    sort.py:12: index-arithmetic: an index + 2 (an index or a count takes only order comparison, +1 and -1)

`docs/nrasp.md` has the grammar, and says which rule refuses what.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, Self

from looped.errors import InputError

RULES: dict[str, str] = {
    "control-flow": "a program is straight-line code: nothing may branch, repeat or stop on the way",
    "indexing": "a sequence is whole: it may not be indexed, sliced, iterated over or turned into numbers or text",
    "index-arithmetic": "an index or a count takes only order comparison, +1 and -1",
    "index-to-token": "an index or a count never mixes with a token",
    "mean-range": "a mean takes values from -64 to 64, so that it cannot turn a count into a token",
    "causality": "a position sees only itself and earlier positions",
    "step-varies": "a step does the same operations at every iteration and every length",
    "recursion": "a function may not call itself, directly or through others",
    "numpy": "only n-RASP-L operations may touch a sequence, numpy's may not",
    "unknown-name": "a program calls only n-RASP-L operations and its own module's functions",
    "hidden-state": "values flow only through arguments, local names and the returned variables",
    "precision": "a token is a small integer: the values may not outgrow a fixed range",
    "budget": "the steps of a program, the work of a step and the size of a row are bounded",
    "argument": "an operation got an argument that it cannot take",
}

_PACKAGE = Path(__file__).parents[1]
_OURS = (_PACKAGE / "rasp", _PACKAGE / "compiler")  # but not rasp/programs
Place = tuple[str, int]


@dataclass(frozen=True)
class Violation:
    """One broken rule at one place."""

    rule: str
    file: str
    line: int
    detail: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.detail}"


@dataclass
class Findings:
    """The broken rules of a file so far."""

    file: str
    violations: dict[Violation, None] = field(default_factory=dict)  # each once, in order

    def flag(self, rule: str, node: ast.AST, detail: str) -> None:
        """Note a broken rule at a node."""
        self.violations[broken(rule, detail, (self.file, getattr(node, "lineno", 0))).violation] = None


class RuleError(InputError):
    """A program broke a rule; the message has file, line and rule."""

    def __init__(self, violation: Violation, located: bool = False) -> None:
        super().__init__(str(violation))
        self.violation = violation
        self.located = located  # the line comes from the program's syntax tree

    @property
    def rule(self) -> str:
        """Name of the broken rule."""
        return self.violation.rule

    def at(self, place: Place) -> Self:
        """The same error at a line of a syntax tree, unless it has one already."""
        if self.located:
            return self
        return type(self)(replace(self.violation, file=place[0], line=place[1]), located=True)


class LegalityError(RuleError):
    """Raised for a program that breaks a rule of n-RASP-L."""


def broken(rule: str, detail: str, place: Place) -> LegalityError:
    """The error for a rule broken at a place of a syntax tree."""
    return LegalityError(Violation(rule, *place, f"{detail} ({RULES[rule]})"), located=True)


def refuse(rule: str, detail: str) -> NoReturn:
    """Raise a `LegalityError` at the line of the running Python program."""
    raise LegalityError(Violation(rule, *caller(), f"{detail} ({RULES[rule]})"))


def caller() -> Place:
    """File and line of the innermost code on the stack that belongs to neither the language nor the compiler."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_ours(filename: str) -> bool:
    path = Path(filename)
    return path.parent in _OURS or path.name == "functools.py"


def function_place(function: object) -> Place:
    """File and first line of a function of a file or of Python."""
    place: Place | None = getattr(function, "place", None)
    if place is not None:
        return place
    code = getattr(function, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("?", 0)
