"""What the compiler refuses, with rule, file and line: the rules of the language, and limits of its own.

mine.py:12: unbounded-domain: the state variable 'count' takes more than 1024 values …
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar

from looped.errors import InputError
from looped.rasp.lint_rules import RULES, LegalityError, Place, RuleError, Violation, caller

LIMITS: dict[str, str] = {
    "unbounded-domain": "a function becomes a feed-forward layer only over a fixed, finite set of values",
    "index-order": "an attention compares indices or counts for equality only, with at most a constant added",
    "loop-nesting": "a compiled loop has one step; loops may follow each other, not lie in each other",
    "step-count": "the number of steps must be a polynomial of degree 2 in the sizes of the question",
    "kind-varies": "a variable is of one kind (token, boolean or index) before and after every step",
    "row-length": "every sum must fit the 53 bits of a float64, every weight the 24 of a float32",
    "width": "the state of a compiled model has a largest width",
}

P = ParamSpec("P")
R = TypeVar("R")


class CompileError(RuleError):
    """Raised for a program that cannot be turned into weights; the rule is one of `LIMITS`, or of the language."""


def refuse(rule: str, detail: str, place: Place | None = None) -> NoReturn:
    """Raise a `CompileError` at a place, or at the program's line that is being traced."""
    reason = LIMITS.get(rule) or RULES[rule]
    raise CompileError(
        Violation(rule, *(place or caller()), f"{detail} ({reason})"), located=place is not None
    )


def at_the_programs_line(operation: Callable[P, R]) -> Callable[P, R]:
    """Turn what the language's own operations raise into a `CompileError` at the program's line."""

    @functools.wraps(operation)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return operation(*args, **kwargs)
        except CompileError:
            raise
        except LegalityError as error:
            found = error.violation
            place = (found.file, found.line) if error.located else caller()
            raise CompileError(Violation(found.rule, *place, found.detail), error.located) from None
        except InputError as error:
            raise CompileError(Violation("argument", *caller(), str(error))) from None

    return wrapped
