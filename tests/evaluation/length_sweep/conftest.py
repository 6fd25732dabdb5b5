"""Models whose ladder is known: programs compiled into weights, and untrained ones whose answers keep moving.

Compiled copy is right from T on and stays so. Compiled addition is right from T + 1 on. Compiled parity is right from
T on, but a row of zeros leaves its answer standing before, so that `converged` stops too early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped import methods, tasks
from looped.compiler.compiled import compile_program
from looped.evaluation.measure import Subject
from looped.fast import StackedTransformer
from looped.model import ModelConfig
from looped.rasp import programs
from looped.runs import Run
from looped.training.recipes import make


@pytest.fixture(scope="session")
def exact() -> Callable[[str], Subject]:
    """`exact("copy")`: a compiled program as one seed of a model trained to length 4."""

    def subject(task: str) -> Subject:
        compiled = compile_program(programs.get(task), longest=64)
        method = methods.get("fop-loop-adaptive")
        return Subject(tasks.get(task), method, compiled.model, compiled.prepare(), (0,), 4, "compiled")

    return subject


@pytest.fixture(scope="session")
def parity() -> Subject:
    """Compiled parity, and beside it a second seed that is never right."""
    compiled = compile_program(programs.get("parity"), longest=64)
    weights = compiled.model.prepare(torch.stack([compiled.row, 0 * compiled.row]))
    method = methods.get("fop-loop-adaptive")
    return Subject(tasks.get("parity"), method, compiled.model, weights, (0, 1), 4, "compiled")


@pytest.fixture(scope="session")
def moving() -> Callable[..., Subject]:
    """`moving("copy", "ntp")`: two untrained seeds with large weights."""

    def subject(task_name: str = "copy", method_name: str = "fop-loop-adaptive") -> Subject:
        task, method = tasks.get(task_name), methods.get(method_name)
        config = ModelConfig(len(task.vocab), heads=4, width=32, init_std=0.4, embedding_std=1.0)
        model = StackedTransformer(config)
        return Subject(
            task, method, model, model.prepare(model.layout.initialise([3, 4])), (3, 4), 5, "quick"
        )

    return subject


@pytest.fixture(scope="session")
def save_run() -> Callable[..., Path]:
    """`save_run(folder, seeds=(0, 1), broken=(1,))`: a run of compiled copy; a broken seed is never right."""

    def save(
        folder: Path, seeds: tuple[int, ...] = (0, 1), broken: tuple[int, ...] = (), lr: float = 1e-4
    ) -> Path:
        compiled = compile_program(programs.get("copy"), longest=64)
        config = make("copy", "fop-loop-adaptive", "quick", seeds)
        config = replace(config, model=replace(compiled.config, precision="float32"), max_length=4, lr=(lr,))
        with Run(folder, config) as run:
            for seed in seeds:
                row = compiled.row.float()
                run.save_seed(seed, row * 0 if seed in broken else row, step=7)
        return folder

    return save
