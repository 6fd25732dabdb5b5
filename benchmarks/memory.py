"""`bench memory`: what a loop step costs in memory, forward and back, and answering.

Training with activation checkpointing keeps one state a loop step and recomputes the rest, so a whole gradient step
(data, loss, gradient, update) of T and of 10·T loop steps should differ by the kept states and little else. Answering
keeps nothing of a step, so there the peak must not depend on T at all. Bytes are those of allocated tensors.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from benchmarks import Measured, Table, timing
from benchmarks.stages import free, last_stage
from looped import devices
from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation.decode import run_adaptive
from looped.evaluation.stopping import Threshold
from looped.fast.engine import Engine
from looped.fast.stacked import StackedTransformer
from looped.training.config import TrainConfig
from looped.training.curriculum import Plan, Stage

FEW = 10  # the smaller number of loop steps is a tenth of the larger
ALLOWED = 1.3  # peak beyond the kept states, many steps over few
NEVER = Threshold(1e-30)  # a rule that lets every row run to the last step


class FixedDepth(Engine):
    """An engine whose rows all run for the same number of loop steps, whatever their length."""

    def __init__(self, config: TrainConfig, device: torch.device, precision: torch.dtype, loops: int) -> None:
        super().__init__(config, device, precision=precision, graphs=False)
        self.loops = loops

    def stage(self, longest: int) -> Stage:
        """The task's stage, with a plan in which no row leaves before the end."""
        batch = self.config.batch
        plan = Plan((batch,) * self.loops, (batch,) * (self.loops - 1) + (0,))
        return replace(super().stage(longest), plan=plan)

    def draw(self, stage: Stage) -> tuple[Batch, Bool[Tensor, "S B"]]:
        """The task's rows, every T the same."""
        batch, longest = super().draw(stage)
        return replace(batch, steps=torch.full_like(batch.steps, self.loops)), longest


def measure(
    *,
    task: str = "copy",
    device: str = "auto",
    precision: str = "auto",
    steps: int = 200,
    length: int = 200,
    width: int | None = None,
    batch: int | None = None,
) -> Measured:
    """Peaks at `steps` loop steps and a tenth of them, problems of up to `length`."""
    if steps < FEW or steps % FEW:
        raise InputError(f"steps must be a multiple of {FEW}, not {steps}")
    where = devices.pick(device)
    dtype = timing.precision_of(precision, where)
    config = last_stage(task, 1, length=length, width=width, batch=batch)
    training = [
        _training(config, where, dtype, loops, checkpointing)
        for loops, checkpointing in ((steps // FEW, False), (steps // FEW, True), (steps, True))
    ]
    few, many = (row["beyond_states_bytes"] for row in training[1:])
    answering = [_answering(config, where, loops) for loops in (steps // 8, steps)]
    return {
        "task": task, "length": length, "batch": config.batch, "width": config.model.width,
        "device": devices.describe(where), "precision": timing.precision_name(dtype), "training": training,
        "ratio": many / few, "allowed": ALLOWED, "within": many <= ALLOWED * few,
        "answering": answering,
        "answering_ratio": answering[1]["peak_bytes"] / answering[0]["peak_bytes"],
    }  # fmt: skip


def table(measured: Measured) -> Table:
    """One row a measurement."""
    columns = ("what", "loop steps", "peak MB", "kept states MB", "beyond them MB")
    rows: list[tuple[object, ...]] = [
        (
            "training, recomputing" if row["checkpointing"] else "training, keeping all",
            row["loops"],
            *(round(row[key] / 1e6, 1) for key in ("peak_bytes", "states_bytes", "beyond_states_bytes")),
        )
        for row in measured["training"]
    ]
    rows += [
        ("answering", row["loops"], round(row["peak_bytes"] / 1e6, 1), 0.0, round(row["peak_bytes"] / 1e6, 1))
        for row in measured["answering"]
    ]
    return columns, list(rows)


def _training(
    config: TrainConfig, device: torch.device, precision: torch.dtype, loops: int, checkpointing: bool
) -> Measured:
    """The peak of a gradient step: weights, moments and all."""
    free(device)
    config = replace(config, checkpointing=checkpointing)

    def once() -> Engine:
        engine = FixedDepth(config, device, precision, loops)
        engine.step()
        return engine

    engine, peak = timing.peak_bytes(once, device)
    positions = sum(engine.stage(config.max_length).computed)
    states = loops * positions * config.model.width * torch.float32.itemsize
    return {
        "loops": loops,
        "checkpointing": checkpointing,
        "peak_bytes": peak,
        "states_bytes": states,
        "beyond_states_bytes": peak - states,
    }


def _answering(config: TrainConfig, device: torch.device, loops: int) -> Measured:
    """The peak of answering a batch, every row to the last step."""
    free(device)
    engine = Engine(config, device, graphs=False)
    drawn, _ = engine.draw(engine.stage(config.max_length))
    batch = Batch(drawn.tokens[0], drawn.targets[0], drawn.loss_mask[0], drawn.steps[0])
    model = StackedTransformer(config.model)
    with torch.no_grad():
        weights = model.prepare(engine.weights)
    _, peak = timing.peak_bytes(lambda: run_adaptive(model, weights, batch, NEVER, loops), device)
    return {"loops": loops, "peak_bytes": peak}
