"""Every legal form is accepted, and the interpreter gives what Python gives."""

from inspect import signature
from pathlib import Path
from types import ModuleType

import cases
import forms
import pytest

from looped.rasp import Program, run, seq, unwrap
from looped.rasp.lint import PROBES, check_file, probes


def test_the_table_is_large_enough() -> None:
    assert len(forms.FORMS) >= 60
    assert len(forms.FORMS) + len(cases.LEGAL) >= 110


@pytest.mark.parametrize("name", forms.FORMS)
def test_a_legal_form(name: str, tmp_path: Path) -> None:
    file = tmp_path / "form.py"
    file.write_bytes(forms.FORMS[name].encode("utf-8"))
    report = check_file(file)
    assert report.legal, [str(violation) for violation in report.violations]
    assert report.programs
    module = ModuleType("form")
    exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    for program in report.loaded.values():
        same = next(p for p in programs_in(module) if p.name == program.name)
        for question in probes(program):
            assert run(program, program.row(question)).tolist() == run(same, same.row(question)).tolist()
    for called, function in report.functions.items():
        for row in PROBES:
            needed = [p for p in signature(function).parameters.values() if p.default is p.empty]
            given = [seq(row)] * len(needed)
            mine, python = function(*given), vars(module)[called](*given)
            if isinstance(mine, dict):
                mine, python = mine["seq"], python["seq"]
            assert unwrap(mine).tolist() == unwrap(python).tolist()


def programs_in(module: ModuleType) -> list[Program]:
    found: list[object] = []
    for value in vars(module).values():
        several = list(value.values()) if isinstance(value, dict) else value
        found += several if isinstance(several, (list, tuple)) else [several]
    return [each for each in found if isinstance(each, Program)]
