"""What may stand outside functions in a file of programs, and what each name there means. Runs nothing.

Imports, numbers, a vocabulary, functions and `Program(...)`: a file that keeps to that can be imported to try
its programs without fear of what importing it does.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from looped.rasp.static import ScalarCode, Walk
from looped.rasp.syntax import FUNCTION_ARGUMENT, OPERATIONS, Binding, Means, Source

IMPORTS = ("looped.rasp", "looped.vocab", "numpy", "typing", "collections.abc", "__future__")
HOMES = ("looped.rasp", "looped.rasp.core", "looped.rasp.library", "looped.rasp.program")  # of operations
CALLS = {"Program", "Loop", "Vocab", "tuple", "list", "str", "range", "len", "min", "max", "int"}
METHODS = {"id", "encode"}  # of a vocabulary
SIZE_FUNCTIONS = {"times", "answer_size"}  # keywords whose functions see numbers, not sequences
MAIN = "__name__ == '__main__'"

_VALUES = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.BinOp, ast.UnaryOp, ast.Starred),
    *(ast.Attribute, ast.Compare, ast.JoinedStr, ast.FormattedValue),
)
_ANNOTATION = (ast.Name, ast.Attribute, ast.Subscript, ast.Constant, ast.BinOp, ast.Tuple, ast.List)


@dataclass
class Module:
    """A file of programs, read: its functions, and which of them are used how."""

    file: str
    names: dict[str, Binding] = field(default_factory=dict)
    functions: dict[str, Source] = field(default_factory=dict)
    scalar: set[str] = field(default_factory=set)  # functions of numbers
    used: set[str] = field(default_factory=set)  # functions that a program or another function uses
    everything: bool = False  # `from looped.rasp import *`

    def bind(self, name: str, binding: Binding, node: ast.AST, walk: Walk) -> None:
        """Gives a name its meaning; a second one would make the first unseen."""
        if name in self.names:
            walk.flag("hidden-state", node, f"{name!r} is bound a second time")
        self.names[name] = binding

    def scope(self, name: str) -> Binding:
        """What a module-level name means."""
        if name in self.names:
            return self.names[name]
        if self.everything and name in OPERATIONS:
            return Binding(Means.OPERATION, name)
        return Binding(Means.CONSTANT if self.everything and name == "BLANK" else Means.UNKNOWN)


def read_module(tree: ast.Module, file: str, walk: Walk) -> Module:
    """Walks the module level, flagging what does not belong there, and collects the functions."""
    module = Module(file)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            source = Source(node, file, module.scope)
            module.functions[node.name] = source
            module.bind(node.name, Binding(Means.FUNCTION, node.name, source), node, walk)
            _annotations(node, walk)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _import(node, module, walk)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            _assign(node, module, walk)
        elif not _is_harmless(node):
            walk.flag("hidden-state", node, f"{type(node).__name__} at module level")
    _uses(tree, module)
    return module


def walk_functions(module: Module, walk: Walk) -> None:
    """Walks every function as what it is used for."""
    for name, source in module.functions.items():
        walk.function(source, scalar=name in module.scalar)


def _import(node: ast.Import | ast.ImportFrom, module: Module, walk: Walk) -> None:
    origins = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    for origin in origins:
        if origin == "looped" and [alias.name for alias in node.names] == ["rasp"]:
            continue
        if not any(origin == allowed or origin.startswith(allowed + ".") for allowed in IMPORTS):
            walk.flag("unknown-name", node, f"import of {origin or 'a relative module'}")
    for alias in node.names:
        if alias.name == "*":
            module.everything = module.everything or origins == ["looped.rasp"]
        else:
            name = alias.asname or alias.name.split(".")[0]
            module.bind(name, _imported(node, alias), node, walk)


def _imported(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Binding:
    """What an imported name means."""
    origin = alias.name if isinstance(node, ast.Import) else node.module or ""
    if origin.split(".")[0] == "numpy":
        return Binding(Means.NUMPY)
    if isinstance(node, ast.Import):
        is_rasp = origin == "looped.rasp" and alias.asname is not None
        return Binding(Means.RASP_MODULE if is_rasp else Means.UNKNOWN)
    if origin == "looped" and alias.name == "rasp":
        return Binding(Means.RASP_MODULE)
    if origin in HOMES and alias.name in OPERATIONS:
        return Binding(Means.OPERATION, alias.name)
    is_number = origin in HOMES and alias.name == "BLANK"
    return Binding(Means.CONSTANT if is_number else Means.UNKNOWN)


def _assign(node: ast.Assign | ast.AnnAssign, module: Module, walk: Walk) -> None:
    if isinstance(node, ast.AnnAssign):
        _annotation(node.annotation, walk)
    if node.value is None:
        return
    _value(node.value, module, walk)
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value] * len(parts)
        for part, value in zip(parts, values, strict=False):
            if isinstance(part, ast.Name) and part.id not in CALLS:
                is_number = _is_number(value, module)
                module.bind(part.id, Binding(Means.CONSTANT if is_number else Means.UNKNOWN), node, walk)
            else:
                walk.flag("hidden-state", node, "an assignment at module level to anything but a new name")


def _value(node: ast.expr, module: Module, walk: Walk, inner: frozenset[str] = frozenset()) -> None:
    """A module-level value: literals, names, arithmetic, and calls that make programs and vocabularies.

    `inner` holds the names that a comprehension around the value brings along.
    """
    if isinstance(node, ast.Lambda):
        _scalar_lambda(node, module, walk)
        return
    if isinstance(node, ast.Call):
        func = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if func not in (CALLS | METHODS if isinstance(node.func, ast.Attribute) else CALLS):
            walk.flag("hidden-state", node, "a call at module level that makes no program and no number")
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        targets = [part for g in node.generators for part in ast.walk(g.target) if isinstance(part, ast.Name)]
        inner |= {target.id for target in targets}
        parts = [node.elt, *(g.iter for g in node.generators), *(i for g in node.generators for i in g.ifs)]
    elif isinstance(node, ast.Name):
        if node.id not in module.names and node.id not in inner and not module.everything:
            walk.flag("hidden-state", node, f"{node.id!r} is not a name of the file")
        return
    elif isinstance(node, _VALUES):
        parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    else:
        walk.flag("hidden-state", node, f"{type(node).__name__} at module level")
        return
    for part in parts:
        _value(part, module, walk, inner)


def _scalar_lambda(node: ast.Lambda, module: Module, walk: Walk) -> None:
    code = ScalarCode(walk, module.scope)
    code.parameters(node.args, node)
    code.expression(node.body)


def _is_number(node: ast.expr, module: Module) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand, module)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left, module) and _is_number(node.right, module)
    if isinstance(node, ast.Name):
        return module.scope(node.id).means is Means.CONSTANT
    if isinstance(node, ast.Attribute):
        return node.attr in {"eoq", "eos", "pause"}  # of a vocabulary
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "id"


def _is_harmless(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass) or _is_main(node)


def _is_main(node: ast.stmt) -> bool:
    """Whether it is the block that runs only when the file is run itself."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == MAIN


def _annotations(node: ast.FunctionDef, walk: Walk) -> None:
    """Annotations run when the file is imported, so they must be plain too."""
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    for annotation in (node.returns, *(a.annotation for a in arguments)):
        if annotation is not None:
            _annotation(annotation, walk)


def _annotation(node: ast.expr, walk: Walk) -> None:
    for child in ast.walk(node):
        if isinstance(child, ast.expr) and not isinstance(child, _ANNOTATION):
            walk.flag("hidden-state", child, f"{type(child).__name__} in an annotation")


def _uses(tree: ast.Module, module: Module) -> None:
    """Which functions are given to an operation or a loop as functions of numbers, and which used at all."""
    for node in (part for top in tree.body if not _is_main(top) for part in ast.walk(top)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in module.functions:
            module.used.add(node.id)
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        position, keyword = FUNCTION_ARGUMENT.get(name, (1, "times") if name == "Loop" else (-1, ""))
        given = [argument for i, argument in enumerate(node.args) if i == position]
        given += [k.value for k in node.keywords if k.arg == keyword or k.arg in SIZE_FUNCTIONS]
        module.scalar |= {g.id for g in given if isinstance(g, ast.Name) and g.id in module.functions}
