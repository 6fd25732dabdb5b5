"""`bench equal`: the fast paths give what the plain one gives.

The plain path is autograd, eager, fp32, one seed at a time. Beside it, on the same rows, run the fast paths: all seeds
stacked and, on CUDA, fused kernels inside a captured graph.

- *in step*, fp32: before every gradient step the fast path is given the plain path's weights and moments. Losses and
  gradient norms of the step must agree within `IN_STEP`; nothing but rounding can part them.
- *free*, fp32: each goes its own way from the same start. Training amplifies rounding: runs that differ in the last
  digit part as fast (*control*: the fast path from weights changed by 1e-7), so losses may go apart `FREE` times as far
  as the control's, measured in the same run. An absolute bound would measure the training, not the paths.
- *bf16*: how far the losses go apart is told, nothing is asked of it; what counts there is the accuracy after a short
  training in either precision.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks import Measured, Table, timing
from benchmarks.stages import METHOD, free, last_stage
from looped import devices, methods, tasks
from looped.errors import InputError
from looped.evaluation.measure import Subject
from looped.evaluation.measure import measure as accuracies
from looped.fast.engine import Engine
from looped.fast.stacked import StackedTransformer
from looped.training.config import TrainConfig

IN_STEP = 1e-4  # of a loss, anywhere in the compared steps
FREE = 2.0  # times what the control's losses go apart
LAST_DIGIT = 1e-7  # what the control's weights are changed by, in parts of themselves
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
    """Compare the losses of `steps` gradient steps, then accuracies after `train_steps` (0 leaves them out)."""
    if steps < 1 or train_steps < 0:
        raise InputError(
            f"steps must be at least 1 and train-steps at least 0, not {steps} and {train_steps}"
        )
    where = devices.pick(device)
    config = two_stages(last_stage(task, seeds, length=length, width=width, batch=batch), steps)
    losses, norm_apart = _side_by_side(config, where, steps)
    apart = {name: (losses[name] - losses["plain"]).abs() for name in ("in step", "free", "bf16")}
    apart["control"] = (losses["control"] - losses["free"]).abs()
    tolerance = {"in step": IN_STEP, "free": max(IN_STEP, FREE * float(apart["control"].max()))}
    found: Measured = {
        "task": task, "seeds": seeds, "length": config.max_length, "batch": config.batch, "steps": steps,
        "width": config.model.width, "device": devices.describe(where), "graphs": where.type == "cuda",
        "tolerance": tolerance,
        "largest_difference": {name: float(values.max()) for name, values in apart.items()},
        "largest_difference_first_half": {name: float(v[: (steps + 1) // 2].max()) for name, v in apart.items()},
        "largest_norm_difference": norm_apart,
        "loss": {name: [values[0].mean().item(), values[-1].mean().item()] for name, values in losses.items()},
    }  # fmt: skip
    found["within"] = all(
        found["largest_difference"][name] <= found["tolerance"][name] for name in ("in step", "free")
    )
    if train_steps:
        short = short_training(config, train_steps)
        found["accuracies"] = [
            row for name in timing.PRECISIONS for row in trained_accuracies(short, where, name, samples)
        ]
    return found


def table(measured: Measured) -> Table:
    """The largest differences, and the accuracies by precision and length."""
    rows: list[tuple[object, ...]] = []
    for name, value in measured["largest_difference"].items():
        allowed = measured["tolerance"].get(name)
        rows.append(
            (f"largest difference of losses, {name}", f"{value:.1e}", f"{allowed:.0e}" if allowed else "")
        )
    rows.append(
        ("largest difference of gradient norms, in step", f"{measured['largest_norm_difference']:.1e}", "")
    )
    for row in measured.get("accuracies", ()):
        exact = " ".join(f"{value:.4f}" for value in row["accuracy"])
        rows.append((f"exact at {row['length']}, trained in {row['precision']}", exact, ""))
    return (
        f"{measured['steps']} steps of {measured['seeds']} × {measured['task']}",
        "value",
        "allowed",
    ), list(rows)


# --- losses ------------------------------------------------------------------------------------------------


def two_stages(config: TrainConfig, steps: int) -> TrainConfig:
    """The curriculum's last two stages, half of the steps each, so that shapes change once; the paper's rates."""
    first = max(1, config.max_length - 1)
    return replace(
        config,
        start_length=first,
        interval=max(1, steps // 2),
        steps=max(steps, config.steps),
        lr=(1e-4,),
        warmup=0,
        betas=(0.9, 0.999),
    )


def _side_by_side(
    config: TrainConfig, device: torch.device, steps: int
) -> tuple[dict[str, Float[Tensor, "T S"]], float]:
    """The loss of every step and seed on every path, and how far gradient norms are apart in step, in parts."""
    alone = [
        Engine(replace(config, seeds=(seed,)), device, precision=torch.float32, graphs=False, fused=False)
        for seed in config.seeds
    ]
    fast = {
        name: Engine(config, device, precision=torch.bfloat16 if name == "bf16" else torch.float32)
        for name in ("in step", "free", "control", "bf16")
    }
    noise = torch.randn(fast["control"].weights.shape, generator=torch.Generator().manual_seed(0))
    fast["control"].weights *= 1 + LAST_DIGIT * noise.to(device)
    losses: dict[str, list[Tensor]] = {name: [] for name in ("plain", *fast)}
    norm_apart = 0.0
    for _ in range(steps):
        follow(fast["in step"], alone)
        plain = [engine.step() for engine in alone]
        losses["plain"].append(torch.cat([reading.loss for reading in plain]).clone())
        for name, engine in fast.items():
            reading = engine.step()
            losses[name].append(reading.loss.clone())
            if name == "in step":
                norm = torch.cat([other.norm for other in plain])
                norm_apart = max(norm_apart, float((reading.norm / norm - 1).abs().max()))
    return {name: torch.stack(values).double().cpu() for name, values in losses.items()}, norm_apart


def follow(engine: Engine, alone: list[Engine]) -> None:
    """Give a stacked engine the weights and moments of lone ones, in place, as a captured graph needs it."""
    engine.weights.copy_(torch.cat([other.weights for other in alone]))
    engine.moments.mean.copy_(torch.cat([other.moments.mean for other in alone]))
    engine.moments.square.copy_(torch.cat([other.moments.square for other in alone]))


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
        growth_clip=0.0,
        ema=0.0,  # an average over a thousand steps would be of the beginning
    )


def train_briefly(config: TrainConfig, device: torch.device, precision: str) -> Engine:
    """An engine at the end of its training."""
    engine = Engine(config, device, precision=timing.precision_of(precision, device))
    for _ in range(config.steps):
        engine.step()
    return engine


def subject_of(engine: Engine) -> Subject:
    """What evaluation measures: the engine's weights, in fp32."""
    config = engine.config
    model = StackedTransformer(config.model)  # the engine's own gathers gradients
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
