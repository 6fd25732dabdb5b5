"""The module level of an n-RASP-L file: its grammar, and its name space. Nothing is imported, nothing is executed.

    imports     of looped.rasp, looped.vocab, numpy and typing; a table says what each name stands for
    constants   numbers, text, tuples and lists, comprehensions over them, a vocabulary and its ids
    functions   `def`, and lambdas of numbers
    programs    `Program(...)`, alone or in a list

Every other statement is a broken rule, with its line.
"""

from __future__ import annotations

import ast
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from looped.errors import InputError
from looped.rasp import core, interpreter, library
from looped.rasp.interpreter import Budget, FileFunction, FileModule, Frame, Namespace, Opaque
from looped.rasp.lint_rules import Findings, LegalityError, broken
from looped.rasp.program import BLANK, Loop, Program
from looped.rasp.sequence import OPERATIONS
from looped.vocab import Vocab

MOST_ITEMS = 10_000  # of a tuple, a list, a range or a text
IMPORTS = ("looped.rasp", "looped.vocab", "numpy", "typing", "collections.abc", "__future__")
VOCAB_FIELDS = {"eoq", "eos", "pause", "symbols", "names"}
_MADE: dict[str, object] = {"Program": Program, "Loop": Loop, "BLANK": BLANK}
_CORE, _LIBRARY = (
    Namespace({name: found for name, found in OPERATIONS.items() if hasattr(module, name)})
    for module in (core, library)
)
_RASP = {**OPERATIONS, **_MADE, "core": _CORE, "library": _LIBRARY, "program": Namespace(_MADE)}
_LOOPED = Namespace({"rasp": Namespace(_RASP), "vocab": Namespace({"Vocab": Vocab})})
_ANNOTATION = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.BinOp, ast.Tuple, ast.List)


@dataclass
class SourceFile:
    """A file that has been read: its name space, its functions and programs, and what is wrong with it so far."""

    module: FileModule
    findings: Findings
    functions: dict[str, FileFunction] = field(default_factory=dict)
    lambdas: list[FileFunction] = field(default_factory=list)
    lines: dict[int, int] = field(default_factory=dict)  # of programs, by id
    used: set[str] = field(default_factory=set)  # names that are read anywhere but in the main block

    @property
    def alone(self) -> dict[str, FileFunction]:
        """The functions that nothing else in the file uses: each is a straight-line program."""
        return {name: function for name, function in self.functions.items() if name not in self.used}

    @property
    def programs(self) -> dict[str, Program]:
        """Programs by the name the file gives them; in a list or a tuple, by their own."""
        found: dict[str, Program] = {}
        for name, value in self.module.names.items():
            inner = list(value.values()) if isinstance(value, dict) else value
            for each in inner if isinstance(inner, (list, tuple)) else [inner]:
                if isinstance(each, Program) and all(each is not other for other in found.values()):
                    found[name if each is value else each.name] = each
        return found


