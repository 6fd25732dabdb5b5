"""A run's folder as the processes see it that leave all reading and writing to another (`world.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from torch import Tensor

from looped.checkpoints import Check, Metadata, Verify
from looped.runs import Run
from looped.training.config import TrainConfig


class NoOpRun(Run):
    """Takes what a run is given to keep, and keeps nothing."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""

    def log(self, rows: Sequence[Mapping[str, object]]) -> None:
        """The leader does."""

    def rewind(self, step: int) -> list[str]:
        """The leader does."""
        return []

    def load_state(
        self, check: Check, verify: Verify = lambda tensors: None
    ) -> tuple[tuple[Metadata, dict[str, Tensor]] | None, list[str]]:
        """Never asked: see `World.from_leader`."""
        raise AssertionError("the leader reads the state")

    def save_state(self, tensors: Mapping[str, Tensor], metadata: Metadata) -> Path:
        """The leader does."""
        return self.folder

    def save_seed(self, seed: int, weights: Tensor | Mapping[str, Tensor], step: int) -> Path:
        """The leader does."""
        return self.folder
