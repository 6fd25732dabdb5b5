"""Legality by reading: walks a function's syntax tree and names every broken rule. Runs nothing.

What may stand in a program is listed, all else is refused, so a trick nobody thought of is refused too. Three
kinds of code are told apart:

    straight-line   prepare, steps, readout and whatever they call: assignments and calls, no control flow
    scalar          functions of numbers, given to tok_map, seq_map, select, kqv, or as a loop's `times`
    module level    imports, constants, functions, Program(...)   (`looped.rasp.module_level`)

What only values can show (an index in arithmetic, a shape) is left to the run itself: straight-line code does
the same on every input, so one run on a small row shows it all.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType, ModuleType
from weakref import WeakSet

from looped.rasp import core, library
from looped.rasp.rules import RULES, LegalityError, Violation

OPERATIONS = {
    name: value
    for module in (core, library)
    for name, value in vars(module).items()
    if inspect.isfunction(value)
    and value.__module__ == module.__name__
    and not name.startswith(("_", "need_"))
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
ESCAPES = {
    "getattr",
    "setattr",
    "delattr",
    "vars",
    "globals",
    "locals",
    "eval",
    "exec",
    "compile",
    "__import__",
}


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


@dataclass
class Walk:
    """One pass over the functions of a file: the violations so far, and who calls whom."""

    file: str
    found: list[Violation] = field(default_factory=list)
    active: list[tuple[str, str]] = field(
        default_factory=list
    )  # (file, function) being walked, outermost first
    done: set[tuple[str, str, bool]] = field(default_factory=set)

    def flag(self, rule: str, node: ast.AST, detail: str) -> None:
        """Notes a broken rule."""
        violation = Violation(rule, self.file, getattr(node, "lineno", 0), f"{detail} ({RULES[rule]})")
        if violation not in self.found:
            self.found.append(violation)

    def function(self, source: Source, scalar: bool = False, call: ast.AST | None = None) -> None:
        """Walks a function once, and those it calls; one that is being walked already is a recursion."""
        key = (source.file, source.node.name)
        if key in self.active:
            names = [name for _, name in self.active[self.active.index(key) :]]
            self.flag("recursion", call or source.node, " → ".join([*names, source.node.name]))
            return
        if (*key, scalar) in self.done:
            return
        self.done.add((*key, scalar))
        self.active.append(key)
        before, self.file = self.file, source.file
        (ScalarCode if scalar else StraightLine)(self, source.scope).body(source.node)
        self.file = before
        self.active.pop()


class Code:
    """Walks one function body by a table of what is allowed; subclasses fill in the table."""

    statements: tuple[type[ast.AST], ...] = ()
    expressions: tuple[type[ast.AST], ...] = ()

    def __init__(self, walk: Walk, scope: Scope) -> None:
        self.walk = walk
        self.scope = scope
        self.local: set[str] = set()

    def body(self, node: ast.FunctionDef) -> None:
        """Walks parameters, decorators and statements."""
        self.parameters(node.args, node)
        for decorator in node.decorator_list:
            self.walk.flag("hidden-state", decorator, "a decorator")
        for statement in node.body:
            self.statement(statement)

    def parameters(self, arguments: ast.arguments, node: ast.AST) -> None:
        """Plain parameters only; a default must be a number."""
        if arguments.vararg or arguments.kwarg:
            self.walk.flag("hidden-state", node, "* or ** among the parameters")
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            if not _is_number(default):
                self.walk.flag("hidden-state", default, "a default that is not a number")
        self.local |= {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}

    def statement(self, node: ast.stmt) -> None:
        """One statement."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if not isinstance(node, self.statements):
            self.walk.flag(*_refused(node))
            return
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            if node.value is not None:
                self.expression(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self.target(target)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self.statement(child)
            elif isinstance(child, ast.expr):
                self.expression(child)

    def target(self, node: ast.expr) -> None:
        """What is assigned to: names, or a tuple of names."""
        if isinstance(node, ast.Name):
            self.local.add(node.id)
        elif isinstance(node, ast.Tuple):
            for part in node.elts:
                self.target(part)
        else:
            self.walk.flag(*_refused(node))

    def expression(self, node: ast.expr) -> None:
        """One expression."""
        if not isinstance(node, self.expressions):
            self.walk.flag(*_refused(node))
        elif isinstance(node, ast.Name):
            self.name(node)
        elif isinstance(node, ast.Call):
            self.call(node)
        else:
            self.special(node)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.expression(child)

    def special(self, node: ast.expr) -> None:
        """What an allowed expression may still get wrong."""
        bad_operator = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.MatMult))
        if bad_operator:
            self.walk.flag("unknown-name", node, "an operator that sequences do not have")

    def name(self, node: ast.Name) -> None:
        """A name that is read."""
        raise NotImplementedError

    def call(self, node: ast.Call) -> None:
        """A call."""
        raise NotImplementedError