def read_file(tree: ast.Module, file: str, budget: Budget) -> SourceFile:
    """Check every module-level statement, and evaluate those that are legal."""
    source = SourceFile(FileModule(file, budget=budget, trial=True), Findings(file))
    for node in tree.body:
        if _is_main(node) or isinstance(node, ast.Pass):
            continue
        source.used |= interpreter.names_in(node, ast.Load)
        if isinstance(node, ast.FunctionDef):
            _define(source, node)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _import(source, node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            _assign(source, node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            source.findings.flag("hidden-state", node, f"{type(node).__name__} at module level")
    return source


def _is_main(node: ast.stmt) -> bool:
    """Whether it is `if __name__ == "__main__":` without an else: its body is for Python alone, and not read."""
    match node:
        case ast.If(ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), orelse=[]):
            return True
    return False


def _bind(source: SourceFile, name: str, value: object, node: ast.AST) -> None:
    """Give a name its one meaning."""
    if name in source.module.names:
        source.findings.flag("hidden-state", node, f"{name!r} is bound a second time")
    if name in RESERVED or name.startswith("__"):
        source.findings.flag("hidden-state", node, f"{name!r} is a name of the language")
    source.module.names[name] = value


# --- imports ----------------------------------------------------------------------------------------------
def _import(source: SourceFile, node: ast.Import | ast.ImportFrom) -> None:
    flag, names = source.findings.flag, source.module.names
    if isinstance(node, ast.Import):
        for alias in node.names:
            first = alias.name.partition(".")[0]  # without `as`, this is bound, and holds the rest
            if not _is_known(alias.name):
                flag("unknown-name", node, f"import of {alias.name[:60]}")
            elif alias.asname:
                _bind(source, alias.asname, _found(alias.name) or Opaque(alias.name), node)
            elif first != "looped":
                _bind(source, first, Opaque(alias.name), node)
            elif names.get(first) is not _LOOPED:
                _bind(source, first, _LOOPED, node)
        return
    origin = "" if node.level else node.module or ""
    for alias in node.names:
        if not _is_known(origin) and not (origin == "looped" and alias.name in _LOOPED):
            flag("unknown-name", node, f"import of {origin[:60] or 'a relative module'}")
        elif alias.name == "*":
            home = _found(origin)
            home = home if isinstance(home, Namespace) else Namespace()
            brought = {name: value for name, value in home.items() if not isinstance(value, Namespace)}
            for twice in sorted(brought.keys() & names.keys()):
                flag("hidden-state", node, f"{twice!r} is bound a second time")
            source.module.star |= brought
        else:
            _bind(source, alias.asname or alias.name, _imported(source, origin, alias.name, node), node)


def _is_known(origin: str) -> bool:
    return any(origin == allowed or origin.startswith(allowed + ".") for allowed in IMPORTS)


def _found(name: str) -> object:
    """What a dotted name of ours stands for; None where a program cannot use it."""
    value: object = Namespace({"looped": _LOOPED})
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Namespace) else None
    return value


def _imported(source: SourceFile, origin: str, name: str, node: ast.AST) -> object:
    """What an imported name stands for; what a program cannot use is opaque."""
    whole = f"{origin}.{name}"
    if (found := _found(whole)) is not None:
        return found
    ours = sys.modules.get(origin) if origin.startswith("looped.") else None
    if ours is not None and not hasattr(ours, name) and whole not in sys.modules:
        source.findings.flag("unknown-name", node, f"{origin} has no {name[:60]!r}")
    return Opaque(origin)


# --- functions and values ---------------------------------------------------------------------------------
def _define(source: SourceFile, node: ast.FunctionDef) -> None:
    function = FileFunction(source.module, node, node.name)
    source.functions[node.name] = function
    _bind(source, node.name, function, node)
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    for annotation in (node.returns, *(argument.annotation for argument in arguments)):
        check_annotation(source.findings, annotation)


def check_annotation(findings: Findings, annotation: ast.expr | None) -> None:
    """An annotation is never evaluated; names, dots and brackets may stand in it."""
    for part in ast.walk(annotation) if annotation is not None else ():
        if isinstance(part, ast.expr) and not isinstance(part, _ANNOTATION):
            findings.flag("hidden-state", part, f"{type(part).__name__} in an annotation")


