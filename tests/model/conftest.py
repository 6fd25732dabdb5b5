"""Models whose every weight is random: norms and biases too, so that none can be forgotten unseen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from looped.fast import StackedTransformer
from looped.model import ModelConfig

MakeModel = Callable[..., tuple[StackedTransformer, torch.Tensor]]


@pytest.fixture(scope="session")
def make_model() -> MakeModel:
    """`make_model(seeds=3, layers=1)`: a model and weights [S, P] in which nothing is 0 or 1."""

    def make(seeds: int = 2, **changes: object) -> tuple[StackedTransformer, torch.Tensor]:
        config = replace(ModelConfig(vocab=7, layers=2, heads=4, width=32), **changes)  # type: ignore[arg-type]
        model = StackedTransformer(config)
        generator = torch.Generator().manual_seed(11)
        flat = model.layout.initialise(list(range(seeds)))
        return model, flat + 0.15 * torch.randn(flat.shape, generator=generator)

    return make
