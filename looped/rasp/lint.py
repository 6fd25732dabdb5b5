"""Check a file of n-RASP-L programs, and load programs from it.

A file is read in four steps, and the first that finds something ends the check:

1. The text becomes a syntax tree (`ast.parse`).
2. The module level is checked and evaluated (`toplevel.py`).
3. Every function body is checked (`grammar.py`).
4. The programs are tried: interpreted (`interpreter.py`) on small rows, within a budget. Straight-line code does the
   same operations on every input, so a trial shows every broken rule about kinds, and the run enforces the rest.

A file's programs are its `Program(...)` objects, and every function that nothing else in the file uses: such a
function is a straight-line program over token sequences.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from looped import files
from looped.errors import InputError
from looped.rasp.grammar import Bodies
from looped.rasp.interpreter import CALL_LIMIT, Budget, FileFunction
from looped.rasp.lint_rules import LegalityError, RuleError, Violation
from looped.rasp.program import Loop, Program, read_out, refuse_function, run, unroll
from looped.rasp.sequence import Seq, recording, seq
from looped.rasp.toplevel import SourceFile, read_file

MOST_BYTES = 1 << 18  # of a file
MOST_PROGRAMS = 200  # of a file
MOST_STEPS = 100_000  # of a trial
CHECK_LIMIT = 200_000  # units of work of a whole check: about half a second
MOST_TRIAL_POSITIONS = 4096
PROBES = ([1, 0, 0, 1, 1], [0, 1, 1, 0, 1, 1, 1, 0])  # rows that a straight-line program is tried on
WIDE_PROBE = [7, 0, 12, 3, 1, 5, 2, 9, 4, 15, 6, 8, 10, 11, 13, 14]  # more symbols, for the range of a mean


@dataclass(frozen=True)
class LintReport:
    """What a check found: the programs by name, and every broken rule, in order of lines."""

    file: str
    programs: tuple[str, ...]
    violations: tuple[Violation, ...]
    loaded: dict[str, Program] = field(default_factory=dict, repr=False)  # the Program(...) objects
    functions: dict[str, FileFunction] = field(default_factory=dict, repr=False)  # the straight-line programs

    @property
    def legal(self) -> bool:
        """Whether nothing was found."""
        return not self.violations


# --- files ------------------------------------------------------------------------------------------------
def check_file(path: str | Path) -> LintReport:
    """Check every program in a file."""
    return check_source(_text(path), str(path))


def load(path: str | Path, name: str | None = None) -> Program:
    """The program of a file, checked and ready to be interpreted; `name` picks one of several."""
    report = check_file(path)
    for violation in report.violations:
        raise LegalityError(violation, located=True)
    found = report.loaded
    if not found:
        raise InputError(f"{path} has no Program(...), only functions, which have no loop")
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    picked = next((found[each] for each in found if name in (each, found[each].name)), None)
    if picked is None:
        wrong = "" if name is None else f", not {name[:40]!r}"
        raise InputError(f"{path} has the programs {', '.join(found)}; pick one with --name{wrong}")
    return picked


def _text(path: str | Path) -> str:
    try:
        return files.read_bytes(Path(path), "a file of programs", MOST_BYTES).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"cannot read {path}: {reason}") from None


def check_source(text: str, file: str) -> LintReport:
    """Check every program in a file's text; `file` is its name for messages."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own advice about the text
            tree = ast.parse(text.removeprefix("\ufeff"))  # a file name here would be opened
        source = read_file(tree, file, _budget(CHECK_LIMIT))
        Bodies(source.findings).check(source)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{file}{line} is not valid Python: {error.args[0]}") from None
    except (RecursionError, MemoryError):
        raise InputError(f"{file} is nested too deeply to be read") from None
    programs = source.programs
    alone = {name: function for name, function in source.functions.items() if name not in source.used}
    found = source.findings.violations
    if not programs and not alone and not found:
        raise InputError(
            f"{file} has no n-RASP-L program: neither a Program(...) nor a function of sequences"
        )
    if len(programs) + len(alone) > MOST_PROGRAMS:
        raise InputError(f"{file} has more than {MOST_PROGRAMS} programs")
    if not found:
        found = list(_tried(source, programs, alone))
    module = source.module
    module.trial, module.budget = False, Budget(CALL_LIMIT)
    ordered = tuple(sorted(found, key=lambda violation: violation.line))
    return LintReport(file, (*programs, *alone), ordered, programs, alone)


def _budget(units: int) -> Budget:
    return Budget(units, purpose="a check")


# --- trials -----------------------------------------------------------------------------------------------
def check_program(program: Program) -> tuple[Violation, ...]:
    """What goes wrong when a program is tried on its examples, whether it comes from a file or from Python."""
    return tuple(_faults(lambda: try_program(program), "?"))


