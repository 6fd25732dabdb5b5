"""Imports go one way. The layers are declared here; every import of every module is held against them.

Imports inside functions count as well: laziness saves time, it does not change who knows whom.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up. A unit is a module or folder of `looped`; it may import from the layers before its own
# and from its own layer. `__init__` runs before anything else of the package, so it lies near the bottom.
LAYERS = [
    {"errors"},
    {"files"},
    {"vocab", "serial", "output", "registry"},
    {"result_files"},
    {"__init__"},
    {"devices", "checkpoints"},
    {"rasp"},
    {"tasks"},
    {"batches"},
    {"model"},
    {"methods"},
    {"compiler", "fast", "training", "evaluation", "runs"},
    {"figures", "zoo", "solve", "experiments", "api"},
    {"explorer"},
    {"cli", "__main__"},
]

BARE = {"torch", "numpy", "safetensors", "jaxtyping"}  # all that a bare GPU machine has

# Third-party packages a unit may import; units that are not named may import everything the project declares.
THIRD_PARTY = {
    "errors": set(),
    "files": set(),
    "vocab": set(),
    "serial": set(),
    "output": {"rich"},  # where a terminal is drawn on
    "result_files": set(),
    "__init__": set(),
    "devices": BARE,
    "checkpoints": BARE,
    "rasp": {"numpy"},
    "tasks": BARE,
    "batches": BARE,
    "model": BARE,
    "methods": BARE,
    "registry": set(),
    "compiler": BARE | {"matplotlib"},  # for pictures alone
    "fast": BARE,
    "training": BARE,
    "evaluation": BARE,
    "runs": BARE,
    "figures": {"numpy", "matplotlib"},
    "__main__": set(),
}

# What one package may import on top of that: torch brings triton along where there is CUDA, and nowhere else.
# A tracker and the hub are imported only where they are asked for.
ALSO = {
    "looped.fast.kernels": {"triton"},
    "looped.training.progress": {"trackio"},
    "looped.model.hub": {"huggingface_hub"},
}

# The front door hands out what lies further up: named for types, imported when it is first asked for.
FRONT = {"solve", "zoo", "api", "model", "registry"}

# Units that know less of the package than their layer would let them.
ONLY = {
    "rasp": {"errors", "files", "output", "vocab"},
    "figures": {"errors", "files", "serial", "vocab", "result_files"},
}


def also(module: str) -> set[str]:
    """What a module may import because of the package it lies in."""
    return {
        name for package, names in ALSO.items() if f"{module}.".startswith(f"{package}.") for name in names
    }


def unit_of(module: str) -> str:
    """`looped.tasks.copy` belongs to `tasks`, `looped` itself to `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(module: str, source: str, known: set[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of everything a module imports; names in `known` are modules, not attributes."""
    package = module.split(".")
    if not any(name.startswith(module + ".") for name in known):
        package = package[:-1]  # a plain module's relative imports start at its folder
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                yield node.lineno, full if full in known else origin
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def faults(sources: dict[str, str], declared: set[str]) -> list[str]:
    """Every import that goes the wrong way, as `module:line: reason`."""
    rank = {unit: i for i, layer in enumerate(LAYERS) for unit in layer}
    found = []
    for module, source in sorted(sources.items()):
        unit = unit_of(module)
        if unit not in rank:
            found.append(f"{module}:1: {unit} has no layer; give it one in LAYERS")
            continue
        for line, target in imports(module, source, set(sources)):
            top = target.partition(".")[0]
            if top in sys.stdlib_module_names:
                continue
            if top != "looped":
                if top not in THIRD_PARTY.get(unit, declared) | also(module):
                    found.append(f"{module}:{line}: {unit} may not import {top}")
                continue
            other = unit_of(target)
            if other in (unit, "__init__") or (unit == "__init__" and other in FRONT):
                continue
            if other not in rank or rank[other] > rank[unit] or other not in ONLY.get(unit, set(rank)):
                found.append(f"{module}:{line}: {unit} may not import looped.{other}")
    return found


def package_sources() -> dict[str, str]:
    """Module name → source of every module of the package."""
    named = {}
    for path in (ROOT / "looped").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text(encoding="utf-8")
    return named


def declared_packages() -> set[str]:
    """Import names of the packages that pyproject declares for use, development tools left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = [
        *project["dependencies"],
        *(name for extra in extras if extra != "dev" for name in extras[extra]),
    ]
    return {name.partition(">")[0].strip().replace("-", "_") for name in names}


def test_imports_go_one_way() -> None:
    assert faults(package_sources(), declared_packages()) == []


def test_no_module_imports_itself_in_a_circle() -> None:
    sources = package_sources()
    edges = {
        name: {target for _, target in imports(name, text, set(sources)) if target in sources}
        for name, text in sources.items()
        if name != "looped"  # what it hands out is imported late, by name
    } | {"looped": set()}

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join([*path, name])
        if name in settled:
            return
        for target in sorted(edges[name]):
            walk(target, (*path, name))
        settled.add(name)

    settled: set[str] = set()
    for name in sorted(edges):
        walk(name, ())


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("looped.tasks.copy", "import rich", "tasks may not import rich"),
        ("looped.tasks.copy", "from looped.model.block import Block", "tasks may not import looped.model"),
        ("looped.tasks.copy", "from looped import training", "tasks may not import looped.training"),
        ("looped.tasks.copy", "from ..training import engine", "tasks may not import looped.training"),
        ("looped.tasks.copy", "from .. import training", "tasks may not import looped.training"),
        ("looped.tasks.copy", "def f():\n    import attrs", "tasks may not import attrs"),
        ("looped.tasks.copy", "if TYPE_CHECKING:\n    import starlette", "tasks may not import starlette"),
        ("looped.tasks.copy", "importlib.import_module('looped.cli')", "tasks may not import looped.cli"),
        ("looped.rasp.core", "import torch", "rasp may not import torch"),
        ("looped.rasp.core", "from looped.tasks import get", "rasp may not import looped.tasks"),
        ("looped.figures", "def f():\n    import torch.nn", "figures may not import torch"),
        (
            "looped.figures",
            "from looped.evaluation import measure",
            "figures may not import looped.evaluation",
        ),
        (
            "looped.fast.engine",
            "from looped.cli.arguments import parse",
            "fast may not import looped.cli",
        ),
        ("looped.fast.layer_ops", "import triton.language as tl", "fast may not import triton"),
        ("looped.model.block", "from looped.training import losses", "model may not import looped.training"),
        ("looped.cli.train", "import pandas", "cli may not import pandas"),
        ("looped.cli.train", "import pytest", "cli may not import pytest"),
        ("looped.somewhere", "", "somewhere has no layer"),
    ],
)
def test_a_planted_import_is_flagged(module: str, source: str, complaint: str) -> None:
    sources = {"looped": "", "looped.training": "", module: source}
    found = faults(sources, {"torch", "rich", "starlette", "attrs"})
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("looped.tasks.copy", "from looped.vocab import Vocab\nimport torch, math\nfrom .base import Task"),
        ("looped.fast.kernels", "import triton\nimport torch"),
        ("looped.rasp.core", "import numpy as np\nfrom looped.errors import InputError"),
        ("looped.training.trainer", "from looped.evaluation import measure\nfrom looped import __version__"),
        ("looped.cli.train", "def run():\n    import rich\n    from looped.training import trainer"),
    ],
)
def test_a_proper_import_is_not_flagged(module: str, source: str) -> None:
    sources = {"looped": "", "looped.evaluation.measure": "", "looped.tasks.base": "", module: source}
    assert faults(sources, {"torch", "rich"}) == []
