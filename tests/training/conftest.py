"""Tiny configurations that train in a second or two on one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import fast_reference
import pytest

from looped import methods, tasks
from looped.fast.folding import Folding
from looped.fast.fused import FusedLoop
from looped.model import ModelConfig
from looped.training.config import TrainConfig

MakeConfig = Callable[..., TrainConfig]


@pytest.fixture(autouse=True)
def _kernels_or_what_they_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs on CUDA alone runs on the CPU too, on what its kernels mean."""
    for user in (FusedLoop, Folding):
        monkeypatch.setattr(user, "ops", fast_reference.ByDevice())


@pytest.fixture(scope="session")
def tiny() -> MakeConfig:
    """`tiny("copy", "ntp", steps=50, model={"width": 32})`: a small configuration with anything changed."""

    def make(
        task_name: str = "copy",
        method_name: str = "fop-loop-adaptive",
        *,
        model: dict[str, object] | None = None,
        **changes: object,
    ) -> TrainConfig:
        task, method = tasks.get(task_name), methods.get(method_name)
        shape = ModelConfig(vocab=len(task.vocab), layers=1, heads=2, width=16, injection=method.injection)
        base = TrainConfig(
            task=task.name,
            method=method.name,
            recipe="tiny",
            model=replace(shape, **(model or {})),  # type: ignore[arg-type]
            seeds=(0, 1),
            max_length=4,
            steps=60,
            interval=10,
            lr=(1e-3,),
            batch=8,
            lengths="stratified",
        )
        return replace(base, **changes)  # type: ignore[arg-type]

    return make
