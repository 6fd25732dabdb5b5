"""The oracles on rows of the paper and on cases a person can check."""

from __future__ import annotations

import pytest

from looped import InputError
from looped.batches import lay_out
from looped.tasks import TASKS

# task, input row, output row: the paper's own examples. Its addition and multiplication outputs are printed
# one token longer than the inputs, the latter with a sixth digit against the text; here they are equal.
GOLDEN = [
    ("parity", "0 0 0 1 1 > # #", "* * * * * 0 # #"),
    ("copy", "1 0 1 > # # # #", "* * * 1 0 1 # #"),
    ("addition", "1 0 + 1 1 > # # # #", "* * * * * 1 0 1 # #"),
    ("binary_sum", "1 0 1 1 > # # # #", "* * * * 1 1 # # #"),
    ("multiplication", "1 1 × 1 1 0 > # # # # # #", "* * * * * * 0 1 0 0 1 # #"),
    ("unique_set", "1 4 2 2 4 3 > # # # # #", "* * * * * * 1 4 2 3 # #"),
]

ANSWERS = [
    ("parity", "0", "0"),
    ("parity", "1", "1"),
    ("parity", "1101", "1"),
    ("copy", "0", "0"),
    ("copy", "0110", "0110"),
    ("addition", "1+1", "10"),
    ("addition", "0+0", "00"),
    ("addition", "0111+0001", "01000"),
    ("addition", "1111+1111", "11110"),
    ("binary_sum", "0000", ""),
    ("binary_sum", "0001", "1"),
    ("binary_sum", "1111", "001"),
    ("binary_sum", "1111111", "111"),
    ("multiplication", "0*1", "00"),
    ("multiplication", "1*1", "10"),
    ("multiplication", "10*11", "0110"),
    ("multiplication", "11*11", "1001"),
    ("multiplication", "01*10", "0100"),
    ("unique_set", "7", "7"),
    ("unique_set", "49 0 49 0 12", "49 0 12"),
]


@pytest.mark.parametrize(("name", "tokens", "targets"), GOLDEN)
def test_rows_of_the_paper(name: str, tokens: str, targets: str) -> None:
    task = TASKS[name]
    question = tokens.split(" > ")[0].split()
    assert len(tokens.split()) == len(targets.split())
    batch = lay_out(task.problems([question]), task.vocab, len(tokens.split()))
    assert task.vocab.row(batch.tokens[0].tolist()) == tokens
    assert task.vocab.row(batch.targets[0].tolist(), batch.loss_mask[0].tolist()) == targets


@pytest.mark.parametrize(("name", "question", "answer"), ANSWERS)
def test_answers_checked_by_hand(name: str, question: str, answer: str) -> None:
    task = TASKS[name]
    assert task.format_answer(task.solve(task.parse(question))) == answer


@pytest.mark.parametrize("name", TASKS)
def test_the_example_is_a_question(name: str) -> None:
    task = TASKS[name]
    question = task.parse(task.example)
    assert task.format_question(question) == task.example
    assert task.vocab.decode(task.vocab.encode(task.solve(question))) == task.solve(question)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("question", [[], ["2", "a"], [">"], ["#"], ["10"], ["+"], ["", ""], ["1", "+", "×"]])
def test_malformed_token_lists_are_refused(name: str, question: list[str]) -> None:
    if name == "unique_set" and question == ["10"]:
        question = ["50"]
    with pytest.raises(InputError):
        TASKS[name].solve(question)
    with pytest.raises(InputError):
        TASKS[name].problems([question])
