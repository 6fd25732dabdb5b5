"""The grammar of function bodies. What is not listed is illegal, with line and rule.

    straight-line   prepare, steps, readout and what they call: assignments, operators, calls
    numbers         functions given to tok_map, seq_map, select, kqv, and a loop's `times`: also `if` and choices

`docs/nrasp.md` has the same grammar on one page.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Container

from looped.rasp import interpreter
from looped.rasp.interpreter import COMPARISONS, NUMBER_FUNCTIONS, FileFunction, Namespace, Opaque
from looped.rasp.lint_rules import Findings
from looped.rasp.program import Loop, parameters
from looped.rasp.sequence import is_operation
from looped.rasp.toplevel import SourceFile, check_annotation

_STATEMENTS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Pass, ast.Expr)
_EXPRESSIONS = (ast.Name, ast.Call, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_NUMBER_OPERATORS = {*interpreter.BINARY, *interpreter.UNARY, ast.Not}
_OF_NUMBERS_ALONE = {ast.Pow, ast.LShift, ast.RShift, ast.UAdd, ast.Not}
# Where an operation takes a function of numbers: its position among the arguments, and its keyword.
FUNCTION_PLACE = {"tok_map": (1, "func"), "seq_map": (2, "func"), "select": (2, "pred"), "kqv": (3, "pred")}
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
    (_DEFINITIONS, "hidden-state", "an inner definition"),
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
                for part in loop.all_parts():
                    if isinstance(part, Loop):
                        self.function(part.times, numbers=True)
            self.function(program.answer_size, numbers=True)
            for step in program.functions:
                self.function(step, numbers=False)
        for function in (*source.alone.values(), *source.functions.values()):
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
    operators: Container[type[ast.AST]] = _NUMBER_OPERATORS - _OF_NUMBERS_ALONE
    values = "sequences"

    def __init__(self, bodies: Bodies, function: FileFunction) -> None:
        self.bodies, self.function, self.flag = bodies, function, bodies.findings.flag
        self.module: interpreter.FileModule = function.module
        self.local = set(parameters(function))

    def check(self) -> None:
        """Check parameters, decorators and statements."""
        node = self.function.node
        arguments = node.args
        if arguments.vararg or arguments.kwarg:
            self.flag("hidden-state", node, "* or ** among the parameters")
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            if interpreter.literal_number(default) is None:
                self.flag("hidden-state", default, "a default that is not a number")
        if isinstance(node, ast.Lambda):
            self._expression(node.body)
            return
        if getattr(node, "type_params", ()):
            self.flag("hidden-state", node, "a type parameter")
        for decorator in node.decorator_list:
            self.flag("hidden-state", decorator, "a decorator")
        for statement in node.body:
            self._statement(statement)

    # --- statements ----------------------------------------------------------------------------------------
    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if not isinstance(node, self.statements):
            self._refused(node)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            self._assignment(node)
        elif isinstance(node, ast.Return):
            if node.value is None:
                self.flag("argument", node, "a return without a value")
            else:
                self._value(node.value)
        elif isinstance(node, ast.If):
            self._expression(node.test)
            for inner in (*node.body, *node.orelse):
                self._statement(inner)
        elif isinstance(node, ast.Expr):
            self._expression(node.value)

    def _assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> None:
        """Names, or a tuple of names, on the left."""
        if isinstance(node, ast.AnnAssign):
            check_annotation(self.bodies.findings, node.annotation)
        if isinstance(node, ast.AugAssign):
            self._expression(node.target) if isinstance(node.target, ast.Name) else self._refused(node.target)
            self._operator(node, node.op)
        if isinstance(node, ast.Assign):
            self._value(node.value)
        elif node.value is not None:
            self._expression(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            self._target(target)

    def _target(self, node: ast.expr) -> None:
        if isinstance(node, ast.Name):
            self.local.add(node.id)
        elif isinstance(node, ast.Tuple) and all(isinstance(part, ast.Name) for part in node.elts):
            self.local |= {part.id for part in node.elts if isinstance(part, ast.Name)}
        else:
            self._refused(node)

    def _value(self, node: ast.expr) -> None:
        """What is returned or assigned: an expression, a tuple of them, or a state."""
        parts = [node]
        if isinstance(node, ast.Tuple):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = node.values
            if not all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
                self.flag("hidden-state", node, "a dict whose keys are not plain text")
        for part in parts:
            self._expression(part)

    # --- expressions ---------------------------------------------------------------------------------------
    def _expression(self, node: ast.expr) -> None:
        if not isinstance(node, self.expressions):
            self._refused(node)
        elif isinstance(node, ast.Name):
            self._name(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        elif isinstance(node, ast.Compare):
            self._comparison(node)
        elif isinstance(node, ast.Constant):
            if not isinstance(node.value, int):
                is_text = isinstance(node.value, str)
                self.flag("indexing" if is_text else "argument", node, "a literal that is no integer")
        else:
            if isinstance(node, ast.BinOp | ast.UnaryOp):
                self._operator(node, node.op)
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._expression(child)

    def _operator(self, node: ast.AST, op: ast.operator | ast.unaryop) -> None:
        """An operator that such values have."""
        if isinstance(op, ast.Not) and ast.Not not in self.operators:
            self.flag("control-flow", node, "`not` of a sequence (write ~)")
        elif type(op) not in self.operators:
            self.flag("unknown-name", node, f"an operator that {self.values} do not have")

    def _comparison(self, node: ast.Compare) -> None:
        if len(node.ops) > 1:
            self.flag("control-flow", node, "a chained comparison is an `and` in disguise")
        for op in node.ops:
            if isinstance(op, (ast.In, ast.NotIn)):
                self.flag("indexing", node, "`in` a sequence")
            elif type(op) not in COMPARISONS:
                self.flag("control-flow", node, "`is` asks for an object, not for values")
        for part in (node.left, *node.comparators):
            self._expression(part)

    def _name(self, node: ast.Name) -> None:
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
    def _call(self, node: ast.Call) -> None:
        """An operation, a function of the file, or dict(...)."""
        if self.builtin(node.func) == "dict":
            if node.args or any(keyword.arg is None for keyword in node.keywords):
                self.flag("hidden-state", node, "dict(...) takes variables by name")
            for keyword in node.keywords:
                self._expression(keyword.value)
            return
        callee = self._callee(node.func)
        if callee is None:
            return
        self._arity(node, callee)
        if isinstance(callee, FileFunction):
            self.bodies.function(callee, numbers=False, call=node.func)
        name = "" if isinstance(callee, FileFunction) else callee.__name__
        given: list[tuple[int | str | None, ast.expr]] = [*enumerate(node.args)]
        for at, argument in [*given, *((keyword.arg, keyword.value) for keyword in node.keywords)]:
            plain = argument.value if isinstance(argument, ast.Constant) else None
            if at in FUNCTION_PLACE.get(name, ()):
                self._number_function(argument)
            elif not (name in ("kqv", "aggregate") and isinstance(plain, str)):  # a reduction is text
                self._expression(argument)
            if name == "select" and at in (3, "causal") and plain is not True:
                self.flag("causality", node, "select without causal=True")

    def builtin(self, func: ast.expr) -> str:
        """The name of a function of Python's that is called, if no name of the file hides it."""
        if isinstance(func, ast.Name) and func.id not in self.local and self._resolved(func) is None:
            return func.id
        return ""

    def _callee(self, func: ast.expr) -> Callable[..., object] | None:
        """The called operation or function; None for what has been flagged."""
        value = self._resolved(func)
        if isinstance(value, FileFunction) or is_operation(value):
            return value  # type: ignore[return-value]
        root = func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name):
            self._refused(func)
        elif root.id in self.local and isinstance(func, ast.Name):
            self.flag("unknown-name", func, f"{root.id!r} called, which is a local name")
        elif isinstance(found := self.module.look_up(root.id), Opaque) and found.origin.startswith("numpy"):
            self.flag("numpy", func, f"{ast.unparse(func)[:60]} called")
        elif isinstance(func, ast.Attribute):
            self._refused(func)
        elif root.id == "len":
            self.flag("step-varies", func, "the length of a sequence read")
        elif root.id in ESCAPES:
            self.flag("hidden-state", func, f"{root.id}(...) called")
        elif root.id in READERS:
            self.flag("indexing", func, f"Python's {root.id}(...) called")
        else:
            self.flag("unknown-name", func, f"{root.id[:60]}(...) called")
        return None

    def _resolved(self, func: ast.expr) -> object:
        """What a name, or a dotted name of an imported module, stands for."""
        if isinstance(func, ast.Name):
            return None if func.id in self.local else self.module.look_up(func.id)
        if isinstance(func, ast.Attribute):
            owner = self._resolved(func.value)
            return owner.get(func.attr) if isinstance(owner, Namespace) else None
        return None

    def _arity(self, node: ast.Call, callee: Callable[..., object]) -> None:
        """The arguments fit the parameters."""
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            self.flag("hidden-state", node, "* or ** in a call")
            return
        try:
            names = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(callee).bind(*[None] * len(node.args), **names)
        except TypeError as error:
            self.flag("argument", node, f"{callee.__name__}: {error}")

    def _number_function(self, node: ast.expr) -> None:
        """A function argument: a lambda, a predicate, a built-in of numbers, or a function of the file."""
        value = self._resolved(node)
        if isinstance(node, ast.Lambda):
            self.bodies.function(self.module.function(node), numbers=True)
        elif isinstance(value, FileFunction):
            self.bodies.function(value, numbers=True, call=node)
        elif self.builtin(node) not in NUMBER_FUNCTIONS and not is_operation(value):
            self.flag("unknown-name", node, "a function argument that is no function of the file")

    def _refused(self, node: ast.AST) -> None:
        """Flag a piece of syntax that the grammar does not list."""
        for kinds, rule, detail in _REFUSED:
            if isinstance(node, kinds):
                self.flag(rule, node, detail)
                return
        what = f"an attribute .{node.attr[:60]}" if isinstance(node, ast.Attribute) else type(node).__name__
        self.flag("hidden-state", node, f"{what} has no place in a program")


class NumberBody(Body):
    """The grammar of functions of numbers: arithmetic and choices, nothing from outside except numbers."""

    statements = (*_STATEMENTS, ast.If)
    expressions = (*_EXPRESSIONS, ast.BoolOp, ast.IfExp)
    operators = _NUMBER_OPERATORS
    values = "integers"

    def _comparison(self, node: ast.Compare) -> None:
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
            self._expression(part)

    def _call(self, node: ast.Call) -> None:
        """A built-in of numbers, a number's bit_length(), or a function of the file."""
        func = node.func
        given = node.args or node.keywords
        if isinstance(func, ast.Attribute) and func.attr == "bit_length" and not given:
            self._expression(func.value)
            return
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            self.flag("hidden-state", node, "a keyword or * in a call of numbers")
        value = self._resolved(func)
        if isinstance(value, FileFunction):
            self._arity(node, value)
            self.bodies.function(value, numbers=True, call=node)
        elif self.builtin(func) not in NUMBER_FUNCTIONS and self._callee(func) is not None:
            self.flag("unknown-name", func, "an operation on numbers")
        for argument in node.args:
            self._expression(argument)
