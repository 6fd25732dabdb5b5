"""The arguments of operations: each is what it must be, or an error names it."""

from __future__ import annotations

import numpy as np

from looped.errors import InputError
from looped.rasp.rules import refuse
from looped.rasp.sequence import TOKEN_LIMIT, Seq, unwrap


def need_seq(operation: str, name: str, value: object) -> Seq:
    """The value, if it is a sequence."""
    if not isinstance(value, Seq):
        raise InputError(f"{operation}: {name} must be a sequence, not {type(value).__name__}")
    return value


def need_same(operation: str, name: str, x: object, other: str, y: object) -> None:
    """Raises unless both are sequences that fit each other."""
    a, b = unwrap(need_seq(operation, name, x)).shape, unwrap(need_seq(operation, other, y)).shape
    if a[-1] != b[-1]:
        raise InputError(f"{operation}: {name} has {a[-1]} positions and {other} {b[-1]}, they must be equal")
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        raise InputError(
            f"{operation}: {name} and {other} must have the same rows, not {a} and {b}"
        ) from None


def need_int(operation: str, name: str, value: object, least: int | None = None) -> int:
    """The value, if it is a plain integer: a number of at least `least`, or a token."""
    if not isinstance(value, int):
        raise InputError(f"{operation}: {name} must be an integer, not {type(value).__name__}")
    if least is not None and value < least:
        raise InputError(f"{operation}: {name} must be at least {least}, not {value}")
    if least is None and abs(value) >= TOKEN_LIMIT:
        refuse("precision", f"{operation}: {name} is {value}, beyond {TOKEN_LIMIT - 1}")
    return value


def need_callable(operation: str, name: str, value: object) -> None:
    """Raises unless the value is a function."""
    if not callable(value):
        raise InputError(f"{operation}: {name} must be a function, not {type(value).__name__}")
