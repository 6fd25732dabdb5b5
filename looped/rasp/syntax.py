"""The vocabulary of the legality check: what names mean, which rule a piece of syntax breaks. Walks nothing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from looped.rasp import core, library

OPERATIONS = {
    name: value
    for module in (core, library)
    for name, value in vars(module).items()
    if inspect.isfunction(value)
    and value.__module__ == module.__name__
    and not name.startswith("_")
    and name not in {"identity", "sample"}
}
# Where an operation takes a function: its position among the arguments, and its keyword.
FUNCTION_ARGUMENT = {
    "tok_map": (1, "func"),
    "seq_map": (2, "func"),
    "select": (2, "pred"),
    "kqv": (3, "pred"),
}
SCALAR_BUILTINS = {"min", "max", "abs", "int", "bool", "divmod"}
# fmt: off
# Python's own functions that would take a sequence apart, and those that reach around all rules.
READERS = {
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int", "iter", "list", "map",
    "max", "min", "next", "pow", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple",
    "zip",
}
ESCAPES = {
    "getattr", "setattr", "delattr", "vars", "globals", "locals", "eval", "exec", "compile", "__import__",
}
# fmt: on


class Means(Enum):
    """What a name of the enclosing module stands for."""

    OPERATION = "an operation"
    FUNCTION = "a function of the same module"
    CONSTANT = "a number"
    RASP_MODULE = "the module looped.rasp"
    NUMPY = "numpy"
    UNKNOWN = "something else"


@dataclass
class Binding:
    """What a module-level name means and, for a function whose source can be read, that source."""

    means: Means
    name: str = ""
    function: Source | None = None


Scope = Callable[[str], Binding]


@dataclass
class Source:
    """A function as text: its tree, the file it is in, and what its names mean there."""

    node: ast.FunctionDef
    file: str
    scope: Scope


_REFUSED: tuple[tuple[tuple[type[ast.AST], ...], str, str], ...] = (
    ((ast.Subscript, ast.Slice), "indexing", "a sequence indexed or sliced"),
    ((ast.List, ast.Set, ast.Starred), "indexing", "a sequence taken apart"),
    ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "control-flow", "a comprehension"),
    ((ast.If, ast.IfExp, ast.Match), "control-flow", "a branch"),
    ((ast.For, ast.AsyncFor, ast.While), "control-flow", "a loop inside a function"),
    ((ast.BoolOp,), "control-flow", "`and` or `or` of sequences (write & or |)"),
    (
        (ast.Try, ast.TryStar, ast.With, ast.AsyncWith, ast.Raise, ast.Assert),
        "control-flow",
        "a guarded block",
    ),
    ((ast.Yield, ast.YieldFrom, ast.Await), "control-flow", "a generator"),
    ((ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr), "hidden-state", "a name from outside changed"),
    (
        (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
        "hidden-state",
        "an inner definition",
    ),
    ((ast.Import, ast.ImportFrom), "unknown-name", "an import inside a function"),
    ((ast.Attribute,), "hidden-state", "an attribute"),
)


def refused(node: ast.AST) -> tuple[str, ast.AST, str]:
    """Rule, place and words for a piece of syntax that has no place where it stands."""
    for kinds, rule, detail in _REFUSED:
        if isinstance(node, kinds):
            attribute = f" .{node.attr}" if isinstance(node, ast.Attribute) else ""
            return rule, node, detail + attribute
    return "hidden-state", node, f"{type(node).__name__} has no place in a program"


def refused_call(func: ast.Name, binding: Binding) -> tuple[str, ast.AST, str]:
    """Rule, place and words for a call of something that a program may not call."""
    if binding.means is Means.NUMPY:
        return "numpy", func, f"{func.id}(...) called"
    if func.id == "len":
        return "step-varies", func, "the length of a sequence read"
    if func.id in ESCAPES:
        return "hidden-state", func, f"{func.id}(...) called"
    if func.id in READERS:
        return "indexing", func, f"Python's {func.id}(...) called"
    return "unknown-name", func, f"{func.id}(...) called"


def is_number(node: ast.AST) -> bool:
    """Whether it is a literal integer."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def is_text(node: ast.AST | None) -> bool:
    """Whether it is a literal string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
