"""Programs as such: sizes, several loops, nesting, injection, what a run refuses."""

from types import ModuleType

import numpy as np
import pytest

from looped.errors import InputError
from looped.rasp import LegalityError, Loop, Program, Seq, State, evaluate, full, run, shift_right, where
from looped.rasp.lint import check_program, probes
from looped.rasp.programs import PROGRAMS, get
from looped.vocab import Vocab

BITS = Vocab(("0", "1"))


def prepare(row: Seq) -> State:
    return {"number": full(row, 0), "other": full(row, 0)}


def one_more(number: Seq) -> State:
    return {"number": number + 1}


def two_more(number: Seq, other: Seq) -> State:
    return {"number": number + 2, "other": other + 1}


def readout(number: Seq) -> Seq:
    return number


def strange(number: Seq) -> State:
    return {"nobody": number}


def bare(number: Seq) -> Seq:
    return number


def make(*loops: Loop, **changes: object) -> Program:
    fields = {
        "name": "count",
        "vocab": BITS,
        "prepare": prepare,
        "loops": loops,
        "readout": readout,
        "answer_size": lambda n: n,
        "example": "1 0",
    }
    return Program(**{**fields, **changes})  # type: ignore[arg-type]


def counted(program: Program, question: str) -> int:
    return int(run(program, program.row(question.split()))[0])


def test_loops_follow_each_other_with_their_own_times() -> None:
    program = make(Loop(one_more, times=lambda n: n), Loop(two_more, times=lambda n: n * n))
    assert counted(program, "1 1 1") == 3 + 2 * 9
    assert program.steps((3,)) == (3, 9)
    assert program.total((3,)) == 12


def test_loops_nest() -> None:
    inner = Loop(one_more, times=lambda n: n)
    program = make(Loop((two_more, inner), times=lambda n: n + 1))
    assert counted(program, "1 1 1") == 4 * (2 + 3)
    assert program.total((3,)) == 4 * (1 + 3)


def test_rows_of_different_sizes_run_in_one_call() -> None:
    program = make(Loop(one_more, times=lambda n: n))
    rows = [program.row(question.split(), size=8) for question in ("1", "1 0 1", "0", "1 1 1 1 1")]
    assert run(program, np.array(rows))[:, 0].tolist() == [1, 3, 1, 5]


def test_zero_steps_are_allowed_and_negative_ones_are_not() -> None:
    assert counted(make(Loop(one_more, times=lambda n: 0)), "1 0") == 0
    for times in (-1, 1.5, True):
        with pytest.raises(InputError, match="must be a number of steps"):
            counted(make(Loop(one_more, times=lambda n, t=times: t)), "1 0")


def test_overrun_changes_nothing_in_any_shipped_program() -> None:
    for program in PROGRAMS.values():
        for question in probes(program):
            row = program.row(question)
            start = len(question)
            plain = run(program, row)[start:]
            for extra in (1, 2, 7):
                np.testing.assert_array_equal(run(program, row, extra)[start:], plain)


def test_the_state_keeps_to_its_names() -> None:
    with pytest.raises(InputError, match="may return only variables of the state, not nobody"):
        counted(make(Loop(strange, times=lambda n: n)), "1")
    with pytest.raises(InputError, match="bare must return a dict of sequences"):
        counted(make(Loop(bare, times=lambda n: n)), "1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="readout must return a sequence"):
        counted(make(readout=prepare), "1")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0, 1, 3], "one end-of-question token"),
        ([0, 2, 2], "one end-of-question token"),
        ([2, 3], "looks like '1 0'"),
        ([0, 3, 2], "a question, `>` and any number of `#`"),
        ([0, 2, 1], "a question, `>` and any number of `#`"),
        ([0, 9, 2], "ids from 0 to 4"),
        ([0, -1, 2], "ids from 0 to 4"),
    ],
)
def test_a_bad_row_is_refused(row: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(make(), row)


def test_a_question_with_missing_parts_is_refused() -> None:
    addition = get("addition")
    for question in ("1 0", "1 + 0 + 1", "+ 1", "1 +"):
        with pytest.raises(InputError, match=r"looks like .1 0 . 1 1."):
            addition.row(question.split())
    with pytest.raises(InputError, match="too short"):
        addition.row(["1", "+", "1"], size=2)


def test_a_lambda_is_no_step() -> None:
    with pytest.raises(InputError, match="functions with a name"):
        make(Loop(lambda number: {"number": number}, times=lambda n: n))


def test_operations_that_change_between_iterations_are_refused_without_source() -> None:
    text = """
from looped.rasp import *
COUNT = [0]
def step(number):
    COUNT[0] += 1
    return {"number": number + COUNT[0]}
"""
    module = ModuleType("hidden")
    exec(compile(text, "<no file>", "exec"), module.__dict__)
    with pytest.raises(LegalityError, match="differed between two iterations") as refused:
        counted(make(Loop(module.step, times=lambda n: n)), "1 1")
    assert (refused.value.rule, refused.value.violation.line) == ("step-varies", 4)


def test_operations_that_change_between_lengths_are_refused_without_source() -> None:
    text = """
from looped.rasp import *
def step(number):
    return {"number": shift_right(number, number._data.shape[-1])}
"""
    module = ModuleType("hidden")
    exec(compile(text, "<no file>", "exec"), module.__dict__)
    program = make(Loop(module.step, times=lambda n: n))
    counted(program, "1 1")
    with pytest.raises(LegalityError, match="two lengths"):
        counted(program, "1 1 1")


def test_evaluate_checks_and_calls() -> None:
    assert evaluate(bare, [3, 1, 2]).tolist() == [3, 1, 2]
    with pytest.raises(InputError, match="prepare must return a sequence, not dict"):
        evaluate(prepare, [1])  # type: ignore[arg-type]


def injected(other: Seq, row: Seq) -> State:
    return {"other": where(row == 1, shift_right(other, 1) + 1, other)}


def read_other(other: Seq) -> Seq:
    return other


def test_the_row_is_there_at_every_step() -> None:
    program = make(Loop(injected, times=lambda n: n), readout=read_other)
    assert run(program, program.row(["1", "0", "1"])).tolist()[:3] == [1, 0, 1]


def test_programs_by_name() -> None:
    assert get("binary-sum") is PROGRAMS["binary_sum"]
    with pytest.raises(InputError, match="no program is named 'nothing'; there are parity, copy"):
        get("nothing")


def test_the_shipped_programs_are_legal() -> None:
    for program in PROGRAMS.values():
        assert check_program(program) == ()


def test_check_program_finds_faults() -> None:
    (fault,) = check_program(make(Loop(strange, times=lambda n: n)))
    assert fault.rule == "argument"
    assert "nobody" in fault.detail
