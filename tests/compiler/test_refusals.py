"""What cannot be compiled is refused with rule, file and line: a table of programs that must fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_programs import HEADER, load

from looped.compiler.compiled import compile_program
from looped.compiler.graph import LIMITS, CompileError
from looped.errors import InputError
from looped.rasp import programs
from looped.rasp.lint_rules import LegalityError
from looped.rasp.programs import find

PROGRAM = """
def prepare(row: Seq) -> State:
    return {{"s": {prepare}}}


def step(s: Seq, row: Seq) -> State:
    return {{"s": {step}}}


def readout(s: Seq, row: Seq) -> Seq:
    return {readout}


PROGRAM = Program('mine', VOCAB, prepare, ({loop},), readout, lambda n: 1, '1 0')
"""
FINE = {"prepare": "row % 2", "step": "1 - s", "readout": "s", "loop": "Loop(step, times=lambda n: n)"}
STEP_LINE, PREPARE_LINE = 12, 7
CASES = [
    ("unbounded-domain", {"step": "s + 1"}, STEP_LINE - 1),
    ("unbounded-domain", {"prepare": "indices(row)", "step": "s + 1", "readout": "row"}, STEP_LINE - 1),
    ("unbounded-domain", {"prepare": "row * 300", "step": "where(s * s * 0 == 0, s, row)"}, None),
    ("index-order", {"readout": "kqv(indices(row), indices(row), s, lt)"}, STEP_LINE + 4),
    ("loop-nesting", {"loop": "Loop((step, step), times=lambda n: n)"}, STEP_LINE - 1),
    ("step-count", {"loop": "Loop(step, times=lambda n: n * n * n)"}, STEP_LINE - 1),
    ("step-count", {"loop": "Loop(step, times=lambda n: n // 2)"}, STEP_LINE - 1),
    ("kind-varies", {"step": "s == 1"}, STEP_LINE - 1),
]


def text(**changes: str) -> str:
    return HEADER + PROGRAM.format(**{**FINE, **changes})


@pytest.mark.parametrize(("rule", "changes", "line"), CASES, ids=[str(i) for i in range(len(CASES))])
def test_the_rule_the_file_and_the_line(
    rule: str, changes: dict[str, str], line: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    program = load(text(**changes), file)
    with pytest.raises((CompileError, LegalityError)) as caught:
        compile_program(program, longest=64)
    violation = caught.value.violation
    assert violation.file == str(file)
    if line is not None:
        assert (violation.rule, violation.line) == (rule, line)
        assert LIMITS[rule] in str(caught.value)


def test_the_same_program_without_a_fault_compiles(tmp_path: Path) -> None:
    made = compile_program(load(text(), tmp_path / "mine.py"), longest=64)
    assert made.card.program == "mine"


def test_a_width_beyond_the_limit() -> None:
    with pytest.raises(CompileError, match=r"paper\.py:\d+: width: parity needs a width of \d+, more than 8"):
        compile_program(programs.get("parity"), most_width=8)


def test_rows_too_long_to_be_exact() -> None:
    with pytest.raises(CompileError, match=r"paper\.py:\d+: row-length: rows of 65536 tokens need sums of"):
        compile_program(programs.get("addition"), longest=65536)


def test_an_illegal_file_is_refused_before_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text(step="s if s else row"))
    with pytest.raises(LegalityError, match=rf"mine\.py:{STEP_LINE}: control-flow"):
        find(str(file))


def test_a_file_of_several_programs_needs_a_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text() + "OTHER = Program('other', VOCAB, prepare, (), readout, lambda n: 1, '1 0')\n")
    for name in ("other", "OTHER"):  # its own, and the one `looped check` tells
        assert find(str(file), name).name == "other"
    with pytest.raises(InputError, match=r"pick one with --name, not 'third'$"):
        find(str(file), "third")
    with pytest.raises(InputError, match=r"has the programs PROGRAM, OTHER; pick one with --name$"):
        find(str(file))


def test_a_second_name_for_a_program_is_no_second_program(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text() + "AGAIN = PROGRAM\n")
    assert find(str(file)).name == "mine"


def test_a_file_without_a_program(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(HEADER + "def f(x: Seq) -> Seq:\n    return x + 1\n")
    with pytest.raises(InputError, match="has no Program"):
        find(str(file))
