"""The grammar of function bodies. What is not listed is illegal, with line and rule.

    straight-line   prepare, steps, readout and what they call: assignments, operators, calls
    numbers         functions given to tok_map, seq_map, select, kqv, and a loop's `times`: also `if` and choices

`docs/nrasp.md` has the same grammar on one page.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable

from looped.rasp.interpreter import (
    BINARY,
    COMPARISONS,
    NUMBER_FUNCTIONS,
    FileFunction,
    FileModule,
    Namespace,
    Opaque,
    literal_number,
)
from looped.rasp.lint_rules import Findings
from looped.rasp.program import parameters
from looped.rasp.sequence import OPERATIONS
from looped.rasp.toplevel import SourceFile, check_annotation

_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass, ast.Expr)
_EXPRESSIONS = (ast.Name, ast.Call, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare)
_NUMBER_STATEMENTS = (*_STATEMENTS, ast.If)
_NUMBER_EXPRESSIONS = (*_EXPRESSIONS, ast.BoolOp, ast.IfExp)
_NUMBER_OPERATORS = (ast.Pow, ast.LShift, ast.RShift)
# Where an operation takes a function of numbers: its position among the arguments, and its keyword.
FUNCTION_ARGUMENT = {
    "tok_map": (1, "func"),
    "seq_map": (2, "func"),
    "select": (2, "pred"),
    "kqv": (3, "pred"),
}
# fmt: off
# Python's own functions that would take a sequence apart, and those that reach around all rules.
READERS = {
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "format", "hash", "int", "iter",
    "list", "map", "max", "min", "next", "pow", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum",
    "tuple", "zip",
}
ESCAPES = {
    "getattr", "setattr", "delattr", "vars", "globals", "locals", "eval", "exec", "compile", "open", "print",
    "__import__", "type", "super", "object", "breakpoint", "input",
}
# fmt: on
_REFUSED: tuple[tuple[tuple[type[ast.AST], ...], str, str], ...] = (
    ((ast.Subscript, ast.Slice), "indexing", "a sequence indexed or sliced"),
    ((ast.List, ast.Set, ast.Starred, ast.Tuple), "indexing", "a sequence taken apart"),
    ((ast.JoinedStr, ast.FormattedValue), "indexing", "a sequence turned into text"),
    ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "control-flow", "a comprehension"),
    ((ast.If, ast.IfExp, ast.Match), "control-flow", "a branch"),
    ((ast.For, ast.AsyncFor, ast.While), "control-flow", "a loop inside a function"),
    ((ast.BoolOp,), "control-flow", "`and` or `or` of sequences (write & or |)"),
    ((ast.Try, ast.TryStar, ast.With, ast.AsyncWith), "control-flow", "a guarded block"),
    ((ast.Raise, ast.Assert), "control-flow", "a way out of the program"),
    ((ast.Yield, ast.YieldFrom, ast.Await), "control-flow", "a generator"),
    ((ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr), "hidden-state", "a name from outside changed"),
    (
        (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda),
        "hidden-state",
        "an inner definition",
    ),
    ((ast.Dict,), "hidden-state", "a dict that is not returned"),
    ((ast.Import, ast.ImportFrom), "unknown-name", "an import inside a function"),
)


class Bodies:
    """Checks function bodies, each once for every way in which it is used."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.active: list[FileFunction] = []
        self.done: set[tuple[FileFunction, bool]] = set()

    def check(self, source: SourceFile) -> None:
        """Check every function of a file, starting from its programs."""
        for function in source.lambdas:
            self.function(function, numbers=True)
        for program in source.programs.values():
            for loop in program.loops:
                for part in loop.all_loops():
                    self.function(part.times, numbers=True)
            self.function(program.answer_size, numbers=True)
            for step in program.functions:
                self.function(step, numbers=False)
        alone = [f for name, f in source.functions.items() if name not in source.used]
        for function in (*alone, *source.functions.values()):
            if (function, True) not in self.done:
                self.function(function, numbers=False)

    def function(self, function: object, numbers: bool, call: ast.AST | None = None) -> None:
        """Check a function and those that it calls; one that is being checked already is a recursion."""
        if not isinstance(function, FileFunction):
            return
        if function in self.active:
            names = [each.__name__ for each in self.active[self.active.index(function) :]]
            text = " → ".join([*names, function.__name__])
            self.findings.flag("recursion", call or function.node, text)
            return
        if (function, numbers) in self.done:
            return
        self.done.add((function, numbers))
        self.active.append(function)
        (NumberBody if numbers else Body)(self, function).check()
        self.active.pop()


