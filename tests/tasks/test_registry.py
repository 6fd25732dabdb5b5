"""The registry, and what the paper fixes for each task."""

from __future__ import annotations

import pytest
import torch

from looped import InputError
from looped.tasks import LONGEST, TASKS, Paper, get

# training max, layers, heads, interval, EMA, test length: the paper's table and figures
PAPER = {
    "parity": Paper(20, 1, 64, 500, 0.9999, 40),
    "copy": Paper(19, 2, 8, 1000, 0.0, 35),
    "addition": Paper(19, 3, 8, 1600, 0.0, 30),
    "binary_sum": Paper(19, 2, 16, 500, 0.9999, 24),
    "multiplication": Paper(11, 4, 8, 500, 0.0, 16),
    "unique_set": Paper(19, 3, 8, 1000, 0.0, 35, vocab=60, embedding=True),
}
# rows as the authors pad them, at n = 1, 7 and 20
ROW_SIZES = {
    "parity": (3, 9, 22),
    "copy": (6, 18, 44),
    "addition": (9, 27, 66),
    "binary_sum": (10, 16, 29),
    "multiplication": (12, 36, 88),
    "unique_set": (6, 18, 44),
}


def test_the_six_tasks_with_the_papers_settings() -> None:
    assert {name: task.paper for name, task in TASKS.items()} == PAPER
    assert all(task.name == name for name, task in TASKS.items())


def test_get_is_lenient_about_the_hyphen_and_names_the_tasks_otherwise() -> None:
    assert get("binary-sum") is get(" binary_sum ") is TASKS["binary_sum"]
    with pytest.raises(InputError, match=r"^unknown task 'sorting'; the tasks are parity, copy, addition"):
        get("sorting")
    with pytest.raises(InputError) as caught:
        get("x" * 10_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", TASKS)
def test_rows_are_padded_as_the_authors_do_and_always_hold_the_answer(name: str) -> None:
    task = TASKS[name]
    assert tuple(task.row_size(n) for n in (1, 7, 20)) == ROW_SIZES[name]
    for n in (*range(1, 300), 1023, 1024, LONGEST):
        assert task.row_size(n) >= task.question_size(n) + task.answer_size(n) + 1


@pytest.mark.parametrize("name", TASKS)
def test_lengths_have_bounds(name: str) -> None:
    task = TASKS[name]
    assert task.check_length(1) == 1
    assert task.check_length(LONGEST) == LONGEST
    for length in (0, -3, LONGEST + 1, 1_000_000):
        with pytest.raises(InputError, match=f"between 1 and {LONGEST}, not {length}"):
            task.check_length(length)


@pytest.mark.parametrize(
    ("name", "question", "steps"),
    [
        ("parity", "10110", 5),
        ("copy", "101", 3),
        ("addition", "1011+0110", 4),
        ("binary_sum", "1011", 4),
        ("multiplication", "1*110", 3),
        ("multiplication", "11*110", 6),
        ("unique_set", "1 4 2 2 4 3", 6),
    ],
)
def test_steps_of_a_question(name: str, question: str, steps: int) -> None:
    task = TASKS[name]
    assert task.steps_of(task.parse(question)) == steps


def test_steps_are_vectorised() -> None:
    lengths, variants = torch.tensor([3, 3, 11]), torch.tensor([0, 1, 1])
    assert TASKS["multiplication"].steps(lengths, variants).tolist() == [3, 6, 22]
    assert TASKS["addition"].steps(lengths, variants).tolist() == [3, 3, 11]
