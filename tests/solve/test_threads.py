"""Small products run on one thread, and the number of threads comes back."""

import pytest
import torch

from looped.model.config import ModelConfig
from looped.solve.threads import fitting_threads


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
