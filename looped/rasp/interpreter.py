"""Interpreter of n-RASP-L files. It evaluates syntax trees; nothing of a file is ever executed as Python.

`lint.py` checks a tree against the grammar first. What remains has a small meaning, all of it here: names are looked
up in the file's own name space; a call is an operation of the language, a function of the file or a built-in of
numbers; an operator works on bounded integers or on sequences.

    seq_map(bits, largest, max)      OPERATIONS["seq_map"](local["bits"], local["largest"], NUMBER_FUNCTIONS["max"])

Every evaluated node costs a unit of a budget, and an operation as many as its arrays are large.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from looped.errors import InputError
from looped.rasp.lint_rules import LegalityError, Place, RuleError, Violation, broken
from looped.rasp.sequence import Seq, is_operation, unwrap

CALL_LIMIT = 5_000_000  # units of one call of prepare, a step or readout: about 5 seconds
MOST_REMEMBERED = 1 << 16  # results of a function of numbers
NUMBER_BITS = 63  # integers of a program lie strictly between -2^63 and 2^63
SQUARED = {"select", "kqv", "aggregate", "sel_width"}  # operations that may compare all pairs of positions

BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_FAILURES = (TypeError, ValueError, ArithmeticError, AttributeError, MemoryError)


class Namespace(dict[str, object]):
    """An imported module: the names of it that a program may use."""


class Opaque:
    """An imported name that a program cannot use: a type, a module of numpy, a helper for scripts."""

    def __init__(self, origin: str) -> None:
        self.origin = origin


@dataclass
class Budget:
    """Units of work: how many there are, and how many are spent."""

    limit: int
    spent: int = 0
    purpose: str = "one call of a function"

    def spend(self, units: int, place: Place) -> None:
        """Take units, or raise at a place if too few are left."""
        self.spent += units
        if self.spent > self.limit:
            detail = f"more work than {self.purpose} may take, which is {self.limit} units"
            raise broken("budget", detail, place)


@dataclass
class FileModule:
    """The name space of a file, and the budget of what runs in it."""

    file: str
    names: dict[str, object] = field(default_factory=dict)
    star: dict[str, object] = field(default_factory=dict)  # what `from looped.rasp import *` brings
    budget: Budget = field(default_factory=lambda: Budget(CALL_LIMIT))
    trial: bool = False  # one budget for many calls
    depth: int = 0  # calls of functions that are under way
    _lambdas: dict[ast.Lambda, FileFunction] = field(default_factory=dict)

    def look_up(self, name: str) -> object:
        """What a module-level name stands for; None if nothing."""
        return self.names.get(name, self.star.get(name))

    def function(self, node: ast.Lambda) -> FileFunction:
        """The function of a lambda: one object, however often it is evaluated."""
        if node not in self._lambdas:
            self._lambdas[node] = FileFunction(self, node, "<lambda>")
        return self._lambdas[node]


class FileFunction:
    """A function of a file: called like a Python function, evaluated from its tree."""

    def __init__(self, module: FileModule, node: ast.FunctionDef | ast.Lambda, name: str) -> None:
        self.module, self.node, self.__name__ = module, node, name
        self.place: Place = (module.file, node.lineno)
        self.identity = (name, node.lineno, node.col_offset)
        self.assigned = names_in(node, ast.Store)
        self.__signature__ = inspect.Signature(list(_parameters(node.args)))
        self._names = tuple(self.__signature__.parameters)
        self._remembered: dict[tuple[object, ...], Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's value for sequences or numbers."""
        plain = not kwargs and all(isinstance(arg, int) for arg in args)
        key = (*args, *map(type, args)) if plain else ()  # 1 and True are equal, and not the same
        if plain and key in self._remembered:
            return self._remembered[key]
        module = self.module
        if module.depth == 0 and not module.trial:
            module.budget.spent = 0
        module.budget.spend(5, self.place)
        module.depth += 1
        try:
            result = self._evaluated(args, kwargs)
        except RecursionError:
            raise broken("budget", f"{self.__name__} is nested too deeply", self.place) from None
        finally:
            module.depth -= 1
        if plain and len(self._remembered) < MOST_REMEMBERED:
            self._remembered[key] = result
        return result

    def _evaluated(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(args) != len(self._names):
            try:
                bound = self.__signature__.bind(*args, **kwargs)
            except TypeError as error:
                raise broken("argument", f"{self.__name__}: {error}", self.place) from None
            bound.apply_defaults()
            local = dict(bound.arguments)
        else:
            local = dict(zip(self._names, args, strict=True))
        frame = Frame(self.module, local, self.assigned)
        if isinstance(self.node, ast.Lambda):
            return frame.expression(self.node.body)
        returned = frame.body(self.node.body)
        if returned is NOTHING:
            raise broken("argument", f"{self.__name__} returns nothing", self.place)
        return returned


def names_in(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    """The names that are read (`ast.Load`) or assigned (`ast.Store`) anywhere in a tree."""
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, context)}