class Body:
    """The grammar of straight-line code: assignments, operators, calls of operations and of the file's functions."""

    statements: tuple[type[ast.stmt], ...] = _STATEMENTS
    expressions: tuple[type[ast.expr], ...] = _EXPRESSIONS

    def __init__(self, bodies: Bodies, function: FileFunction) -> None:
        self.bodies, self.function, self.flag = bodies, function, bodies.findings.flag
        self.module: FileModule = function.module
        self.local = set(parameters(function))

    def check(self) -> None:
        """Check parameters, decorators and statements."""
        node = self.function.node
        arguments = node.args
        if arguments.vararg or arguments.kwarg:
            self.flag("hidden-state", node, "* or ** among the parameters")
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            if literal_number(default) is None:
                self.flag("hidden-state", default, "a default that is not a number")
        if isinstance(node, ast.Lambda):
            self.expression(node.body)
            return
        if getattr(node, "type_params", ()):
            self.flag("hidden-state", node, "a type parameter")
        for decorator in node.decorator_list:
            self.flag("hidden-state", decorator, "a decorator")
        for statement in node.body:
            self.statement(statement)

    # --- statements ----------------------------------------------------------------------------------------
    def statement(self, node: ast.stmt) -> None:
        """One statement."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if not isinstance(node, self.statements):
            self.refused(node)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            self.assignment(node)
        elif isinstance(node, ast.Return):
            if node.value is None:
                self.flag("argument", node, "a return without a value")
            else:
                self.value(node.value)
        elif isinstance(node, ast.If):
            self.expression(node.test)
            for inner in (*node.body, *node.orelse):
                self.statement(inner)
        elif isinstance(node, ast.Expr):
            self.expression(node.value)

    def assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        """Names, or a tuple of names, on the left."""
        if isinstance(node, ast.AnnAssign):
            check_annotation(self.bodies.findings, node.annotation)
        if isinstance(node, ast.AugAssign):
            self.expression(node.target) if isinstance(node.target, ast.Name) else self.refused(node.target)
            self.operator(node, node.op)
        if isinstance(node, ast.Assign):
            self.value(node.value)
        elif node.value is not None:
            self.expression(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self.target(target)

    def target(self, node: ast.expr) -> None:
        """What is assigned to."""
        if isinstance(node, ast.Name):
            self.local.add(node.id)
        elif isinstance(node, ast.Tuple) and all(isinstance(part, ast.Name) for part in node.elts):
            self.local |= {part.id for part in node.elts if isinstance(part, ast.Name)}
        else:
            self.refused(node)

    def value(self, node: ast.expr) -> None:
        """What is returned or assigned: an expression, a tuple of them, or a state."""
        if isinstance(node, ast.Tuple):
            for part in node.elts:
                self.expression(part)
        elif isinstance(node, ast.Dict):
            texts = [key.value for key in node.keys if isinstance(key, ast.Constant)]
            if len(texts) != len(node.keys) or not all(isinstance(text, str) for text in texts):
                self.flag("hidden-state", node, "a dict whose keys are not plain text")
            for part in node.values:
                self.expression(part)
        else:
            self.expression(node)

    # --- expressions ---------------------------------------------------------------------------------------
    def expression(self, node: ast.expr) -> None:
        """One expression."""
        if not isinstance(node, self.expressions):
            self.refused(node)
        elif isinstance(node, ast.Name):
            self.name(node)
        elif isinstance(node, ast.Call):
            self.call(node)
        elif isinstance(node, ast.Constant):
            if not isinstance(node.value, int):
                is_text = isinstance(node.value, str)
                self.flag("indexing" if is_text else "argument", node, "a literal that is no integer")
        else:
            if isinstance(node, ast.BinOp):
                self.operator(node, node.op)
            elif isinstance(node, ast.UnaryOp):
                self.unary(node)
            elif isinstance(node, ast.Compare):
                self.comparison(node)
                return
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.expression(child)

    def operator(self, node: ast.AST, op: ast.operator) -> None:
        """An operator that sequences have."""
        if type(op) not in BINARY or isinstance(op, _NUMBER_OPERATORS):
            self.flag("unknown-name", node, "an operator that sequences do not have")

    def unary(self, node: ast.UnaryOp) -> None:
        """`-x` and `~x`."""
        if isinstance(node.op, ast.Not):
            self.flag("control-flow", node, "`not` of a sequence (write ~)")
        elif isinstance(node.op, ast.UAdd):
            self.flag("unknown-name", node, "an operator that sequences do not have")

    def comparison(self, node: ast.Compare) -> None:
        """One comparison by value."""
        if len(node.ops) > 1:
            self.flag("control-flow", node, "a chained comparison is an `and` in disguise")
        for op in node.ops:
            if isinstance(op, (ast.In, ast.NotIn)):
                self.flag("indexing", node, "`in` a sequence")
            elif type(op) not in COMPARISONS:
                self.flag("control-flow", node, "`is` asks for an object, not for values")
        for part in (node.left, *node.comparators):
            self.expression(part)

    def name(self, node: ast.Name) -> None:
        """A local name, or a number of the file."""
        if node.id in self.local:
            return
        value = self.module.look_up(node.id)
        if node.id in self.function.assigned:
            self.flag("hidden-state", node, f"{node.id!r} is read before it is assigned")
        elif isinstance(value, Opaque) and value.origin.startswith("numpy"):
            self.flag("numpy", node, f"{node.id} used")
        elif not isinstance(value, int):
            rule = "hidden-state" if value is None or isinstance(value, Opaque) else "unknown-name"
            self.flag(rule, node, f"{node.id!r} is neither local nor a number of the file")

    # --- calls ---------------------------------------------------------------------------------------------
    def call(self, node: ast.Call) -> None:
        """An operation, a function of the file, or dict(...)."""
        if self.is_builtin(node, "dict"):
            if node.args or any(keyword.arg is None for keyword in node.keywords):
                self.flag("hidden-state", node, "dict(...) takes variables by name")
            for keyword in node.keywords:
                self.expression(keyword.value)
            return
        callee = self.callee(node.func)
        if callee is None:
            return
        self.arity(node, callee)
        if isinstance(callee, FileFunction):
            self.bodies.function(callee, numbers=False, call=node.func)
        name = "" if isinstance(callee, FileFunction) else callee.__name__
        position, word = FUNCTION_ARGUMENT.get(name, (-1, ""))
        for i, argument in enumerate(node.args):
            self.number_function(argument) if i == position else self.argument(name, argument)
        for keyword in node.keywords:
            if keyword.arg == word:
                self.number_function(keyword.value)
            else:
                self.argument(name, keyword.value)
        self.causal(name, node)

    def argument(self, name: str, node: ast.expr) -> None:
        """An argument; a reduction is written as text."""
        if not (
            name in ("kqv", "aggregate") and isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            self.expression(node)

    def is_builtin(self, node: ast.Call, name: str) -> bool:
        """Whether a call is one of Python's function of this name, which no name of the file hides."""
        named = isinstance(node.func, ast.Name) and node.func.id == name
        return named and name not in self.local and self.module.look_up(name) is None

    def callee(self, func: ast.expr) -> Callable[..., object] | None:
        """The called operation or function; None for what has been flagged."""
        value = self.resolved(func)
        if isinstance(value, FileFunction):
            return value
        if callable(value) and OPERATIONS.get(getattr(value, "__name__", "")) is value:
            return value
        root = func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            self.refused(func)
        elif root.id in self.local and isinstance(func, ast.Name):
            self.flag("unknown-name", func, f"{root.id!r} called, which is a local name")
        elif isinstance(found := self.module.look_up(root.id), Opaque) and found.origin.startswith("numpy"):
            self.flag("numpy", func, f"{ast.unparse(func)[:60]} called")
        elif isinstance(func, ast.Attribute):
            self.refused(func)
        elif root.id == "len":
            self.flag("step-varies", func, "the length of a sequence read")
        elif root.id in ESCAPES:
            self.flag("hidden-state", func, f"{root.id}(...) called")
        elif root.id in READERS:
            self.flag("indexing", func, f"Python's {root.id}(...) called")
        else:
            self.flag("unknown-name", func, f"{root.id[:60]}(...) called")
        return None

    def resolved(self, func: ast.expr) -> object:
        """What a name, or a dotted name of an imported module, stands for."""
        if isinstance(func, ast.Name):
            return None if func.id in self.local else self.module.look_up(func.id)
        if isinstance(func, ast.Attribute):
            owner = self.resolved(func.value)
            return owner.get(func.attr) if isinstance(owner, Namespace) else None
        return None

    def arity(self, node: ast.Call, callee: Callable[..., object]) -> None:
        """The arguments fit the parameters."""
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            self.flag("hidden-state", node, "* or ** in a call")
            return
        try:
            names = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(callee).bind(*[None] * len(node.args), **names)
        except TypeError as error:
            self.flag("argument", node, f"{callee.__name__}: {error}")

    def number_function(self, node: ast.expr) -> None:
        """A function argument: a lambda, a predicate, a built-in of numbers, or a function of the file."""
        value = self.resolved(node)
        if isinstance(node, ast.Lambda):
            self.bodies.function(self.module.function(node), numbers=True)
        elif isinstance(value, FileFunction):
            self.bodies.function(value, numbers=True, call=node)
        elif value is None and isinstance(node, ast.Name) and node.id in NUMBER_FUNCTIONS.keys() - self.local:
            return
        elif not (callable(value) and OPERATIONS.get(getattr(value, "__name__", "")) is value):
            self.flag("unknown-name", node, "a function argument that is no function of the file")

    def causal(self, name: str, node: ast.Call) -> None:
        """`select` looks back only."""
        given = [k.value for k in node.keywords if k.arg == "causal"] + node.args[3:4]
        for value in given if name == "select" else []:
            if not (isinstance(value, ast.Constant) and value.value is True):
                self.flag("causality", node, "select without causal=True")

    def refused(self, node: ast.AST) -> None:
        """Flag a piece of syntax that the grammar does not list."""
        for kinds, rule, detail in _REFUSED:
            if isinstance(node, kinds):
                self.flag(rule, node, detail)
                return
        what = f"an attribute .{node.attr[:60]}" if isinstance(node, ast.Attribute) else type(node).__name__
        self.flag("hidden-state", node, f"{what} has no place in a program")


