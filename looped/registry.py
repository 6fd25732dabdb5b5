"""Blocks of other people's, by name: from a file, from `register`, or from an installed package.

    resolve("my_block.py:SwiGLU")     runs that file and takes the class; a run then records my_block.py:SwiGLU
    register(SwiGLU)                  makes a class known under its name in this process
    [project.entry-points."looped.blocks"]   swiglu = "my_package:SwiGLU"     in a package's pyproject.toml

A block is a class, or any function, that takes a `ModelConfig` and gives a module [B, L, D] → [B, L, D]. Only a file
that a person names is run. A run's folder holds a block's name, never its code: `block_of` asks for it where it is
missing.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from looped.errors import InputError

BLOCKS = "looped.blocks"  # the group of entry points

_blocks: dict[str, Callable[..., Any]] = {}  # by the name that a run records


def register(block: Callable[..., Any], name: str | None = None) -> str:
    """Make a block known in this process; returns the name that a run records."""
    if not callable(block):
        raise InputError(f"a block is a class or a function that makes one, not {block!r:.60}")
    known = name or reference(block)
    _blocks[known] = block
    return known


def reference(block: Callable[..., Any]) -> str:
    """What a run records of a block: the file's name and the block's own, or its module where there is no file."""
    own = getattr(block, "__qualname__", type(block).__name__)
    for known, other in _blocks.items():
        if other is block:
            return known
    try:
        file = inspect.getsourcefile(block)
    except (TypeError, OSError):
        file = None
    return f"{Path(file).name}:{own}" if file else f"{getattr(block, '__module__', '__main__')}:{own}"


def resolve(text: str) -> str:
    """Make the block that a person names known: `FILE.py:Name`, or a registered name; returns its recorded name."""
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        block_of(text)
        return text
    path = Path(file)
    if not path.is_file():
        raise InputError(f"there is no file {file}: a block is named FILE.py:Name")
    block = getattr(_run(path), name, None)
    if not callable(block):
        raise InputError(f"{file} has no class or function {name[:60]!r} that makes a block")
    return register(block, f"{path.name}:{name}")


def block_of(name: str) -> Callable[..., Any]:
    """The block that a run recorded; raises a sentence that says what to pass if it is not known here."""
    if name in _blocks:
        return _blocks[name]
    for point in entry_points(group=BLOCKS):
        if point.name == name:
            _blocks[name] = point.load()
            return _blocks[name]
    raise InputError(
        f"the block {name[:80]!r} is not known here: pass --block FILE.py:Name with the file that defines it "
        "(in Python, looped.register(Name))"
    )


def _run(path: Path) -> ModuleType:
    """The module in a file, run once a process and again when the file has changed."""
    whole = path.resolve()
    key = hashlib.sha256(str(whole).encode() + whole.read_bytes()).hexdigest()[:16]
    name = f"looped_user_{key}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, whole)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"{path} could not be run: {type(error).__name__}: {error}") from error
    return module