def _assign(source: SourceFile, node: ast.Assign | ast.AnnAssign) -> None:
    if isinstance(node, ast.AnnAssign):
        check_annotation(source.findings, node.annotation)
    if node.value is None:
        return
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    frame = TopLevel(source)
    try:
        value = frame.expression(node.value)
        for target in targets:
            frame.assign(target, value)
    except LegalityError as error:
        source.findings.violations[error.violation] = None
    named = [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
    for name in named:
        _bind(source, name, frame.local.get(name, Opaque("an illegal value")), node)


class TopLevel(Frame):
    """Evaluation of module-level values: text, lists, comprehensions and vocabularies besides numbers."""

    meaningless = ("BoolOp", "IfExp")

    def __init__(self, source: SourceFile, local: dict[str, Any] | None = None) -> None:
        super().__init__(source.module, local or {})
        self.source = source

    def refuse(self, node: ast.AST, detail: str) -> NoReturn:
        """Raise for what has no place at module level."""
        raise broken("hidden-state", f"{detail} at module level", self.place(node))

    def _visit_Constant(self, node: ast.Constant) -> Any:
        if not isinstance(node.value, (int, str)):
            self.refuse(node, "a literal that is neither an integer nor text")
        return super()._visit_Constant(node)

    def _visit_Name(self, node: ast.Name) -> Any:
        value = self.local.get(node.id)
        value = self.module.look_up(node.id) if value is None else value
        if value is None:
            self.refuse(node, f"{node.id!r}, which is not a name of the file,")
        return value

    def _visit_Compare(self, node: ast.Compare) -> Any:
        if not all(type(op) in interpreter.COMPARISONS for op in node.ops):
            self.refuse(node, "`in` or `is`")
        return super()._visit_Compare(node)

    def _visit_Dict(self, node: ast.Dict) -> dict[Any, Any]:
        if not all(isinstance(key, ast.Constant) for key in node.keys):
            self.refuse(node, "a dict whose keys are not literal")
        return super()._visit_Dict(node)

    def _visit_Lambda(self, node: ast.Lambda) -> FileFunction:
        function = super()._visit_Lambda(node)
        if function not in self.source.lambdas:
            self.source.lambdas.append(function)
        return function

    def operate(self, node: ast.AST, op: ast.operator, a: Any, b: Any) -> Any:
        """Numbers as everywhere; text, tuples and lists take + and * with a bounded result."""
        if not isinstance(a, (str, tuple, list)):
            return super().operate(node, op, a, b)
        if isinstance(op, ast.Add) and type(a) is type(b) and len(a) + len(b) <= MOST_ITEMS:
            return self.bounded(node, operator.add(a, b))
        if isinstance(op, ast.Mult) and isinstance(b, int) and len(a) * b <= MOST_ITEMS:
            return self.bounded(node, a * b)
        what = f"text, tuples and lists take + and * with up to {MOST_ITEMS} items"
        raise broken("argument", what, self.place(node))

    def _visit_Tuple(self, node: ast.Tuple | ast.List) -> Any:
        found: list[Any] = []
        for part in node.elts:
            if isinstance(part, ast.Starred):
                found += self._iterated(part, self.expression(part.value))
            else:
                found.append(self.expression(part))
        if len(found) > MOST_ITEMS:
            raise broken("budget", f"more than {MOST_ITEMS} items", self.place(node))
        return found if isinstance(node, ast.List) else tuple(found)

    _visit_List = _visit_Tuple

    def _visit_JoinedStr(self, node: ast.JoinedStr) -> str:
        for part in node.values:
            if isinstance(part, ast.FormattedValue) and (part.format_spec or part.conversion != -1):
                self.refuse(part, "a format in an f-string")
        parts = [self.expression(p.value if isinstance(p, ast.FormattedValue) else p) for p in node.values]
        if not all(isinstance(part, (int, str)) for part in parts):
            raise broken("argument", "an f-string takes numbers and text", self.place(node))
        return self.bounded(node, "".join(map(str, parts)))  # type: ignore[no-any-return]

    def _visit_ListComp(self, node: ast.GeneratorExp | ast.ListComp) -> list[Any]:
        if any(generator.is_async for generator in node.generators):
            self.refuse(node, "an async comprehension")
        found: list[Any] = []
        inner = TopLevel(self.source, dict(self.local))

        def walk(generators: Sequence[ast.comprehension]) -> None:
            if not generators:
                found.append(inner.expression(node.elt))
                if len(found) > MOST_ITEMS:
                    raise broken("budget", f"more than {MOST_ITEMS} items", self.place(node))
                return
            first = generators[0]
            for item in inner._iterated(first.iter, inner.expression(first.iter)):
                inner.assign(first.target, item)
                if all(inner.truth(test) for test in first.ifs):
                    walk(generators[1:])

        walk(node.generators)
        return found

    _visit_GeneratorExp = _visit_ListComp

    def _iterated(self, node: ast.AST, value: Any) -> Any:
        if not isinstance(value, (tuple, list, str, range)):
            raise broken("argument", "a value that has no items", self.place(node))
        return value

    def _visit_Attribute(self, node: ast.Attribute) -> Any:
        """A field of a vocabulary, or a name of an imported module."""
        if node.attr.startswith("_"):
            self.refuse(node, f"an attribute .{node.attr[:60]}")
        owner = self.expression(node.value)
        if isinstance(owner, Vocab) and node.attr in VOCAB_FIELDS:
            return getattr(owner, node.attr)
        return super()._visit_Attribute(node)

    def _visit_Call(self, node: ast.Call) -> Any:
        """A Program, a Loop, a Vocab, a method of a vocabulary or a built-in that no name of the file hides."""
        if any(keyword.arg is None or keyword.arg.startswith("_") for keyword in node.keywords):
            self.refuse(node, "** or a private field in a call")
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr not in (*self.methods, "Program", "Loop", "Vocab"):
            self.refuse(node, f"a call of .{func.attr[:60]}")
        if isinstance(func, ast.Name) and self.module.look_up(func.id) is None and func.id in self.builtins:
            args = [self.expression(argument) for argument in node.args]
            if node.keywords:
                self.refuse(node, "a keyword of a built-in")
            return self.bounded(node, self.guarded(node, self.builtins[func.id], *args))
        return super()._visit_Call(node)

    def called(self, node: ast.Call, callee: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A Program, a Loop or a Vocab."""
        if callee not in (Program, Loop, Vocab):
            self.refuse(node, "a call that makes no program and no number")
        if callee is Vocab:
            for symbols in (*args, *kwargs.values()):
                if not isinstance(symbols, tuple) or not all(isinstance(s, str) for s in symbols):
                    raise broken("argument", "Vocab takes a tuple of texts", self.place(node))
        elif any(callable(x) and not isinstance(x, (FileFunction, Loop)) for x in _flat(args, kwargs)):
            raise broken("argument", "a program is made of functions of its file", self.place(node))
        made = self.guarded(node, callee, *args, **kwargs)
        if isinstance(made, Program):
            self.source.lines[id(made)] = node.lineno
        return made

    def bounded(self, node: ast.AST, value: Any) -> Any:
        """The value, unless it is too large; its size counts as work."""
        if isinstance(value, (str, tuple, list, range)):
            if len(value) > MOST_ITEMS:
                raise broken("budget", f"more than {MOST_ITEMS} items or characters", self.place(node))
            self.module.budget.spend(len(value) // 10, self.place(node))
        return super().bounded(node, value)


def _flat(args: list[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments, and the items of those that are tuples or lists."""
    for value in (*args, *kwargs.values()):
        yield from value if isinstance(value, (tuple, list)) else (value,)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """A built-in over the values of the module level: numbers, text, tuples, lists, ranges."""

    def called(*args: Any) -> Any:
        kinds = (int, str) if function is str else (int, str, tuple, list, range)
        for arg in args:
            if not isinstance(arg, kinds) and not (function is len and isinstance(arg, Vocab)):
                takes = "a number or a text" if function is str else "numbers, text and tuples"
                raise InputError(f"{function.__name__} takes {takes}, not {type(arg).__name__}")
        if function in (min, max, sum):
            items = args[0] if args and isinstance(args[0], (tuple, list, range)) else args
            if not all(isinstance(item, int) for item in items):
                raise InputError(f"{function.__name__} takes numbers")
        return function(*args)

    return called


MODULE_CALLS = {
    function.__name__: _plain(function)
    for function in (tuple, list, str, range, len, min, max, int, abs, sum)
}
RESERVED = {*MODULE_CALLS, "dict", "bool", "divmod"}
TopLevel.builtins = MODULE_CALLS
TopLevel.methods = {"id": Vocab, "encode": Vocab}