class StraightLine(Code):
    """Code over sequences: assignments, operators, calls of operations and of functions of the module."""

    statements = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass, ast.Expr)
    expressions = (ast.Name, ast.Call, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Tuple, ast.Dict)

    def special(self, node: ast.expr) -> None:
        """`not`, chained comparison, `in`, and operators that sequences lack."""
        super().special(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.walk.flag("control-flow", node, "`not` of a sequence (write ~)")
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift, ast.RShift)):
            self.walk.flag("unknown-name", node, "an operator that sequences do not have")
        if isinstance(node, ast.Compare):
            if len(node.ops) > 1:
                self.walk.flag("control-flow", node, "a chained comparison is an `and` in disguise")
            if any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
                self.walk.flag("indexing", node, "`in` a sequence")
            if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
                self.walk.flag("control-flow", node, "`is` asks for an object, not for values")
        if isinstance(node, ast.Dict) and not all(_is_text(key) for key in node.keys):
            self.walk.flag("hidden-state", node, "a dict whose keys are not plain text")

    def name(self, node: ast.Name) -> None:
        """A local name, a number of the module, or an operation given as a predicate."""
        if node.id in self.local:
            return
        means = self.scope(node.id).means
        if means is Means.NUMPY:
            self.walk.flag("numpy", node, f"{node.id} used")
        elif means not in (Means.CONSTANT, Means.OPERATION) and node.id not in ("True", "False"):
            rule = "hidden-state" if means is Means.UNKNOWN else "unknown-name"
            self.walk.flag(rule, node, f"{node.id!r} is neither local nor a number of the module")

    def call(self, node: ast.Call) -> None:
        """An operation, a function of the module, or dict(...)."""
        callee = self.callee(node.func)
        if callee is None:
            return
        position, keyword = FUNCTION_ARGUMENT.get(callee, (-1, ""))
        for i, argument in enumerate(node.args):
            if i == position:
                self.scalar(argument)
            else:
                self.expression(argument)
        for given in node.keywords:
            if given.arg is None:
                self.walk.flag("hidden-state", node, "** in a call")
            elif given.arg == keyword and callee:
                self.scalar(given.value)
            else:
                self.expression(given.value)
        self.causal(callee, node)

    def callee(self, func: ast.expr) -> str | None:
        """The called operation's name, "" for a function of the module, None for what has been flagged."""
        if (
            isinstance(func, ast.Attribute)
            and isinstance(func.value, ast.Name)
            and func.value.id not in self.local
        ):
            means = self.scope(func.value.id).means
            if means is Means.RASP_MODULE and func.attr in OPERATIONS:
                return func.attr
            if means is Means.NUMPY:
                self.walk.flag("numpy", func, f"{func.value.id}.{func.attr} called")
                return None
        if not isinstance(func, ast.Name):
            self.walk.flag(*_refused(func))
            return None
        if func.id in self.local:
            self.walk.flag("unknown-name", func, f"{func.id!r} called, which is a local name")
            return None
        binding = self.scope(func.id)
        if binding.means is Means.OPERATION:
            return binding.name
        if binding.means is Means.FUNCTION:
            if binding.function is not None:
                self.walk.function(binding.function, call=func)
            return ""
        if func.id == "dict" and binding.means is Means.UNKNOWN:
            return ""
        self.walk.flag(*_refused_call(func, binding))
        return None

    def scalar(self, node: ast.expr) -> None:
        """A function argument: a lambda of numbers, a predicate, a built-in, or a function of the module."""
        if isinstance(node, ast.Lambda):
            code = ScalarCode(self.walk, self.scope)
            code.parameters(node.args, node)
            code.expression(node.body)
        elif isinstance(node, ast.Name) and node.id not in self.local:
            binding = self.scope(node.id)
            if binding.means is Means.FUNCTION:
                if binding.function is not None:
                    self.walk.function(binding.function, scalar=True, call=node)
            elif binding.means is not Means.OPERATION and node.id not in SCALAR_BUILTINS:
                self.walk.flag("unknown-name", node, f"{node.id!r} is no function of the module")
        else:
            self.expression(node)

    def causal(self, callee: str, node: ast.Call) -> None:
        """`select` looks back only."""
        given = [k.value for k in node.keywords if k.arg == "causal"] + node.args[3:4]
        for value in given if callee == "select" else []:
            if not (isinstance(value, ast.Constant) and value.value is True):
                self.walk.flag("causality", node, "select without causal=True")


