"""Legality of functions that exist already: their source is found and read before they run.

A function without a readable source (typed into a plain interpreter, made by `exec`) is not refused: the
sequences themselves still refuse whatever breaks a rule while it runs.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import FunctionType, ModuleType
from weakref import WeakSet

from looped.rasp.rules import LegalityError
from looped.rasp.static import Walk
from looped.rasp.syntax import OPERATIONS, Binding, Means, Scope, Source

_legal: WeakSet[FunctionType] = WeakSet()


def require_legal(function: object, scalar: bool = False) -> None:
    """Raises `LegalityError` for the first broken rule of a function, if its source can be read."""
    if not isinstance(function, FunctionType) or function in _legal:
        return
    source = _source(function)
    if source is not None:
        walk = Walk(source.file)
        walk.function(source, scalar)
        for violation in walk.found:
            raise LegalityError(violation)
    _legal.add(function)


def _source(function: FunctionType) -> Source | None:
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return None
    ast.increment_lineno(tree, first - 1)
    if not isinstance(tree.body[0], ast.FunctionDef):
        return None  # a lambda: what it does shows when it runs
    return Source(tree.body[0], function.__code__.co_filename, _live_scope(function))


def _live_scope(function: FunctionType) -> Scope:
    """What the names of a function mean, from the module it lives in."""

    def look_up(name: str) -> Binding:
        value = function.__globals__.get(name, None)
        if isinstance(value, int):
            return Binding(Means.CONSTANT)
        if isinstance(value, FunctionType):
            if OPERATIONS.get(value.__name__) is value:
                return Binding(Means.OPERATION, value.__name__)
            if _is_interpreter(value):
                return Binding(Means.UNKNOWN)
            return Binding(Means.FUNCTION, name, _source(value))
        if isinstance(value, ModuleType) and value.__name__ == "looped.rasp":
            return Binding(Means.RASP_MODULE)
        if _home(value) == "numpy":
            return Binding(Means.NUMPY)
        return Binding(Means.UNKNOWN)

    return look_up


def _is_interpreter(function: FunctionType) -> bool:
    """Whether a function is a part of looped.rasp that is no operation and no program's."""
    module = function.__module__ or ""
    return module.startswith("looped.rasp") and not module.startswith("looped.rasp.programs")


def _home(value: object) -> str:
    """The top-level package something comes from."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "").split(".")[0]
