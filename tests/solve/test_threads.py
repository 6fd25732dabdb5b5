"""Small products run on one thread, and the number of threads comes back."""

import pytest
import torch

from looped.model.config import ModelConfig
from looped.solve.solver import fitting_threads, map_batches


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("width", "tokens", "threads"), [(16, 1000, 1), (256, 4000, 2)])
def test_threads(two_threads: object, width: int, tokens: int, threads: int) -> None:
    with fitting_threads(ModelConfig(vocab=4, width=width), tokens):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 2


def test_threads_come_back_after_an_error(two_threads: object) -> None:
    with pytest.raises(ValueError, match="stop"), fitting_threads(ModelConfig(vocab=4, width=16), 1):
        raise ValueError("stop")
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("batches", [[], [3], list(range(20))])
def test_batches_side_by_side_keep_their_order(two_threads: object, batches: list[int]) -> None:
    seen = set()

    def action(number: int) -> int:
        seen.add(torch.get_num_threads())
        return number * number

    assert list(map_batches(action, batches, torch.device("cpu"))) == [n * n for n in batches]
    assert torch.get_num_threads() == 2
    assert seen == ({1} if len(batches) > 1 else {2} if batches else set())


def test_an_error_in_a_batch_is_raised_and_threads_come_back(two_threads: object) -> None:
    def action(number: int) -> int:
        raise ValueError(f"batch {number}")

    with pytest.raises(ValueError, match="batch 0"):
        list(map_batches(action, [0, 1, 2], torch.device("cpu")))
    assert torch.get_num_threads() == 2