def _parameters(arguments: ast.arguments) -> Iterator[inspect.Parameter]:
    """Plain parameters; a default that is no literal number is 0 here, and the grammar refuses it."""
    plain = [*arguments.posonlyargs, *arguments.args]
    missing: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    pairs = [*zip(plain, [*missing, *arguments.defaults], strict=True)]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    for i, (argument, default) in enumerate(pairs):
        given = 0 if default is not None and literal_number(default) is None else literal_number(default)
        yield inspect.Parameter(
            argument.arg,
            inspect.Parameter.KEYWORD_ONLY if i >= len(plain) else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if given is None else given,
        )


def literal_number(node: ast.expr | None) -> int | None:
    """The value of a literal integer, with or without a sign; None for anything else."""
    match node:
        case ast.Constant(int(value)):
            return value
        case ast.UnaryOp(ast.USub(), operand):
            inner = literal_number(operand)
            return None if inner is None else -inner
    return None


def _of_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        if not all(isinstance(arg, int) for arg in args):
            raise InputError(f"{function.__name__} takes numbers only")
        return function(*args)

    called.__name__ = function.__name__
    return called


NUMBER_FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: _of_numbers(function) for function in (min, max, abs, int, bool, divmod)
}

NOTHING = object()  # what a body gives that has not returned


