"""The sequence: one value per position, for one row or a batch of rows. Knows the rules, no program.

A `Seq` wraps an integer or boolean array of shape [..., n]. Operators work position by position, and each checks
the rules while it runs, by the *kind* of its operands:

    token   a small integer                    + - * // % & | ^ ~ and comparison
    bool    true or false                      the same; counts as 0 or 1 beside a token
    index   a position, or a count of them     comparison, + 1, - 1 and nothing else

What would let Python read the values (`if seq`, `seq[0]`, `len(seq)`, `f"{seq}"`, `np.sum(seq)`) raises
`LegalityError`. The code around a program reads a sequence with `unwrap`.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from types import FunctionType
from typing import Any, NoReturn, ParamSpec, TypeVar

import numpy as np

from looped.errors import InputError
from looped.rasp.attention import Array
from looped.rasp.lint_rules import refuse

P = ParamSpec("P")
R = TypeVar("R")
TOKEN_LIMIT = 2**15  # tokens lie strictly between -limit and +limit: finite precision, as in a Transformer


class Kind(Enum):
    """What the values of a sequence are, and so what may be done with them."""

    TOKEN = "token"
    BOOL = "bool"
    INDEX = "index"

    @property
    def read(self) -> Kind:
        """The kind of what an attention reads: booleans come as the tokens 0 and 1."""
        return Kind.TOKEN if self is Kind.BOOL else self


_operations: ContextVar[list[tuple[object, ...]] | None] = ContextVar("operations", default=None)


@contextmanager
def recording() -> Iterator[list[tuple[object, ...]]]:
    """Collect name and constants of every operation done inside, to compare two iterations."""
    log: list[tuple[object, ...]] = []
    token = _operations.set(log)
    try:
        yield log
    finally:
        _operations.reset(token)


def record(name: str, *constants: object) -> None:
    """Note that an operation is done, with every argument that is not a sequence."""
    log = _operations.get()
    if log is not None:
        log.append((name, *constants))


OPERATIONS: dict[str, Callable[..., Any]] = {}  # everything that a program may call, by name


def operation(function: Callable[P, R]) -> Callable[P, R]:
    """Register an operation of the language.

    Its arguments are checked by their annotations (`Seq`, `int`, functions), and it is recorded with all that are no
    sequences. An argument with an attribute `operations` brings its own meaning of an operation as the method `_name`:
    so the compiler runs a program on symbols.
    """
    name = function.__name__
    parameters = inspect.signature(function).parameters
    checks = {each: _CHECKS.get(str(parameters[each].annotation).partition("[")[0]) for each in parameters}

    @functools.wraps(function)
    def dispatch(*args: P.args, **kwargs: P.kwargs) -> R:
        if not args or type(args[0]) is not Seq:
            for value in (*args, *kwargs.values()):
                if hasattr(value, "operations"):
                    return getattr(value.operations, f"_{name}", function)(*args, **kwargs)
        constants: list[object] = []
        for argument, value in (*zip(checks, args, strict=False), *kwargs.items()):
            check = checks.get(argument)
            if check is not None:
                check(name, argument, value)
            if callable(value) or isinstance(value, (int, str)):
                constants.append(identity(value) if callable(value) else value)
        record(name, *constants)
        return function(*args, **kwargs)

    OPERATIONS[name] = dispatch
    return dispatch


def is_operation(value: object) -> bool:
    """Whether it is what the language means by its name."""
    return callable(value) and OPERATIONS.get(getattr(value, "__name__", "")) is value


def identity(func: Callable[..., object]) -> object:
    """What makes two given functions the same operation: code, defaults and captured values."""
    if not isinstance(func, FunctionType):  # a function of a file, or a built-in
        return getattr(func, "identity", None) or getattr(func, "__name__", repr(func))
    cells = tuple(repr(cell.cell_contents) for cell in func.__closure__ or ())
    return (func.__code__.co_code, repr(func.__code__.co_consts), repr(func.__defaults__), cells)


# --- operators -----------------------------------------------------------------------------------------------
Ufunc = Callable[[Array, Array], Array]
Operator = Callable[["Seq", "Seq | int"], "Seq"]
Meaning = Callable[[str, "Seq | int", "Seq | int"], "Seq"]

ARITHMETIC: dict[str, Ufunc] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder,
}  # fmt: skip
LOGIC: dict[str, Ufunc] = {"&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor}
COMPARE: dict[str, Ufunc] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _operators(meaning: Meaning, sign: str) -> tuple[Operator, Operator]:
    """An operator with a sequence on its left, and with one on its right."""
    return (lambda self, other: meaning(sign, self, other)), (lambda self, other: meaning(sign, other, self))


def refused(rule: str, detail: str) -> Callable[..., NoReturn]:
    """A method that refuses whatever it is asked."""

    def method(self: object, *args: object, **kwargs: object) -> NoReturn:
        refuse(rule, detail)

    return method


def _arithmetic(sign: str, a: Seq | int, b: Seq | int) -> Seq:
    x, y = _pair(sign, a, b)
    if Kind.INDEX in (x._kind, y._kind):
        return _next_index(sign, x, y)
    return token(ARITHMETIC[sign](x._data.astype(np.int64), y._data.astype(np.int64)))


def _next_index(sign: str, x: Seq, y: Seq) -> Seq:
    if x._kind is y._kind:
        refuse("index-arithmetic", f"an index {sign} an index")
    leads = x._kind is Kind.INDEX
    other = y if leads else x
    constant = other._constant
    if constant is None or other._kind is Kind.BOOL:
        refuse("index-to-token", f"an index {sign} a token")
    if constant == 1 and (sign == "+" or (sign == "-" and leads)):
        return Seq(ARITHMETIC[sign](x._data, y._data), Kind.INDEX)
    refuse("index-arithmetic", f"an index {sign} {constant}" if leads else f"{constant} {sign} an index")


def _logic(sign: str, a: Seq | int, b: Seq | int) -> Seq:
    x, y = _pair(sign, a, b)
    if Kind.INDEX in (x._kind, y._kind):
        refuse("index-arithmetic", f"an index in {sign}")
    kind = Kind.BOOL if x._kind is y._kind is Kind.BOOL else Kind.TOKEN
    return Seq(LOGIC[sign](x._data, y._data), kind)


def compare(sign: str, a: Seq | int, b: Seq | int) -> Seq:
    """`a sign b`, position by position; an index only against an index, a count or a constant."""
    x, y = _pair(sign, a, b)
    refuse_mixed(x, y, f"an index {sign} a token")
    return Seq(COMPARE[sign](x._data, y._data), Kind.BOOL)


def refuse_mixed(x: Seq, y: Seq, detail: str) -> None:
    """Refuse an index beside a token, unless that is a constant."""
    other = y if x._kind is Kind.INDEX else x
    if (x._kind is Kind.INDEX) != (y._kind is Kind.INDEX) and other._constant is None:
        refuse("index-to-token", detail)


class Seq:
    """A sequence of values, one per position. `seq(...)` makes one; operators and operations combine them."""

    __slots__ = ("_constant", "_data", "_kind")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: Array, kind: Kind, constant: int | None = None) -> None:
        self._data = data
        self._kind = kind
        self._constant = constant  # the value, where it is one and the same at every position by construction

    def __repr__(self) -> str:  # for a person at a prompt; a file has no text formatting
        return f"Seq({self._kind.value}, {np.array2string(self._data.astype(int), threshold=40)})"

    # --- position by position ------------------------------------------------------------------------------
    __add__, __radd__ = _operators(_arithmetic, "+")
    __sub__, __rsub__ = _operators(_arithmetic, "-")
    __mul__, __rmul__ = _operators(_arithmetic, "*")
    __and__, __rand__ = _operators(_logic, "&")
    __or__, __ror__ = _operators(_logic, "|")
    __xor__, __rxor__ = _operators(_logic, "^")
    __eq__, __ne__ = _operators(compare, "==")[0], _operators(compare, "!=")[0]  # type: ignore[assignment]
    __lt__, __gt__ = _operators(compare, "<")[0], _operators(compare, ">")[0]
    __le__, __ge__ = _operators(compare, "<=")[0], _operators(compare, ">=")[0]

    def __floordiv__(self, other: int) -> Seq:
        return _arithmetic("//", self, _divisor(other))

    def __mod__(self, other: int) -> Seq:
        return _arithmetic("%", self, _divisor(other))

    def __neg__(self) -> Seq:
        return _arithmetic("-", 0, self)

    def __invert__(self) -> Seq:
        if self._kind is Kind.INDEX:
            refuse("index-arithmetic", "~ of an index")
        record("~")
        return Seq(np.invert(self._data), self._kind)

    # --- what Python may not do ----------------------------------------------------------------------------
    __bool__ = refused(
        "control-flow", "a sequence used as a truth value (if, while, and, or, not, a < b < c)"
    )
    __iter__ = refused("indexing", "a sequence iterated over")
    __getitem__ = refused("indexing", "a sequence indexed or sliced")
    __setitem__ = refused("indexing", "a position of a sequence assigned")
    __contains__ = refused("indexing", "`in` a sequence")
    __len__ = refused("step-varies", "the length of a sequence read")
    __int__ = __index__ = __float__ = refused("indexing", "a sequence turned into a Python number")
    __complex__ = __int__
    __array__ = refused("numpy", "a sequence turned into an array")

    def __array_ufunc__(self, function: Any, *args: object, **kwargs: object) -> NoReturn:
        refuse("numpy", f"numpy.{function.__name__} on a sequence")

    __array_function__ = __array_ufunc__


def seq(values: object) -> Seq:
    """A sequence from plain values: a list of integers or booleans, a list of such rows, or an array.

    For the code that runs a program; a program itself never calls it.
    """
    if isinstance(values, Seq):
        return values
    try:
        data = np.asarray(values)
    except ValueError:
        raise InputError("a batch of rows must have rows of one length") from None
    if data.ndim == 0 or data.size == 0:
        raise InputError("a sequence needs at least one position")
    if data.dtype.kind not in "iub":
        raise InputError(f"a sequence holds integers or booleans, not {data.dtype}")
    if data.dtype.kind == "b":
        return Seq(data, Kind.BOOL)
    return token(data.astype(np.int64))


def token(data: Array) -> Seq:
    """A token sequence of these values, refused if one is outside the range of a token."""
    if data.size and (data.max() >= TOKEN_LIMIT or data.min() <= -TOKEN_LIMIT):
        refuse("precision", f"a token of {int(np.abs(data).max())}, beyond {TOKEN_LIMIT - 1}")
    return Seq(data, Kind.TOKEN)


def unwrap(x: Seq) -> Array:
    """The array inside a sequence: for the code around a program, never for a program."""
    return x._data


def kind_of(x: Seq) -> Kind:
    """The kind of a sequence."""
    return x._kind


def _pair(sign: str, a: Seq | int, b: Seq | int) -> tuple[Seq, Seq]:
    x, y = operand(sign, a), operand(sign, b)
    if x._data.ndim and y._data.ndim and x._data.shape[-1] != y._data.shape[-1]:
        sizes = f"{x._data.shape[-1]} and {y._data.shape[-1]} positions"
        raise InputError(f"{sign}: sequences of {sizes} do not match")
    record(sign, *(None if isinstance(value, Seq) else value for value in (a, b)))
    return x, y


def operand(sign: str, value: Seq | int) -> Seq:
    """A sequence as it is; an integer as a constant, within the range of a token."""
    if isinstance(value, Seq):
        return value
    if isinstance(value, bool):
        return Seq(np.asarray(value), Kind.BOOL, int(value))
    if isinstance(value, int):
        if abs(value) >= TOKEN_LIMIT:
            refuse("precision", f"a constant of {value}, beyond {TOKEN_LIMIT - 1}")
        return Seq(np.asarray(value, dtype=np.int64), Kind.TOKEN, value)
    raise InputError(f"{sign}: needs a sequence or an integer beside a sequence, not {type(value).__name__}")


def _divisor(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"// and %: the divisor must be a positive integer, not {value!r}")
    return value


# --- arguments of operations -------------------------------------------------------------------------------
def need_seq(operation: str, name: str, value: object) -> Seq:
    """Return the value if it is a sequence."""
    if not isinstance(value, Seq):
        raise InputError(f"{operation}: {name} must be a sequence, not {type(value).__name__}")
    return value


def need_same(operation: str, name: str, x: object, other: str, y: object) -> None:
    """Raise unless both are sequences of equal shape."""
    a, b = unwrap(need_seq(operation, name, x)).shape, unwrap(need_seq(operation, other, y)).shape
    if a[-1] != b[-1]:
        raise InputError(f"{operation}: {name} has {a[-1]} positions and {other} {b[-1]}, they must be equal")
    try:
        np.broadcast_shapes(a, b)
    except ValueError:
        rows = f"the same rows, not {a} and {b}"
        raise InputError(f"{operation}: {name} and {other} must have {rows}") from None


def need_int(operation: str, name: str, value: object, least: int | None = None) -> int:
    """Return the value if it is an integer: a number of at least `least`, or a token."""
    if not isinstance(value, int):
        raise InputError(f"{operation}: {name} must be an integer, not {type(value).__name__}")
    if least is not None and value < least:
        raise InputError(f"{operation}: {name} must be at least {least}, not {value}")
    if least is None and abs(value) >= TOKEN_LIMIT:
        refuse("precision", f"{operation}: {name} is {value}, beyond {TOKEN_LIMIT - 1}")
    return value


def need_callable(operation: str, name: str, value: object) -> None:
    """Raise unless the value is a function."""
    if not callable(value):
        raise InputError(f"{operation}: {name} must be a function, not {type(value).__name__}")


_CHECKS: dict[str, Callable[[str, str, object], object]] = {
    "Seq": need_seq,
    "int": need_int,
    "Callable": need_callable,
    "Predicate": need_callable,
}
