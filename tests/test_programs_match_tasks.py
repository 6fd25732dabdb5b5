"""The bridge: every program gives its task's whole output row, after exactly the stated number of steps."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from looped.rasp.program import Program, run
from looped.rasp.programs import PROGRAMS, get
from looped.tasks import TASKS

Question = list[str]

# The steps that each program states, by the sizes of the question's parts.
STEPS: dict[str, Callable[..., tuple[int, ...]]] = {
    "parity": lambda n: (n,),
    "copy": lambda n: (n,),
    "addition": lambda n, m: (n + 1,),
    "binary_sum": lambda n: (n,),
    "multiplication": lambda n1, n2: (n1 * n2,),
    "unique_set": lambda n: (n,),
    "long_multiplication": lambda n1, n2: (n2, n1, n1 + n2),
}


def solve(name: str, question: Question) -> list[str]:
    if name in TASKS:
        return TASKS[name].solve(question)
    at = question.index("×")
    first, second = int("".join(question[:at]), 2), int("".join(question[at + 1 :]), 2)
    return list(f"{first * second:0{len(question) - 1}b}"[::-1])


def assert_rows(name: str, questions: Sequence[Question], room: int = 2) -> None:
    """All questions (of one length) in one run; the output from the end-of-question mark on, `#` included."""
    program = get(name)
    rows = _rows(program, questions, room)
    start = len(questions[0])
    answers = np.full((len(questions), rows.shape[1] - start), program.vocab.eos)
    for i, question in enumerate(questions):
        answer = program.vocab.encode(solve(name, question))
        answers[i, : len(answer)] = answer
    sizes = program.sizes(rows[0].tolist())
    assert program.steps(sizes) == STEPS[name](*sizes)
    np.testing.assert_array_equal(run(program, rows)[:, start:], answers)


def _rows(program: Program, questions: Sequence[Question], room: int) -> np.ndarray:
    ids = {symbol: program.vocab.id(symbol) for symbol in program.vocab.symbols}
    size = len(program.row(questions[0])) + room
    rows = np.full((len(questions), size), program.vocab.eos)
    rows[:, : len(questions[0])] = [[ids[symbol] for symbol in question] for question in questions]
    rows[:, len(questions[0])] = program.vocab.eoq
    return rows


def bits(n: int) -> list[Question]:
    return [list(row) for row in itertools.product("01", repeat=n)]


def pairs(sign: str, n: int, m: int) -> list[Question]:
    return [[*x, sign, *y] for x in bits(n) for y in bits(m)]


def draw(name: str, n: int, generator: random.Random) -> Question:
    """A random question of length n, of the longest kind."""

    def number(digits: int) -> Question:
        return generator.choices("01", k=digits)

    if name == "addition":
        return [*number(n), "+", *number(n)]
    if name == "multiplication":
        return [*number(2), "×", *number(n)]
    if name == "long_multiplication":
        return [*number(n), "×", *number(n)]
    if name == "unique_set":
        return generator.choices(get(name).vocab.symbols, k=n)
    return number(n)


def test_every_task_has_a_program_with_its_vocabulary() -> None:
    for name, task in TASKS.items():
        assert PROGRAMS[name].vocab == task.vocab
        assert PROGRAMS[name].row(task.parse(task.example)).size > 0


@pytest.mark.parametrize("n", range(1, 9))
def test_every_input_of_the_bit_tasks(n: int) -> None:
    for name in ("parity", "copy", "binary_sum"):
        assert_rows(name, bits(n))


@pytest.mark.parametrize("n", range(1, 9))
def test_every_addition(n: int) -> None:
    assert_rows("addition", pairs("+", n, n))


@pytest.mark.parametrize("n", range(1, 9))
def test_every_multiplication(n: int) -> None:
    assert_rows("multiplication", pairs("×", 1, n))
    assert_rows("multiplication", pairs("×", 2, n))


@pytest.mark.parametrize("n", range(1, 6))
def test_every_long_multiplication(n: int) -> None:
    for m in range(1, 6):
        assert_rows("long_multiplication", pairs("×", n, m))


@pytest.mark.parametrize("n", range(1, 7))
def test_every_unique_set_of_four_symbols(n: int) -> None:
    assert_rows("unique_set", [list(row) for row in itertools.product(["0", "1", "7", "49"], repeat=n)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_random_inputs_of_every_length(name: str) -> None:
    generator = random.Random(1)
    for n in range(1, 65):
        assert_rows(name, [draw(name, n, generator) for _ in range(6)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_long_inputs(name: str) -> None:
    generator = random.Random(2)
    assert_rows(name, [draw(name, 500, generator) for _ in range(3)])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_shortest_row_has_room_for_the_answer(name: str) -> None:
    generator = random.Random(3)
    assert_rows(name, [draw(name, 7, generator) for _ in range(20)], room=0)


@pytest.mark.parametrize(
    ("name", "question", "least"),
    [
        ("parity", "1 0 1 1 1", 5),
        ("copy", "1 0 1", 3),
        ("addition", "0 1 1 + 0 0 1", 4),
        ("unique_set", "1 4 2", 3),
    ],
)
def test_fewer_steps_are_not_enough(name: str, question: str, least: int) -> None:
    """The stated number is not a generous one: one step less leaves these questions unsolved."""
    program = get(name)
    row = program.row(question.split())
    assert program.total(program.sizes(row.tolist())) == least
    right = run(program, row)
    assert (run(program, row, extra=-1) != right)[len(question.split()) :].any()