class Frame:
    """One call: the local names, and the evaluation of every kind of node that the grammar knows."""

    builtins: ClassVar[dict[str, Callable[..., Any]]] = {**NUMBER_FUNCTIONS, "dict": dict}
    methods: ClassVar[dict[str, type]] = {"bit_length": int}
    meaningless: ClassVar[tuple[str, ...]] = ()  # kinds of nodes that may not stand here

    def __init__(self, module: FileModule, local: dict[str, Any], assigned: set[str] | None = None) -> None:
        self.module, self.local, self.assigned = module, local, assigned or set()

    def place(self, node: ast.AST) -> Place:
        """File and line of a node."""
        return self.module.file, getattr(node, "lineno", 0)

    # --- statements ----------------------------------------------------------------------------------------
    def body(self, statements: Sequence[ast.stmt]) -> Any:
        """Evaluate statements in order; the returned value, or NOTHING."""
        for node in statements:
            if isinstance(node, ast.Return):
                return None if node.value is None else self.expression(node.value)
            if isinstance(node, ast.If):
                taken = node.body if self.truth(node.test) else node.orelse
                if (returned := self.body(taken)) is not NOTHING:
                    return returned
            elif isinstance(node, ast.Assign):
                value = self.expression(node.value)
                for target in node.targets:
                    self.assign(target, value)
            elif isinstance(node, ast.AnnAssign):
                if node.value is not None:
                    self.assign(node.target, self.expression(node.value))
            elif isinstance(node, ast.AugAssign):
                assert isinstance(node.target, ast.Name)
                old = self._visit_Name(node.target)
                self.assign(node.target, self.operate(node, node.op, old, self.expression(node.value)))
            elif isinstance(node, ast.Expr):
                self.expression(node.value)
        return NOTHING

    def assign(self, target: ast.expr, value: Any) -> None:
        """Bind a name, or the names of a tuple."""
        if isinstance(target, ast.Name):
            self.local[target.id] = value
            return
        if not isinstance(target, ast.Tuple):
            raise broken("hidden-state", "an assignment to anything but a name", self.place(target))
        if not isinstance(value, (tuple, list)) or len(value) != len(target.elts):
            wanted = f"{len(target.elts)} names for what is not {len(target.elts)} values"
            raise broken("argument", wanted, self.place(target))
        for part, each in zip(target.elts, value, strict=True):
            self.assign(part, each)

    # --- expressions ---------------------------------------------------------------------------------------
    def expression(self, node: ast.expr) -> Any:
        """The value of an expression."""
        budget = self.module.budget
        budget.spent += 1
        if budget.spent > budget.limit:
            budget.spend(0, self.place(node))
        kind = type(node).__name__
        visit = getattr(self, f"_visit_{kind}", None)
        if visit is None or kind in self.meaningless:
            raise broken("hidden-state", f"{kind} has no meaning here", self.place(node))
        return visit(node)

    def _visit_Constant(self, node: ast.Constant) -> Any:
        return self.bounded(node, node.value)

    def _visit_Name(self, node: ast.Name) -> Any:
        """A local name, a name of the file, or a built-in function of numbers."""
        if node.id in self.local:
            return self.local[node.id]
        value = self.module.look_up(node.id)
        value = self.builtins.get(node.id) if value is None else value
        if value is None or node.id in self.assigned:
            raise broken("argument", f"{node.id!r} has no value here", self.place(node))
        return value

    def _visit_BinOp(self, node: ast.BinOp) -> Any:
        return self.operate(node, node.op, self.expression(node.left), self.expression(node.right))

    def operate(self, node: ast.AST, op: ast.operator, a: Any, b: Any) -> Any:
        """`a op b` for numbers and sequences."""
        if type(op) not in BINARY:
            raise broken("unknown-name", "an operator that numbers do not have", self.place(node))
        if isinstance(a, int) and isinstance(b, int):
            if isinstance(op, (ast.Pow, ast.LShift)):
                self._check_growth(node, op, a, b)
        elif not (_is_value(a) and _is_value(b)):
            raise broken("argument", "an operator needs numbers or sequences", self.place(node))
        else:
            self.module.budget.spend(_cost("", (a, b)), self.place(node))
        return self.bounded(node, self.guarded(node, BINARY[type(op)], a, b))

    def _check_growth(self, node: ast.AST, op: ast.operator, a: int, b: int) -> None:
        bits = abs(a).bit_length()
        grown = bits * b if isinstance(op, ast.Pow) else bits + b
        if b < 0 or grown > NUMBER_BITS + bits:
            raise broken("precision", "a power or a shift beyond 64 bits", self.place(node))

    def _visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        """`-x`, `+x`, `~x`, and `not x` of numbers."""
        if isinstance(node.op, ast.Not):
            return not self.truth(node.operand)
        value = self.expression(node.operand)
        if not _is_value(value):
            raise broken("argument", "an operator needs numbers or sequences", self.place(node))
        return self.bounded(node, self.guarded(node, UNARY[type(node.op)], value))

    def _visit_Compare(self, node: ast.Compare) -> Any:
        """`a < b`; of numbers also `a < b < c` and `a in (1, 2)`."""
        left, result = self.expression(node.left), None
        for op, part in zip(node.ops, node.comparators, strict=True):
            if result is not None and not self.decided(node, result):
                return False
            right = self.expression(part)
            if isinstance(op, (ast.In, ast.NotIn)):
                found = any(self.decided(node, self._compared(node, ast.Eq, left, each)) for each in right)
                result = found == isinstance(op, ast.In)
            else:
                result = self._compared(node, type(op), left, right)
            left = right
        return result

    def _compared(self, node: ast.AST, op: type[ast.cmpop], a: Any, b: Any) -> Any:
        texts = isinstance(a, str) and isinstance(b, str)
        if not texts and not (_is_value(a) and _is_value(b)):
            raise broken("argument", "a comparison needs numbers or sequences", self.place(node))
        return self.guarded(node, COMPARISONS[op], a, b)

    def truth(self, node: ast.expr) -> bool:
        """Whether an expression is true."""
        return self.decided(node, self.expression(node))

    def decided(self, node: ast.AST, value: Any) -> bool:
        """Whether a number is true; a sequence decides nothing."""
        if not isinstance(value, int):
            raise broken("control-flow", "a sequence used as a truth value", self.place(node))
        return bool(value)

    def _visit_BoolOp(self, node: ast.BoolOp) -> Any:
        wanted = isinstance(node.op, ast.Or)
        for part in node.values[:-1]:
            value = self.expression(part)
            if self.decided(part, value) is wanted:
                return value
        return self.expression(node.values[-1])

    def _visit_IfExp(self, node: ast.IfExp) -> Any:
        return self.expression(node.body if self.truth(node.test) else node.orelse)

    def _visit_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self.expression(part) for part in node.elts)

    def _visit_Dict(self, node: ast.Dict) -> dict[Any, Any]:
        return {
            self.expression(key): self.expression(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }

    def _visit_Lambda(self, node: ast.Lambda) -> FileFunction:
        return self.module.function(node)

    def _visit_Attribute(self, node: ast.Attribute) -> Any:
        owner = self.expression(node.value)
        found = owner.get(node.attr) if isinstance(owner, Namespace) else None
        if found is None:
            raise broken("unknown-name", f"there is no .{node.attr} here", self.place(node))
        return found

    # --- calls ---------------------------------------------------------------------------------------------
    def _visit_Call(self, node: ast.Call) -> Any:
        """An operation, a function of the file, a function of numbers, or what makes a program."""
        args = [self.expression(argument) for argument in node.args]
        kwargs = {keyword.arg: self.expression(keyword.value) for keyword in node.keywords if keyword.arg}
        if isinstance(node.func, ast.Attribute) and node.func.attr in self.methods:
            return self._method(node, node.func, args)
        return self.called(node, self.expression(node.func), args, kwargs)

    def called(self, node: ast.Call, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What a function gives."""
        if isinstance(callee, FileFunction):
            return callee(*args, **kwargs)
        if callee in self.builtins.values():
            return self.bounded(node, self.guarded(node, callee, *args, **kwargs))
        if not is_operation(callee):
            raise broken("unknown-name", "a call of what is no operation", self.place(node))
        self.module.budget.spend(_cost(callee.__name__, (*args, *kwargs.values())), self.place(node))
        return self.guarded(node, callee, *args, **kwargs)

    def _method(self, node: ast.Call, func: ast.Attribute, args: list[Any]) -> Any:
        owner = self.expression(func.value)
        if not isinstance(owner, self.methods[func.attr]):
            raise broken("argument", f".{func.attr} of {type(owner).__name__}", self.place(node))
        return self.guarded(node, getattr(owner, func.attr), *args)

    # --- guards --------------------------------------------------------------------------------------------
    def guarded(self, node: ast.AST, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call our own code; what it raises is an error at the node's line."""
        try:
            return function(*args, **kwargs)
        except RuleError as error:
            raise error.at(self.place(node)) from None
        except InputError as error:
            raise LegalityError(Violation("argument", *self.place(node), str(error)), located=True) from None
        except _FAILURES as error:
            raise broken("argument", f"{type(error).__name__}: {error}"[:200], self.place(node)) from None

    def bounded(self, node: ast.AST, value: Any) -> Any:
        """The value, unless it is an integer of more than 64 bits."""
        if isinstance(value, int) and value.bit_length() > NUMBER_BITS:
            raise broken("precision", "a number beyond 64 bits", self.place(node))
        return value


def _is_value(value: object) -> bool:
    """Whether it is a number or a sequence, real or symbolic."""
    return isinstance(value, (int, Seq)) or hasattr(value, "operations")


def _cost(name: str, args: Sequence[object]) -> int:
    """Units of an operation: about one per microsecond."""
    arrays = [unwrap(arg) for arg in args if isinstance(arg, Seq)]
    cells = max((array.size for array in arrays), default=1)
    if name in SQUARED:
        cells *= max((array.shape[-1] for array in arrays), default=1)
    return 10 + int(cells) // 50
