"""Check a file of n-RASP-L programs, and load programs from it.

Its syntax tree is read (`toplevel.py`), every function body is checked (`grammar.py`), and the programs are tried on
small rows (`interpreter.py`), within a budget. Straight-line code does the same operations on every input, so a trial
shows every broken rule about kinds, and the run enforces the rest. The first of these that finds something ends the
check.

A file's programs are its `Program(...)` objects, and every function that nothing else in the file uses: such a
function is a straight-line program over token sequences.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from looped import files
from looped.errors import InputError
from looped.rasp.grammar import Bodies
from looped.rasp.interpreter import CALL_LIMIT, Budget, FileFunction
from looped.rasp.lint_rules import LegalityError, RuleError, Violation
from looped.rasp.program import Loop, Program, refuse_function, run
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
    violations: tuple[Violation, ...]
    loaded: dict[str, Program] = field(repr=False)  # the Program(...) objects
    functions: dict[str, FileFunction] = field(repr=False)  # the straight-line programs

    @property
    def programs(self) -> tuple[str, ...]:
        """The names of both."""
        return (*self.loaded, *self.functions)

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
        source = read_file(tree, file, Budget(CHECK_LIMIT, purpose="a check"))
        Bodies(source.findings).check(source)
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{file}{line} is not valid Python: {error.args[0]}") from None
    except (RecursionError, MemoryError):
        raise InputError(f"{file} is nested too deeply to be read") from None
    programs, alone = source.programs, source.alone
    found = list(source.findings.violations)
    if not programs and not alone and not found:
        what = "neither a Program(...) nor a function of sequences"
        raise InputError(f"{file} has no n-RASP-L program: {what}")
    if len(programs) + len(alone) > MOST_PROGRAMS:
        raise InputError(f"{file} has more than {MOST_PROGRAMS} programs")
    found = found or list(_tried(source))
    source.module.trial, source.module.budget = False, Budget(CALL_LIMIT)
    return LintReport(file, tuple(sorted(found, key=lambda violation: violation.line)), programs, alone)


# --- trials -----------------------------------------------------------------------------------------------
def check_program(program: Program) -> tuple[Violation, ...]:
    """What goes wrong when a program is tried on its examples, whether it comes from a file or from Python."""
    return tuple(_faults(partial(try_program, program), "?"))


def try_program(program: Program) -> None:
    """Do each step once, then run a program on its example and on one twice as long."""
    rows = [program.row(question) for question in probes(program)]
    for row in rows:
        if len(row) > MOST_TRIAL_POSITIONS:
            wanted = f"a row of {len(row)} positions, more than {MOST_TRIAL_POSITIONS}"
            refuse_function(program.prepare, f"its answer_size asks for {wanted}", rule="budget")
        steps = program.total(program.sizes(row.tolist()))
        if steps > MOST_STEPS:
            asked = program.vocab.row(row.tolist())[:60]
            detail = f"the program asks for {steps} steps on {asked}, more than {MOST_STEPS}"
            refuse_function(program.prepare, detail, rule="budget")
    # Every step once, whatever its loop's T is for the example.
    steps_once = [Loop(step, times=lambda *sizes: 1) for loop in program.loops for step in loop.steps()]
    run(replace(program, loops=tuple(steps_once)), rows[0])
    size = max(map(len, rows))
    padded = [np.pad(row, (0, size - len(row)), constant_values=program.vocab.eos) for row in rows]
    for data in (*rows, np.stack(padded)):
        try:
            run(program, data)
        except RuleError as error:
            if error.rule != "budget":
                raise
            return  # the steps are legal, and there are more of them than a trial takes


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


def _tried(source: SourceFile) -> Iterator[Violation]:
    """Interpret a file's programs on small rows."""
    file = source.module.file
    trials: list[tuple[Callable[[], object], Callable[[], object], int]] = []
    for program in source.programs.values():
        line = source.lines.get(id(program), 0)
        trials.append((partial(try_program, program), partial(_try_symbols, program), line))
    for function in source.alone.values():
        line = function.place[1]
        trials.append((partial(try_function, function), partial(_on, function, WIDE_PROBE), line))
    for trial, of_other_symbols, line in trials:
        source.module.budget = Budget(CHECK_LIMIT // len(trials), purpose="a check")
        yield from _faults(trial, file, line)
        # Other symbols need not make a question that the program can answer: only the rule about means counts.
        yield from (found for found in _faults(of_other_symbols, file) if found.rule == "mean-range")


def _try_symbols(program: Program) -> None:
    """The example with every symbol of the vocabulary in its places."""
    plain = [name for name in program.vocab.symbols if name not in program.separators]
    example = program.example.split()
    for first in range(0, len(plain), max(1, len(example))):
        symbols = iter(plain[first:] + plain * len(example))
        question = [name if name in program.separators else next(symbols) for name in example]
        run(program, program.row(question))


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