def try_program(program: Program) -> None:
    """Do each step once, then run a program on its example and on one twice as long."""
    rows = [program.row(question) for question in probes(program)]
    for row in rows:
        if len(row) > MOST_TRIAL_POSITIONS:
            detail = (
                f"its answer_size asks for a row of {len(row)} positions, more than {MOST_TRIAL_POSITIONS}"
            )
            refuse_function(program.prepare, detail, rule="budget")
        steps = program.total(program.sizes(row.tolist()))
        if steps > MOST_STEPS:
            asked = program.vocab.row(row.tolist())[:60]
            detail = f"the program asks for {steps} steps on {asked}, more than {MOST_STEPS}"
            refuse_function(program.prepare, detail, rule="budget")
    _try_each_step(program, rows[0])
    size = max(map(len, rows))
    padded = [np.pad(row, (0, size - len(row)), constant_values=program.vocab.eos) for row in rows]
    for data in (*rows, np.stack(padded)):
        try:
            run(program, data)
        except RuleError as error:
            if error.rule != "budget":
                raise
            return  # the steps are legal, and there are more of them than a trial takes


def _try_each_step(program: Program, row: np.ndarray) -> None:
    """Every step once, whatever its loop's T is for the example."""
    steps = [step for loop in program.loops for step in loop.steps()]
    once = replace(program, loops=tuple(Loop(step, times=lambda *sizes: 1) for step in steps))
    for _, _, state in unroll(once, row, program.sizes(row.tolist())):
        final = state
    read_out(once, final, row)


def probes(program: Program) -> list[list[str]]:
    """Two questions of different length: the example, and the example with each part written twice."""
    parts: list[list[str]] = [[]]
    for name in program.example.split():
        if name in program.separators:
            parts += [[name], []]
        else:
            parts[-1].append(name)
    twice = [part if set(part) & set(program.separators) else part + part for part in parts]
    return [program.example.split(), [name for part in twice for name in part]]


def try_function(function: Callable[..., Seq]) -> None:
    """Run a straight-line program on rows of two lengths; its operations must be the same."""
    seen: list[list[tuple[object, ...]]] = []
    for row in PROBES:
        with recording() as operations:
            output = _on(function, row)
        if not isinstance(output, Seq):
            if isinstance(output, (dict, tuple)):
                continue
            refuse_function(function, f"returns {type(output).__name__}, not a sequence", rule="argument")
        seen.append(operations)
    if any(operations != seen[0] for operations in seen):
        refuse_function(function, "its operations differed between two lengths")


def _on(function: Callable[..., Seq], row: list[int]) -> object:
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return function(**{parameter.name: seq(row) for parameter in needed})


def _tried(
    source: SourceFile, programs: dict[str, Program], alone: dict[str, FileFunction]
) -> Iterator[Violation]:
    """Interpret a file's programs on small rows."""
    file = source.module.file
    share = CHECK_LIMIT // (len(programs) + len(alone))
    for program in programs.values():
        line = source.lines.get(id(program), 0)
        source.module.budget = _budget(share)
        yield from _faults(lambda p=program: try_program(p), file, line)  # type: ignore[misc]
        yield from _mean_faults(lambda p=program: _try_symbols(p), file)  # type: ignore[misc]
    for function in alone.values():
        line = function.place[1]
        source.module.budget = _budget(share)
        yield from _faults(lambda f=function: try_function(f), file, line)  # type: ignore[misc]
        yield from _mean_faults(lambda f=function: _on(f, WIDE_PROBE), file)  # type: ignore[misc]


def _try_symbols(program: Program) -> None:
    """The example with every symbol of the vocabulary in its places."""
    plain = [name for name in program.vocab.symbols if name not in program.separators]
    example = program.example.split()
    for first in range(0, len(plain), max(1, len(example))):
        symbols = iter(plain[first:] + plain * len(example))
        question = [name if name in program.separators else next(symbols) for name in example]
        run(program, program.row(question))


def _mean_faults(action: Callable[[], object], file: str) -> Iterator[Violation]:
    """Only what breaks the rule about means: other symbols need not make a question that the program can answer."""
    return (found for found in _faults(action, file) if found.rule == "mean-range")


def _faults(action: Callable[[], object], file: str, line: int = 0) -> Iterator[Violation]:
    """What goes wrong in a trial, as a violation."""
    try:
        action()
    except RuleError as error:
        yield error.violation
    except InputError as error:
        yield Violation("argument", file, line, str(error))
    except Exception as error:  # a Python function of the user's may raise anything
        yield Violation("argument", file, line, f"{type(error).__name__}: {error}")
