"""Small untrained models whose answers keep moving from step to step: large weights, two seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from looped import batches, methods, tasks
from looped.batches import Batch
from looped.evaluation.measure import Subject
from looped.fast import StackedTransformer
from looped.model import ModelConfig

MakeSubject = Callable[..., Subject]


@pytest.fixture(scope="session")
def subject() -> MakeSubject:
    """`subject("copy", "ntp-loop", bands=(2,))`: an untrained model of two seeds for a task and a method."""

    def make(task_name: str = "copy", method_name: str = "fop-loop-adaptive", **changes: object) -> Subject:
        task, method = tasks.get(task_name), methods.get(method_name)
        lively = {"init_std": 0.4, "embedding_std": 1.0}  # untrained answers must differ to tell anything
        base = ModelConfig(
            vocab=len(task.vocab), layers=2, heads=4, width=32, injection=method.injection, **lively
        )
        model = StackedTransformer(replace(base, **changes))  # type: ignore[arg-type]
        weights = model.prepare(model.layout.initialise([3, 4]))
        return Subject(task, method, model, weights, (3, 4), trained_max_length=5, recipe="quick")

    return make


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """`at_once(3)`: three rows at a time go through the loop, whatever fits the memory bound."""

    def bound(rows: int) -> None:
        monkeypatch.setattr("looped.evaluation.rollout.rows_at_once", lambda *_: rows)

    return bound


@pytest.fixture(scope="session")
def batch_for() -> Callable[[Subject, list[int]], Batch]:
    """A batch of problems of the given lengths, laid out for a subject's method."""

    def make(subject: Subject, lengths: list[int]) -> Batch:
        task, method = subject.task, subject.method
        longest = max(lengths)
        generator = torch.Generator().manual_seed(7)
        problems = task.sample(torch.tensor(lengths), generator, max_length=longest)
        size = task.row_size(longest)
        batch = batches.lay_out(problems, task.vocab, size, method.prediction, method.pause)
        return replace(batch, steps=method.steps(task, problems.steps, subject.trained_max_length))

    return make
