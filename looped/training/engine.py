"""What the trainer asks of an engine. There are two: `training.plain` and `fast.engine`."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from looped.loops import Loops
from looped.methods import Method
from looped.model.seeds import SeedModel, SeedWeights
from looped.tasks.base import Task
from looped.training.config import TrainConfig
from looped.training.optimizer import Moments
from looped.training.progress import Readings


class TrainingEngine(Protocol):
    """Trains S seeds, a gradient step at a time; P numbers of a seed's trained weights lie in one row."""

    config: TrainConfig
    device: torch.device
    task: Task
    method: Method
    law: Loops
    weights: Tensor  # [S, P], changed in place
    moments: Moments
    generators: list[torch.Generator]
    done: int  # gradient steps taken

    def step(self) -> Readings:
        """Take one gradient step."""

    @property
    def evaluated_weights(self) -> Tensor:
        """[S, P] the weights that count: their average where the run keeps one and it has begun."""

    def evaluated(self) -> tuple[SeedModel, SeedWeights]:
        """The model with the weights that count, to be measured."""

    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """The weights that count of the i-th seed, as its checkpoint holds them."""

    def buffers(self) -> dict[str, Tensor]:
        """What else a checkpoint has to hold to go on: changed in place."""
