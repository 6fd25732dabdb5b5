"""Fuzz test over syntax trees: checker, interpreter, Python and compiled model agree, or one of them refuses."""

from __future__ import annotations

import traceback
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from equality import assert_equal
from mutations import mutated_text

from looped.compiler.compiled import compile_program
from looped.errors import InputError
from looped.rasp import RULES
from looped.rasp.attention import Array
from looped.rasp.lint import check_source
from looped.rasp.program import Program, run

QUICK, ALL = 200, 4000
LONGEST = 32  # positions of a compiled model


def rows_of(program: Program) -> list[Array]:
    """The example, and two questions like it with other symbols."""
    example = program.example.split()
    symbols = [name for name in program.vocab.symbols if name not in program.separators]
    generator = np.random.RandomState(1)
    found = [program.row(example)]
    for _ in range(2):
        asked = [s if s in program.separators else symbols[generator.randint(len(symbols))] for s in example]
        found.append(program.row(asked, size=len(found[0])))
    return found


def judge(seed: int) -> str:
    """What became of a mutated program: how far it came, and everything agreed on the way."""
    text = mutated_text(seed)
    try:
        report = check_source(text, "mutated.py")
    except InputError:
        return "unreadable"
    assert all(v.rule in RULES and v.line > 0 for v in report.violations), report.violations
    if not report.legal or not report.loaded:
        return "refused" if not report.legal else "no program"
    program = next(iter(report.loaded.values()))
    try:
        rows = np.stack(rows_of(program))
        mine = run(program, rows)
    except InputError:
        return "refused by the run"
    module = ModuleType("mutated")
    exec(
        compile(text, "mutated.py", "exec"), module.__dict__
    )  # a legal file does nothing but define programs
    same = next(value for value in vars(module).values() if isinstance(value, Program))
    assert run(same, rows).tolist() == mine.tolist()
    try:
        made = compile_program(program, longest=LONGEST)
    except InputError:
        return "refused by the compiler"
    if rows.shape[-1] > LONGEST:
        return "too long for the compiled model"
    assert_equal(program, made, rows)
    return "equal"


def judged(seeds: range) -> Counter[str]:
    found: Counter[str] = Counter()
    failed = {}
    for seed in seeds:
        try:
            found[judge(seed)] += 1
        except Exception:
            failed[seed] = traceback.format_exc()
    for seed, trace in failed.items():
        print(f"--- seed {seed}\n{mutated_text(seed)}\n{trace}")
    assert not failed
    return found


@pytest.mark.slow
def test_mutated_programs_agree_or_are_refused() -> None:
    found = judged(range(QUICK))
    assert found["equal"] >= QUICK // 12, found  # the mutations must not all be illegal
    assert found["refused"] >= QUICK // 5, found  # nor all legal


@pytest.mark.slow
def test_many_mutated_programs_agree_or_are_refused() -> None:
    judged(range(QUICK, ALL))
