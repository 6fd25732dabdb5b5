"""How a sampled batch is held against the oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from looped.tasks import Problems, Task


def _rows(task: Task, rows: Tensor, lengths: Tensor) -> list[list[str]]:
    return [task.vocab.decode(row[:n]) for row, n in zip(rows.tolist(), lengths.tolist(), strict=True)]


@pytest.fixture
def agree() -> Callable[[Task, Problems, int], list[list[str]]]:
    """Asserts that every field of sampled problems is what the oracle says, padding included.

    Returns the questions, as token names.
    """

    def check(task: Task, problems: Problems, max_length: int) -> list[list[str]]:
        assert problems.question.shape == (len(problems.length), task.question_size(max_length))
        assert problems.answer.shape == (len(problems.length), task.answer_size(max_length))
        assert {getattr(problems, name).dtype for name in vars(problems)} == {torch.int64}
        questions = _rows(task, problems.question, problems.question_length)
        expected = task.problems(questions)
        for name in ("length", "steps", "question_length", "answer_length"):
            assert torch.equal(getattr(problems, name), getattr(expected, name)), name
        for name in ("question", "answer"):
            ours, theirs = getattr(problems, name), getattr(expected, name)
            width = min(ours.shape[1], theirs.shape[1])
            assert torch.equal(ours[:, :width], theirs[:, :width]), name
            assert bool((ours[:, width:] == task.vocab.eos).all()), name
        return questions

    return check
