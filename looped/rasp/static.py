"""Legality by reading: walks a function's syntax tree and names every broken rule. Runs nothing.

What may stand in a program is listed, all else is refused, so a trick nobody thought of is refused too. Two
kinds of code are told apart:

    straight-line   prepare, steps, readout and whatever they call: assignments and calls, no control flow
    scalar          functions of numbers, given to tok_map, seq_map, select, kqv, or as a loop's `times`

What only values can show (an index in arithmetic, a shape) is left to the run itself: straight-line code does
the same on every input, so one run on a small row shows it all.
"""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from looped.rasp.rules import RULES, Violation
from looped.rasp.syntax import (
    FUNCTION_ARGUMENT,
    OPERATIONS,
    SCALAR_BUILTINS,
    Means,
    Scope,
    Source,
    is_number,
    is_text,
    refused,
    refused_call,
)


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


class Code(ABC):
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
            if not is_number(default):
                self.walk.flag("hidden-state", default, "a default that is not a number")
        self.local |= {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}

    def statement(self, node: ast.stmt) -> None:
        """One statement."""
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if not isinstance(node, self.statements):
            self.walk.flag(*refused(node))
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
            self.walk.flag(*refused(node))

    def expression(self, node: ast.expr) -> None:
        """One expression."""
        if not isinstance(node, self.expressions):
            self.walk.flag(*refused(node))
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

    @abstractmethod
    def name(self, node: ast.Name) -> None:
        """A name that is read."""

    @abstractmethod
    def call(self, node: ast.Call) -> None:
        """A call."""


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
        if isinstance(node, ast.Dict) and not all(is_text(key) for key in node.keys):
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
            self.walk.flag(*refused(func))
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
        self.walk.flag(*refused_call(func, binding))
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
            self.walk.flag(*refused(node.func))
            return
        binding = self.scope(node.func.id)
        if binding.means is Means.FUNCTION:
            if binding.function is not None:
                self.walk.function(binding.function, scalar=True, call=node)
        elif node.func.id not in SCALAR_BUILTINS:
            self.walk.flag(*refused_call(node.func, binding))
        for argument in node.args:
            self.expression(argument)
