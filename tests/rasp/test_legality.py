"""The table of legal and illegal programs: checked as files, and run as Python functions of one's own process."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cases
import pytest

from looped.rasp import LegalityError, Program, evaluate, run, seq, unwrap
from looped.rasp.lint import PROBES, check_file, load, probes


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "case.py"
        path.write_text(cases.HEADER + text + "\n")
        return path

    return write


def as_python(text: str) -> ModuleType:
    module = ModuleType("case")
    exec(compile(cases.HEADER + text, "<no file>", "exec"), module.__dict__)
    return module


def results(program: Program | Callable[..., Any]) -> list[object]:
    """What a program gives on questions, or a function on rows."""
    if isinstance(program, Program):
        return [run(program, program.row(question)).tolist() for question in probes(program)]
    return [evaluate(program, row).tolist() for row in PROBES]


def test_the_table_is_large_enough() -> None:
    assert len(cases.ILLEGAL) >= 25
    assert len(cases.LEGAL) >= 25


@pytest.mark.parametrize("name", cases.ILLEGAL)
def test_check_refuses(name: str, write: Callable[[str], Path]) -> None:
    case = cases.ILLEGAL[name]
    path = write(case.text)
    report = check_file(path)
    assert not report.legal
    places = [(violation.rule, violation.line) for violation in report.violations]
    assert (case.rule, cases.line_of(case.text)) in places, [str(v) for v in report.violations]
    assert all(violation.file == str(path) for violation in report.violations)
    with pytest.raises(LegalityError):
        load(path)


@pytest.mark.parametrize("name", [name for name, case in cases.ILLEGAL.items() if case.runtime])
def test_python_functions_are_refused_while_they_run(name: str) -> None:
    """No file and nothing to check: the sequences themselves refuse, at the program's line."""
    case = cases.ILLEGAL[name]

    def run_text() -> None:
        module = as_python(case.text)
        results(getattr(module, "PROGRAM", None) or module.f)

    with pytest.raises(LegalityError) as refused:
        run_text()
    assert refused.value.violation.line == cases.line_of(case.text)


@pytest.mark.parametrize("name", cases.LEGAL)
def test_check_accepts_and_the_interpreter_gives_what_python_gives(
    name: str, write: Callable[[str], Path]
) -> None:
    path = write(cases.LEGAL[name])
    report = check_file(path)
    assert report.legal, [str(violation) for violation in report.violations]
    assert report.programs in (("f",), ("PROGRAM",))
    module = as_python(cases.LEGAL[name])
    if hasattr(module, "PROGRAM"):
        program = load(path)
        assert (program.file, module.PROGRAM.file) == (str(path), None)
        assert results(program) == results(module.PROGRAM)
    else:
        (function,) = (report.functions[name] for name in report.programs)
        assert [unwrap(function(seq(row))).tolist() for row in PROBES] == results(module.f)
