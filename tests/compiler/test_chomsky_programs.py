"""The programs of the Chomsky suite: equal to the oracles, in 2n steps at most, and exact as weights."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from equality import assert_equal

from looped import InputError, batches, solve
from looped.compiler.compiled import Compiled, compile_program
from looped.evaluation import decode, stopping
from looped.rasp.program import run
from looped.rasp.programs import CHOMSKY, get
from looped.tasks import Problems
from looped.tasks.suites.chomsky import TASKS

Question = list[str]
ONE_STEP = ("even_pairs", "binary_addition", "bucket_sort")
LONGEST_TRIED = {
    2: 8,
    3: 7,
    4: 6,
    5: 5,
    8: 5,
    9: 5,
    11: 5,
}  # symbols → length up to which all questions are tried


@cache
def compiled(name: str) -> Compiled:
    return compile_program(get(name))


def is_question(name: str, row: tuple[str, ...]) -> bool:
    try:
        TASKS[name].measure(list(row))
    except InputError:
        return False
    return True


@cache
def every(name: str, length: int) -> list[Question]:
    return [list(r) for r in product(TASKS[name].vocab.symbols, repeat=length) if is_question(name, r)]


def drawn(name: str, lengths: list[int], family: str = "uniform") -> Problems:
    generator = torch.Generator().manual_seed(len(lengths))
    return TASKS[name].sample(torch.tensor(lengths), generator, max_length=max(lengths), family=family)


def questions(name: str, problems: Problems) -> list[Question]:
    pairs = zip(problems.question.tolist(), problems.question_length.tolist(), strict=True)
    return [TASKS[name].vocab.decode(row[:n]) for row, n in pairs]


def assert_answers(name: str, asked: list[Question], extra: int = 0) -> None:
    """The interpreter's whole output row against the oracle, `#` included; questions of one length at once."""
    program, task = get(name), TASKS[name]
    for n in {len(question) for question in asked}:
        same = [question for question in asked if len(question) == n]
        rows = np.stack([program.row(question) for question in same])
        expected = np.full_like(rows[:, n:], program.vocab.eos)
        for i, question in enumerate(same):
            answer = program.vocab.encode(task.solve(question))
            expected[i, : len(answer)] = answer
        np.testing.assert_array_equal(run(program, rows, extra)[:, n:], expected)


def test_there_are_programs_for_all_but_the_square_root() -> None:
    assert {*CHOMSKY} == {*TASKS} - {"square_root"}
    for name, program in CHOMSKY.items():
        assert program.vocab == TASKS[name].vocab
        for n in (1, 2, 7, 40, 500):
            expected = 1 if name in ONE_STEP else 2 * n if name == "binary_multiplication" else n
            assert program.total((n,)) == expected


@pytest.mark.parametrize("name", CHOMSKY)
def test_programs_answer_every_short_question(name: str) -> None:
    for n in range(1, LONGEST_TRIED[len(TASKS[name].vocab.symbols)] + 1):
        if asked := every(name, n):
            assert_answers(name, asked)


@pytest.mark.parametrize("name", CHOMSKY)
def test_programs_answer_random_questions_and_keep_the_answer(name: str) -> None:
    for family in TASKS[name].families:
        asked = questions(name, drawn(name, [*range(1, 49, 3), 48, 48], family))
        assert_answers(name, asked)
        assert_answers(name, asked, extra=3)
    assert_answers(name, questions(name, drawn(name, [499, 500])))


@pytest.mark.parametrize("name", CHOMSKY)
def test_every_variable_of_the_weights_is_the_interpreters(name: str) -> None:
    for n in (1, 5, 11):
        rows = np.stack([get(name).row(question) for question in questions(name, drawn(name, [n] * 6))])
        assert_equal(get(name), compiled(name), rows)


@pytest.mark.parametrize("name", CHOMSKY)
def test_weights_answer_and_stop_themselves(name: str) -> None:
    """Every question of up to four tokens, random ones of 40 and of 100."""
    task, made = TASKS[name], compiled(name)
    short = [question for n in range(1, 5) for question in every(name, n)]
    for problems in (task.problems(short), drawn(name, [40] * 8), drawn(name, [100] * 2)):
        batch = batches.lay_out(problems, task.vocab, task.row_size(int(problems.length.max())))
        most = 2 * int(batch.steps.max()) + 2
        found = decode.run_adaptive(made.model, made.prepare(), batch, stopping.get("halt"), most)
        assert decode.exact(found, batch).all()


def test_a_compiled_program_by_name() -> None:
    answer = solve.load("reverse_string-compiled").solve("0111")
    assert (answer.answer, answer.correct) == ("1110", True)
    assert solve.load("bucket_sort-compiled").solve("421302214").correct
    with pytest.raises(InputError, match="no program is named 'square_root'"):
        solve.load("square_root-compiled")


def test_the_table_of_the_guide() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "chomsky.md").read_text(encoding="utf-8")
    lines = [
        line.strip("|").split("|")
        for line in guide.partition("## Programs")[2].partition("\n## ")[0].splitlines()
        if line[:3] == "| `"
    ]
    told = {cells[0].strip(" `"): [cell.strip().replace(",", "") for cell in cells[1:4]] for cells in lines}
    assert told.pop("square_root") == ["", "", ""]
    assert told.keys() == CHOMSKY.keys()
    for name, (steps, layers, parameters) in told.items():
        assert {"1": 1, "n": 10, "2n": 20}[steps] == CHOMSKY[name].total((10,))
        card = compiled(name).card
        assert (layers, parameters) == (str(card.layers), str(card.parameters))
