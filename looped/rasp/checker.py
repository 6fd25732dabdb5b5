"""Is a file of n-RASP-L programs legal? First by reading it, then, if that found nothing, by trying it out.

A file's programs are its module-level `Program(...)` objects and every function that nothing else in the file
uses; such a function is a straight-line program over token sequences. A program is tried on two questions of
different length made from its example, a function on two small rows of bits.

Nothing of a file that fails the reading is ever run.
"""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np

from looped.errors import InputError
from looped.rasp.module_level import Module, read_module, walk_functions
from looped.rasp.program import Program, refuse_function, run
from looped.rasp.rules import LegalityError, Violation
from looped.rasp.sequence import Seq, recording, seq
from looped.rasp.static import Walk

MOST_STEPS = 100_000  # of a trial; a longer one would look like a hang
PROBES = ([1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 1, 1, 0])  # rows that a straight-line program is tried on


@dataclass(frozen=True)
class Report:
    """What a check found: the programs by name, and every broken rule, in order of lines."""

    file: str
    programs: tuple[str, ...]
    violations: tuple[Violation, ...]

    @property
    def legal(self) -> bool:
        """Whether nothing was found."""
        return not self.violations


def check_file(path: str | Path) -> Report:
    """Checks every program in a file."""
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read {path}: {reason}") from None
    return check_source(text, str(path))


def check_source(text: str, file: str) -> Report:
    """Checks every program in a file's text; `file` is its name for messages."""
    try:
        tree = ast.parse(text, filename=file)
        walk = Walk(file)
        module = read_module(tree, file, walk)
        walk_functions(module, walk)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{file}{line} is not valid Python: {error.args[0]}") from None
    except (RecursionError, MemoryError):
        raise InputError(f"{file} is nested too deeply to be read") from None
    named = _program_names(tree)
    alone = [name for name in module.functions if name not in module.used]
    if not named and not alone and not walk.found:
        wanted = "neither a Program(...) nor a function of sequences"
        raise InputError(f"{file} has no n-RASP-L program: {wanted}")
    found = walk.found or list(_tried(text, file, module, alone))
    return Report(file, (*named, *alone), tuple(sorted(found, key=lambda violation: violation.line)))


def check_program(program: Program) -> tuple[Violation, ...]:
    """What is wrong with a program that exists already: its functions are read, then tried."""
    return tuple(_faults(lambda: try_program(program), "?"))


def try_program(program: Program) -> None:
    """Runs a program on its example and on one twice as long, and once on both together."""
    rows = [program.row(question) for question in probes(program)]
    for row in rows:
        steps = sum(loop.count(program.sizes(row.tolist())) for loop in program.loops)
        if steps > MOST_STEPS:
            raise InputError(f"{program.name} asks for {steps} steps on {program.vocab.row(row.tolist())}")
    size = max(map(len, rows))
    for row in rows:
        run(program, row)
    run(
        program,
        np.stack([np.pad(row, (0, size - len(row)), constant_values=program.vocab.eos) for row in rows]),
    )


def probes(program: Program) -> list[list[str]]:
    """Two questions of different length: the example, and the example with each part written twice."""
    parts: list[list[str]] = [[]]
    for name in program.example.split():
        if name in program.separators:
            parts += [[name], []]
        else:
            parts[-1].append(name)
    return [program.example.split(), [n for p in parts for n in (p if p[0] in program.separators else p + p)]]


def try_function(function: Callable[..., Seq]) -> None:
    """Runs a straight-line program on rows of two lengths; its operations must be the same."""
    seen: list[list[tuple[object, ...]]] = []
    code = function.__code__
    count = code.co_argcount - len(function.__defaults__ or ())
    for row in PROBES:
        with recording() as operations:
            output = function(*[seq(row)] * count)
        if not isinstance(output, Seq):
            if isinstance(output, (dict, tuple)):
                continue
            refuse_function(function, f"returns {type(output).__name__}, not a sequence", rule="argument")
        seen.append(operations)
    if any(operations != seen[0] for operations in seen):
        refuse_function(function, "its operations differed between two lengths")


def _tried(text: str, file: str, module: Module, alone: list[str]) -> Iterator[Violation]:
    """Imports a file that has passed the reading, and tries its programs."""
    living = ModuleType("looped_checked_file")
    living.__file__ = file
    sys.modules[living.__name__] = living

    def load() -> None:
        exec(compile(text, file, "exec"), living.__dict__)

    try:
        failed = list(_faults(load, file))
        yield from failed
        if failed:
            return
        for value in list(vars(living).values()):
            if isinstance(value, Program):
                yield from _faults(lambda p=value: try_program(p), file)  # type: ignore[misc]
        for name in alone:
            function = getattr(living, name, None)
            if isinstance(function, FunctionType) and name not in module.scalar:
                yield from _faults(lambda f=function: try_function(f), file)  # type: ignore[misc]
    finally:
        del sys.modules[living.__name__]


def _faults(action: Callable[[], None], file: str) -> Iterator[Violation]:
    """What goes wrong while something is tried, as a violation at the file's own line."""
    try:
        action()
    except LegalityError as error:
        yield error.violation
    except Exception as error:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file
        ]
        detail = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        yield Violation("argument", file, (lines or [0])[-1] or 0, detail)


def _program_names(tree: ast.Module) -> list[str]:
    """The names that the file gives to its Program(...) objects."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            func = node.value.func
            called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if called == "Program":
                names += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return names
