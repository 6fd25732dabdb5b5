"""Programs drawn at random from the language give the interpreter's variables at every step."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from equality import assert_equal
from hypothesis import HealthCheck, given, reject, settings
from random_programs import load, program_texts

from looped.compiler.compiled import compile_program
from looped.compiler.graph import CompileError

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=program_texts())
def test_a_random_program_equals_the_interpreter_at_every_step(folder: Path, text: str) -> None:
    compare(folder, text)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=program_texts())
def test_many_random_programs_equal_the_interpreter_at_every_step(folder: Path, text: str) -> None:
    compare(folder, text)


def compare(folder: Path, text: str) -> None:
    program = load(text, folder / f"random_{next(NUMBERS)}.py")
    try:
        made = compile_program(program, longest=64)
    except CompileError as error:
        if error.rule == "unbounded-domain":
            reject()  # an index that may grow with every step
        raise
    generator = np.random.default_rng(len(text))
    for n in (1, 4):
        questions = generator.integers(0, 3, size=(4, n)).astype(str).tolist()
        rows = np.stack([program.row(question, size=n + 3) for question in questions])
        assert_equal(program, made, rows)