class ScalarCode(Code):
    """Code over numbers: arithmetic and choices, but no loop and nothing from outside except numbers."""

    statements = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass, ast.Expr, ast.If)
    expressions = (
        *(ast.Name, ast.Call, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Tuple),
        *(ast.BoolOp, ast.IfExp),
    )

    def name(self, node: ast.Name) -> None:
        """A parameter, a local, or a number of the module."""
        if node.id not in self.local and self.scope(node.id).means is not Means.CONSTANT:
            self.walk.flag(
                "hidden-state", node, f"{node.id!r} is neither an argument nor a number of the module"
            )

    def call(self, node: ast.Call) -> None:
        """A built-in of numbers, a number's bit_length(), or a function of the module."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "bit_length" and not node.args:
            self.expression(node.func.value)
            return
        if not isinstance(node.func, ast.Name) or node.keywords:
            self.walk.flag(*_refused(node.func))
            return
        binding = self.scope(node.func.id)
        if binding.means is Means.FUNCTION:
            if binding.function is not None:
                self.walk.function(binding.function, scalar=True, call=node)
        elif node.func.id not in SCALAR_BUILTINS:
            self.walk.flag(*_refused_call(node.func, binding))
        for argument in node.args:
            self.expression(argument)


# --- what a refused piece of syntax breaks ----------------------------------------------------------------
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


def _refused(node: ast.AST) -> tuple[str, ast.AST, str]:
    for kinds, rule, detail in _REFUSED:
        if isinstance(node, kinds):
            attribute = f" .{node.attr}" if isinstance(node, ast.Attribute) else ""
            return rule, node, detail + attribute
    return "hidden-state", node, f"{type(node).__name__} has no place in a program"


def _refused_call(func: ast.Name, binding: Binding) -> tuple[str, ast.AST, str]:
    if binding.means is Means.NUMPY:
        return "numpy", func, f"{func.id}(...) called"
    if func.id == "len":
        return "step-varies", func, "the length of a sequence read"
    if func.id in ESCAPES:
        return "hidden-state", func, f"{func.id}(...) called"
    if hasattr(builtins, func.id):
        return "indexing", func, f"Python's {func.id}(...) called"
    return "unknown-name", func, f"{func.id}(...) called"


def _is_number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


# --- functions that exist already -------------------------------------------------------------------------
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
