"""What the compiler says no to, with rule, file and line. Knows the rules of the language and adds its own.

mine.py:12: unbounded-domain: the state variable 'count' takes more than 1024 values …
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, ParamSpec, TypeVar

from looped.errors import InputError
from looped.rasp.rules import LegalityError, Violation

LIMITS: dict[str, str] = {
    "unbounded-domain": "a function becomes a feed-forward layer only over a fixed, finite set of values",
    "index-order": "an attention compares indices or counts for equality only, with at most a constant added",
    "loop-nesting": "a compiled loop has one step; loops may follow each other, not lie in each other",
    "step-count": "the number of steps must be a polynomial of degree 2 in the sizes of the question",
    "kind-varies": "a variable is of one kind (token, boolean or index) before and after every step",
    "row-length": "every sum must fit the 53 bits of a float64, every weight the 24 of a float32",
    "width": "the state of a compiled model has a largest width",
}

_HERE = Path(__file__).parent
_RASP = _HERE.parent / "rasp"
Place = tuple[str, int]
P = ParamSpec("P")
R = TypeVar("R")


class CompileError(InputError):
    """Raised for a program that cannot be turned into weights; the message has file, line and rule."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation

    @property
    def rule(self) -> str:
        """The name of the rule: one of `LIMITS`, or of the language's own."""
        return self.violation.rule


def refuse(rule: str, detail: str, place: Place | None = None) -> NoReturn:
    """Raises a `CompileError` at a place, or at the program's line that is being traced."""
    file, line = place or caller()
    raise CompileError(Violation(rule, file, line, f"{detail} ({LIMITS[rule]})"))


def caller() -> Place:
    """File and line of the innermost code on the stack that is neither the compiler's nor the language's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(Path(frame.f_code.co_filename)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_ours(path: Path) -> bool:
    return path.parent == _HERE or path.parent == _RASP or path.name == "functools.py"


def at_the_programs_line(operation: Callable[P, R]) -> Callable[P, R]:
    """Lets what the language's own operations complain of point at the program, not at the compiler."""

    @functools.wraps(operation)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return operation(*args, **kwargs)
        except CompileError:
            raise
        except LegalityError as error:
            found = error.violation
            raise CompileError(Violation(found.rule, *caller(), found.detail)) from None
        except InputError as error:
            raise CompileError(Violation("argument", *caller(), str(error))) from None

    return wrapped
