"""The table of legal and illegal programs, judged by running and by `looped check`."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import cases
import pytest

from looped.rasp import LegalityError, Program, evaluate, run
from looped.rasp.checker import PROBES, check_file, probes

Cli = Callable[..., Any]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "case.py"
        path.write_text(cases.HEADER + text + "\n")
        return path

    return write


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("case", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def execute(module: ModuleType) -> None:
    """Runs a case the way a person would: the program on questions, or the function f on rows."""
    if hasattr(module, "PROGRAM"):
        program: Program = module.PROGRAM
        for question in probes(program):
            run(program, program.row(question))
    else:
        for row in PROBES:
            evaluate(module.f, row)


def test_the_table_is_large_enough() -> None:
    assert len(cases.ILLEGAL) >= 25
    assert len(cases.LEGAL) >= 25


@pytest.mark.parametrize("name", cases.ILLEGAL)
def test_running_refuses(name: str, write: Callable[[str], Path]) -> None:
    case = cases.ILLEGAL[name]
    path = write(case.text)
    with pytest.raises(LegalityError) as refused:
        execute(load(path))
    assert refused.value.rule == case.rule, str(refused.value)
    assert refused.value.line == cases.line_of(case.text)
    assert str(refused.value).startswith(f"{path}:{refused.value.line}: {case.rule}: ")


@pytest.mark.parametrize("name", [name for name, case in cases.ILLEGAL.items() if case.runtime])
def test_running_without_source_refuses(name: str) -> None:
    """With no text to read, the sequences themselves still refuse."""
    case = cases.ILLEGAL[name]

    def run_text() -> None:
        module = ModuleType("case")
        exec(compile(cases.HEADER + case.text, "<no file>", "exec"), module.__dict__)
        execute(module)

    with pytest.raises(LegalityError) as refused:
        run_text()
    assert refused.value.line == cases.line_of(case.text)


@pytest.mark.parametrize("name", cases.ILLEGAL)
def test_check_refuses(name: str, write: Callable[[str], Path]) -> None:
    case = cases.ILLEGAL[name]
    path = write(case.text)
    report = check_file(path)
    assert not report.legal
    places = [(violation.rule, violation.line) for violation in report.violations]
    assert (case.rule, cases.line_of(case.text)) in places
    assert all(violation.file == str(path) for violation in report.violations)


@pytest.mark.parametrize("name", cases.LEGAL)
def test_running_accepts(name: str, write: Callable[[str], Path]) -> None:
    execute(load(write(cases.LEGAL[name])))


@pytest.mark.parametrize("name", cases.LEGAL)
def test_check_accepts(name: str, write: Callable[[str], Path]) -> None:
    report = check_file(write(cases.LEGAL[name]))
    assert report.legal, [str(violation) for violation in report.violations]
    assert report.programs in (("f",), ("PROGRAM",))