class NumberBody(Body):
    """The grammar of functions of numbers: arithmetic and choices, nothing from outside except numbers."""

    statements = _NUMBER_STATEMENTS
    expressions = _NUMBER_EXPRESSIONS

    def operator(self, node: ast.AST, op: ast.operator) -> None:
        """An operator that integers have."""
        if type(op) not in BINARY:
            self.flag("unknown-name", node, "an operator that integers do not have")

    def unary(self, node: ast.UnaryOp) -> None:
        """Every sign."""

    def comparison(self, node: ast.Compare) -> None:
        """Comparisons by value, chained or not; `in` a tuple of numbers."""
        parts = [node.left]
        for op, part in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, (ast.In, ast.NotIn)) and isinstance(part, ast.Tuple) and len(node.ops) == 1:
                parts += part.elts
            elif type(op) in COMPARISONS:
                parts.append(part)
            else:
                self.flag("control-flow", node, "`is`, or `in` anything but a tuple")
        for part in parts:
            self.expression(part)

    def call(self, node: ast.Call) -> None:
        """A built-in of numbers, a number's bit_length(), or a function of the file."""
        func = node.func
        if (
            isinstance(func, ast.Attribute)
            and func.attr == "bit_length"
            and not node.args
            and not node.keywords
        ):
            self.expression(func.value)
            return
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            self.flag("hidden-state", node, "a keyword or * in a call of numbers")
        value = self.resolved(func)
        if isinstance(value, FileFunction):
            self.arity(node, value)
            self.bodies.function(value, numbers=True, call=node)
        elif not self._is_number_function(node) and self.callee(func) is not None:
            self.flag("unknown-name", func, "an operation on numbers")
        for argument in node.args:
            self.expression(argument)

    def _is_number_function(self, node: ast.Call) -> bool:
        func = node.func
        return isinstance(func, ast.Name) and func.id in NUMBER_FUNCTIONS and self.is_builtin(node, func.id)
