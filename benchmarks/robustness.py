"""`bench survive`: does a compiled program stay right after noise on its weights, and after training?

The task's program is compiled into weights, each weight is multiplied by 1 + noise·ε, and the model is trained for a
moment on all lengths up to `length`, with the rate held. Exact answers are counted before and after, at that length, at
twice and at five times it; every seed has its own noise, its own problems, and the same exam. Three ways to train:

    all weights, 1e-6 and 1e-4     AdamW on everything; it moves a weight by its rate however small the gradient
    its own weights, 1e-4          only what the program wrote: what was 0 stays 0
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import torch

from benchmarks import Measured, Table
from benchmarks.equal import subject_of
from looped import devices
from looped.errors import InputError
from looped.evaluation.measure import measure as accuracies
from looped.fast.engine import Engine
from looped.training.config import TrainConfig
from looped.training.recipes import from_program, make

NOISES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
WAYS = {"all weights, 1e-6": (1e-6, False), "all weights, 1e-4": (1e-4, False), "its own, 1e-4": (1e-4, True)}
FURTHER = (1, 2, 5)  # lengths of the exam, in training lengths
UNTRAINED = "not trained"


def measure(
    *,
    task: str = "parity",
    seeds: int = 4,
    device: str = "cpu",
    train_steps: int = 100,
    samples: int = 128,
    length: int = 10,
    batch: int = 32,
) -> Measured:
    """Accuracies for every noise and way to train, seeds taken together."""
    if min(seeds, train_steps, samples, length, batch) < 1:
        raise InputError("seeds, train-steps, samples, length and batch must be at least 1")
    where = devices.pick(device)
    lengths = [length * times for times in FURTHER]
    rows: list[Measured] = []
    for noise in NOISES:
        shaken = _config(task, seeds, length, batch, train_steps, noise)
        engine = Engine(shaken, where)
        rows.append({"noise": noise, "way": UNTRAINED, **_exam(engine, lengths, samples)})
        for way, (rate, keep_zeros) in WAYS.items():
            engine = Engine(replace(shaken, lr=(rate,), keep_zeros=keep_zeros), where)
            losses = [engine.step().loss for _ in range(train_steps)]
            rows.append({"noise": noise, "way": way, **_exam(engine, lengths, samples), **_told(losses)})
    return {
        "task": task, "seeds": seeds, "train_steps": train_steps, "batch": batch, "samples": samples,
        "lengths": lengths, "rows": rows,
    }  # fmt: skip


def _config(task: str, seeds: int, length: int, batch: int, steps: int, noise: float) -> TrainConfig:
    """All lengths from the start, a rate that does not change, and the weights themselves, not an average of them."""
    plain = make(task, "fop-loop-adaptive", "fast", tuple(range(seeds)))
    config = from_program(plain, f"compiled:{noise:g}")
    return replace(
        config,
        max_length=length,
        start_length=length,
        interval=steps,
        steps=steps,
        batch=batch,
        warmup=0,
        ema=0.0,
    )


def _exam(engine: Engine, lengths: list[int], samples: int) -> Measured:
    subject = replace(subject_of(engine), loops=engine.law)
    rows = accuracies(subject, lengths, samples, seed=0, stops=("oracle",))
    right = [fmean(row.accuracy for row in rows if row.length == length) for length in lengths]
    return {"accuracy": [round(share, 4) for share in right]}


def _told(losses: list[torch.Tensor]) -> Measured:
    """Loss at the first and at the last gradient step, seeds together; a number too large for JSON is left out."""
    first, last = (float(loss.mean()) for loss in (losses[0], losses[-1]))
    return {"loss": [value if value < float("inf") else None for value in (first, last)]}


def table(measured: Measured) -> Table:
    """A row a noise; at each way, exact answers at the three lengths."""
    ways = (UNTRAINED, *WAYS)
    lines: list[list[object]] = []
    for noise in dict.fromkeys(row["noise"] for row in measured["rows"]):
        found = {row["way"]: row["accuracy"] for row in measured["rows"] if row["noise"] == noise}
        lines.append([f"{noise:g}", *(" ".join(f"{share:.2f}" for share in found[way]) for way in ways)])
    return ("noise", *ways), list(lines)
