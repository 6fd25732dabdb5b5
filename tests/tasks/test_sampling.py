"""The vectorised samplers against the plain-Python oracles."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from looped.tasks import TASKS, Problems, Task
from looped.tasks.arithmetic import TwoNumbersTask

Agree = Callable[[Task, Problems, int], list[list[str]]]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(task: Task, lengths: Tensor, seed: int = 0, family: str = "uniform") -> Problems:
    g = generator(seed)
    variants = torch.randint(0, task.variants, lengths.shape, generator=g)
    return task.sample(lengths, g, max_length=int(lengths.max()), variants=variants, family=family)


def every(symbols: int, size: int) -> Tensor:
    return torch.tensor(list(product(range(symbols), repeat=size)))


@pytest.mark.parametrize("name", ["parity", "copy", "binary_sum"])
def test_every_bit_string_up_to_8(name: str, agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(1, 9):
        monkeypatch.setattr(TASKS[name], "draw", lambda *_, n=n: every(2, n))
        problems = TASKS[name].sample(torch.full((2**n,), n), generator(), max_length=n)
        assert len(set(map(tuple, agree(TASKS[name], problems, n)))) == 2**n


@pytest.mark.parametrize(("name", "variant"), [("addition", 0), ("multiplication", 0), ("multiplication", 1)])
def test_every_pair_of_numbers_up_to_8(
    name: str, variant: int, agree: Agree, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = TASKS[name]
    assert isinstance(task, TwoNumbersTask)
    for n in range(1, 9):
        x = n if name == "addition" else 2
        rows = every(2, x + n)
        if name == "multiplication" and variant == 0:
            rows = rows[rows[:, 1] == 0]  # the second digit of a one-digit factor is not read
        monkeypatch.setattr(task, "draw", lambda *_, rows=rows, x=x: (rows[:, :x], rows[:, x:]))
        lengths = torch.full((len(rows),), n)
        problems = task.sample(lengths, generator(), max_length=n, variants=torch.full_like(lengths, variant))
        assert len(set(map(tuple, agree(task, problems, n)))) == len(rows)


def test_every_row_of_four_symbols_up_to_6(agree: Agree, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(1, 7):
        monkeypatch.setattr(TASKS["unique_set"], "draw", lambda *_, n=n: every(4, n) * 16)
        problems = TASKS["unique_set"].sample(torch.full((4**n,), n), generator(), max_length=n)
        assert len(set(map(tuple, agree(TASKS["unique_set"], problems, n)))) == 4**n


@pytest.mark.parametrize("name", TASKS)
def test_lengths_to_64_mixed_in_one_batch(name: str, agree: Agree) -> None:
    lengths = torch.arange(1, 65).repeat_interleave(8)
    agree(TASKS[name], sample(TASKS[name], lengths), 64)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("length", [500, 2000])
def test_long_problems(name: str, length: int, agree: Agree) -> None:
    agree(TASKS[name], sample(TASKS[name], torch.full((8,), length)), length)
    agree(TASKS[name], sample(TASKS[name], torch.tensor([1, length, 63, 64, 65, length - 1])), length)


@pytest.mark.parametrize("name", TASKS)
def test_room_for_longer_problems_than_there_are(name: str, agree: Agree) -> None:
    problems = TASKS[name].sample(torch.tensor([1, 2, 5]), generator(), max_length=12)
    agree(TASKS[name], problems, 12)


@pytest.mark.parametrize("name", TASKS)
def test_the_generator_alone_decides(name: str) -> None:
    lengths = torch.randint(1, 41, (64,), generator=generator())
    torch.manual_seed(1)
    first = sample(TASKS[name], lengths, seed=7)
    torch.manual_seed(2)
    again, other = sample(TASKS[name], lengths, seed=7), sample(TASKS[name], lengths, seed=8)
    for field in vars(first):
        assert torch.equal(getattr(first, field), getattr(again, field)), field
    assert not torch.equal(first.question, other.question)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("max_length", [4, 9])
def test_every_symbol_is_equally_likely_whatever_the_padding(name: str, max_length: int) -> None:
    task, draws = TASKS[name], 40_000
    problems = task.sample(torch.full((draws,), 4), generator(3), max_length=max_length)
    symbols = [task.vocab.id(s) for s in task.vocab.symbols if s.isdigit()]
    for column in problems.question[:, : int(problems.question_length[0])].T:
        counts = torch.stack([(column == s).sum() for s in symbols]).double() / draws
        if counts.sum() == 0:  # the column of the sign
            continue
        expected = 1 / len(symbols)
        assert bool(((counts - expected).abs() < 5 * (expected / draws) ** 0.5).all())


def test_the_last_variant_is_the_default() -> None:
    problems = TASKS["multiplication"].sample(torch.full((20,), 3), generator(), max_length=3)
    assert problems.steps.tolist() == [6] * 20
    assert problems.question_length.tolist() == [6] * 20


@pytest.mark.parametrize("name", TASKS)
def test_nothing_is_asked_of_the_device(name: str) -> None:
    """With tensors that have shapes but no values, anything that depends on a value fails."""
    task = TASKS[name]
    with FakeTensorMode():
        for family in task.families:
            lengths = torch.full((16,), 5)
            problems = task.sample(lengths, torch.Generator(), max_length=9, family=family)
            assert problems.question.shape == (16, task.question_size(9))
