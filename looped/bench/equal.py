"""`bench equal`: the fast paths give what the plain one gives.

The plain path is autograd, eager, fp32, one seed at a time. Against it, over the same gradient steps on the same rows:

- all seeds stacked, on CUDA with fused kernels inside a captured graph, in fp32: losses agree within `TOLERANCE`;
- the same in bf16: how far the losses drift is told, nothing is asked of it; what counts there is the accuracy
  after a short training in either precision.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from looped import devices, methods, tasks
from looped.bench import Measured, Table, gauge
from looped.bench.stages import METHOD, free, last_stage
from looped.errors import InputError
from looped.evaluation.measure import Subject
from looped.evaluation.measure import measure as accuracies
from looped.model.loop import LoopedTransformer
from looped.training.config import TrainConfig
from looped.training.engine import Engine

TOLERANCE = 2e-3  # of a loss, anywhere in the compared steps
BAND = 2  # positions each head of the short training sees


def measure(
    *,
    task: str = "copy",
    seeds: int = 2,
    device: str = "auto",
    steps: int = 200,
    train_steps: int = 600,
    samples: int = 1024,
    length: int | None = None,
    width: int | None = None,
    batch: int | None = None,
) -> Measured:
    """Compares the losses of `steps` gradient steps, then accuracies after `train_steps` (0 leaves them out)."""
    if steps < 1 or train_steps < 0:
        raise InputError(
            f"steps must be at least 1 and train-steps at least 0, not {steps} and {train_steps}"
        )
    where = devices.pick(device)
    config = two_stages(last_stage(task, seeds, length=length, width=width, batch=batch), steps)
    plain, plain_seconds = _one_by_one(config, where, steps)
    stacked, stacked_seconds = _losses(Engine(config, where, precision=torch.float32), steps)
    narrow, _ = _losses(Engine(config, where, precision=torch.bfloat16), steps)
    apart = (stacked - plain).abs()
    found: Measured = {
        "task": task, "seeds": seeds, "length": config.max_length, "batch": config.batch, "steps": steps,
        "width": config.model.width, "device": devices.describe(where), "graphs": where.type == "cuda",
        "tolerance": TOLERANCE,
        "largest_difference": float(apart.max()),
        "largest_difference_first_10": float(apart[:10].max()),
        "largest_difference_bf16": float((narrow - plain).abs().max()),
        "within": bool(apart.max() <= TOLERANCE),
        "loss_first": plain[0].tolist(), "loss_last": plain[-1].tolist(),
        "loss_last_stacked": stacked[-1].tolist(), "loss_last_bf16": narrow[-1].tolist(),
        "plain_seconds": plain_seconds, "stacked_seconds": stacked_seconds,
        "speedup": plain_seconds / stacked_seconds,
    }  # fmt: skip
    if train_steps:
        short = short_training(config, train_steps)
        found["accuracies"] = [
            row for name in gauge.PRECISIONS for row in trained_accuracies(short, where, name, samples)
        ]
    return found


def table(measured: Measured) -> Table:
    """The largest differences, and the accuracies by precision and length."""
    rows: list[tuple[object, ...]] = [
        ("largest loss difference, fp32", f"{measured['largest_difference']:.1e}"),
        ("  in the first ten steps", f"{measured['largest_difference_first_10']:.1e}"),
        ("  allowed", f"{measured['tolerance']:.1e}"),
        ("largest loss difference, bf16", f"{measured['largest_difference_bf16']:.1e}"),
    ]
    for row in measured.get("accuracies", ()):
        exact = " ".join(f"{value:.4f}" for value in row["accuracy"])
        rows.append((f"exact at {row['length']}, trained in {row['precision']}", exact))
    return (f"{measured['steps']} steps of {measured['seeds']} × {measured['task']}", "value"), list(rows)


# --- losses ------------------------------------------------------------------------------------------------


def two_stages(config: TrainConfig, steps: int) -> TrainConfig:
    """The same with the curriculum's last two stages, half of the steps each, so that a change of shapes is seen."""
    first = max(1, config.max_length - 1)
    return replace(config, start_length=first, interval=max(1, steps // 2), steps=max(steps, config.steps))


def _losses(engine: Engine, steps: int) -> tuple[Tensor, float]:
    """The loss of every step and seed, and the seconds of all."""
    start = time.perf_counter()
    losses = torch.stack([engine.step().loss.clone() for _ in range(steps)]).double().cpu()
    return losses, time.perf_counter() - start


def _one_by_one(config: TrainConfig, device: torch.device, steps: int) -> tuple[Tensor, float]:
    """The same the plain way."""
    columns, total = [], 0.0
    for seed in config.seeds:
        alone = replace(config, seeds=(seed,))
        engine = Engine(alone, device, precision=torch.float32, graphs=False, fused=False)
        column, seconds = _losses(engine, steps)
        columns.append(column)
        total += seconds
    return torch.cat(columns, dim=1), total


# --- accuracies --------------------------------------------------------------------------------------------


def short_training(config: TrainConfig, steps: int) -> TrainConfig:
    """A training that gets somewhere in a few hundred steps: banded heads, short problems, a steep rate."""
    longest = min(10, config.max_length)
    return replace(
        config,
        model=replace(config.model, bands=(BAND,) * config.model.heads),
        start_length=max(1, longest // 2),
        max_length=longest,
        steps=steps,
        interval=max(1, steps // longest),
        lr=(5e-4,),
        warmup=min(50, steps // 4),
    )


def train_briefly(config: TrainConfig, device: torch.device, precision: str) -> Engine:
    """An engine at the end of its training."""
    engine = Engine(config, device, precision=gauge.precision_of(precision, device))
    for _ in range(config.steps):
        engine.step()
    return engine


def subject_of(engine: Engine) -> Subject:
    """What evaluation measures: the engine's weights, in fp32."""
    config = engine.config
    model = LoopedTransformer(config.model)  # the engine's own gathers gradients
    with torch.no_grad():
        weights = model.prepare(engine.evaluated_weights)
    task, method = tasks.get(config.task), methods.get(METHOD)
    return Subject(task, method, model, weights, config.seeds, config.max_length, config.recipe)


def trained_accuracies(
    config: TrainConfig, device: torch.device, precision: str, samples: int
) -> list[Measured]:
    """Exact answers of every seed at the training length and at twice that."""
    free(device)
    subject = subject_of(train_briefly(config, device, precision))
    lengths = [config.max_length, 2 * config.max_length]
    rows = accuracies(subject, lengths, samples, seed=0)
    return [
        {
            "precision": precision, "length": length, "samples": samples, "steps": config.steps,
            "accuracy": [row.accuracy for row in rows if row.length == length],
        }
        for length in lengths
    ]  # fmt: skip
