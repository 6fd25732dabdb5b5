"""`bench infer`: answers per second with and without early exit, and what an answer costs as problems grow.

Early exit is measured with a model trained for a moment, on problems of all lengths up to twice its training length
in one batch: without it every row runs for 2·T of the longest, with it a row leaves when its rule says so. Cost
against length is measured with fresh weights, since weights do not matter there: the time of one loop step of one
row, for heads that see everything and for heads with a band, and the exponent of a power law fitted to the longer half.
Where a narrow block runs a whole layer in one kernel (`fast/kernels/attention.py`), that is timed against the same
layer in parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks import Measured, Table, timing
from benchmarks.equal import BAND, short_training, subject_of, train_briefly
from benchmarks.stages import free, last_stage
from looped import batches, devices, runs, tasks
from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import decode, loading, stopping
from looped.evaluation.measure import Subject
from looped.evaluation.rollout import unroll_grid
from looped.fast import kernels, layer_ops
from looped.fast.stacked import Prepared, StackedTransformer
from looped.methods import largest_steps
from looped.model.config import ModelConfig
from looped.training.recipes import make

RULES = ("oracle", "threshold", "converged", "confidence")
SHORTEST = 16  # of the lengths whose cost is measured; each is twice the one before
AT_ONCE = {"cuda": 1 << 17, "cpu": 1 << 11}  # tokens a loop step is timed on: enough to keep the device busy
ROUNDS = 3
TIMED = 4  # loop steps a reading


def measure(
    *,
    task: str = "copy",
    device: str = "auto",
    train_steps: int = 600,
    samples: int = 2048,
    model: str | None = None,
    length: int = 4096,
    width: int | None = None,
    batch: int | None = None,
) -> Measured:
    """Answer `samples` problems each way, and time loop steps at lengths up to `length`."""
    if train_steps < 1 or samples < 1:
        raise InputError(f"train-steps and samples must be at least 1, not {train_steps} and {samples}")
    if length < 2 * SHORTEST:
        raise InputError(f"the longest length must be at least {2 * SHORTEST} to fit a curve, not {length}")
    where = devices.pick(device)
    tasks.get(task).check_length(length)
    config = last_stage(task, 1, width=width, batch=batch)
    if model is None:
        subject = subject_of(train_briefly(short_training(config, train_steps), where, "auto"))
        free(where)
    else:
        trained = runs.load_seed(Path(model))
        subject = loading.stack(Path(model), [trained], where).subject
        if subject.task != tasks.get(task):
            raise InputError(f"{model} was trained on {subject.task.name}, not on {task}")
        subject = replace(subject, recipe=f"{subject.recipe}, seed {trained.seed}")
    exits = early_exit(subject, samples, where)
    growth = [row for banded in (False, True) for row in cost(config.model, task, length, banded, where)]
    by_rule = {row["stop"]: row for row in exits}
    return {
        "task": task, "width": config.model.width, "device": devices.describe(where), "precision": "fp32",
        "model": subject.recipe, "train_steps": None if model else train_steps, "samples": samples,
        "exits": exits, "lengths": growth,
        "exponents": {
            heads: exponent([(row["row_size"], row["ms"]) for row in growth if row["heads"] == heads])
            for heads in ("global", "banded")
        },
        "speedup": by_rule["none"]["seconds"] / by_rule["oracle"]["seconds"],
        "narrow": narrow(task, length, where),
    }  # fmt: skip


def table(measured: Measured) -> Table:
    """The rules, then the lengths."""
    rows: list[tuple[object, ...]] = [
        (f"stop: {row['stop']}", f"{row['mean_steps']:.1f} steps", f"{row['per_second']:.0f} answers/s",
         f"{row['accuracy']:.4f} exact")
        for row in measured["exits"]
    ]  # fmt: skip
    rows += [
        (f"{row['heads']} heads, length {row['length']}", f"row of {row['row_size']}",
         f"{row['ms']:.4g} ms per row and step", f"× {row['loops']} steps = {row['answer_seconds']:.4g} s")
        for row in measured["lengths"]
    ]  # fmt: skip
    rows += [
        (f"{heads} heads", "exponent of a step", f"{value:.2f}", f"of an answer {value + 1:.2f}")
        for heads, value in measured["exponents"].items()
    ]
    if measured.get("narrow"):
        one = measured["narrow"]
        rows.append(
            (f"a layer of width {one['width']} in one kernel", f"row of {one['row_size']}",
             f"{one['ms']:.4g} ms per row and step", f"{one['parts_ms'] / one['ms']:.1f} × as fast as in parts")
        )  # fmt: skip
    return ("what", "size", "measured", "and so"), list(rows)


# --- early exit --------------------------------------------------------------------------------------------


def early_exit(subject: Subject, samples: int, device: torch.device) -> list[Measured]:
    """Seconds for the same problems under every rule, and running all of them to the last step."""
    batch = mixed(subject, samples, device)
    most = 2 * int(batch.steps.max())
    rows = [_without(subject, batch, most, device)]
    for name in RULES:
        rule = stopping.get(name)

        def answer(rule: stopping.Rule = rule) -> decode.DecodedBatch:
            return decode.run_adaptive(subject.model, subject.weights, batch, rule, most)

        answers = answer()
        rows.append(
            _exit_row(
                name, samples, timing.median_seconds(answer, device, ROUNDS),
                float(answers.steps.double().mean()), float(decode.exact(answers, batch).double().mean()),
            )
        )  # fmt: skip
    return rows


def mixed(subject: Subject, samples: int, device: torch.device) -> Batch:
    """Problems of every length up to twice the training length, in rows of one size, each judged up to its own end."""
    task, longest = subject.task, 2 * subject.trained_max_length
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, longest + 1, (samples,), generator=generator)
    problems = task.sample(lengths, generator, max_length=longest)
    batch = batches.lay_out(problems, task.vocab, task.row_size(longest))
    ends = torch.tensor([task.row_size(n) for n in lengths.tolist()])
    inside = torch.arange(batch.tokens.shape[1]) < ends[:, None]
    return replace(batch, loss_mask=batch.loss_mask & inside).to(device)


def _without(subject: Subject, batch: Batch, most: int, device: torch.device) -> Measured:
    """Every row to the last step, each step read; right if it is right at its own T."""

    def unroll() -> object:
        return unroll_grid(subject.model, subject.weights, batch, most)

    grid = unroll_grid(subject.model, subject.weights, batch, most)
    right = grid.correct[0].gather(0, batch.steps[None] - 1).double().mean()
    taken = timing.median_seconds(unroll, device, ROUNDS)
    return _exit_row("none", len(batch.steps), taken, float(most), float(right))


def _exit_row(stop: str, samples: int, seconds: float, mean_steps: float, accuracy: float) -> Measured:
    return {
        "stop": stop, "seconds": seconds, "per_second": samples / seconds,
        "mean_steps": mean_steps, "accuracy": accuracy,
    }  # fmt: skip


# --- cost against length -----------------------------------------------------------------------------------


def cost(model: ModelConfig, task: str, longest: int, banded: bool, device: torch.device) -> list[Measured]:
    """Milliseconds of a loop step of one row at lengths 16, 32, … up to `longest`, as many rows at once as fit."""
    shape = replace(model, bands=(BAND,) * model.heads if banded else ())
    looped = StackedTransformer(shape)
    with torch.no_grad():
        weights = looped.prepare(looped.layout.initialise([0], device))
    rows = []
    for length in doubled(SHORTEST, longest):
        size = tasks.get(task).row_size(length)
        count = max(1, AT_ONCE[device.type] // size)
        taken = _step_seconds(looped, weights, count, size, device) / count
        loops = largest_steps(tasks.get(task), length)
        rows.append(
            {
                "heads": "banded" if banded else "global", "length": length, "row_size": size, "rows": count,
                "ms": 1e3 * taken, "loops": loops, "answer_seconds": taken * loops,
            }
        )  # fmt: skip
    return rows


def narrow(task: str, length: int, device: torch.device) -> Measured | None:
    """A loop step of the recipe `long`'s narrow block, its layer in one kernel and in parts; None where it has none."""
    shape = make("copy", "fop-loop-adaptive", "long", (0,)).model
    whole = StackedTransformer(replace(shape, vocab=len(tasks.get(task).vocab)))
    parts = StackedTransformer(whole.config, lambda x, matrix, bias: layer_ops.linear(x, matrix, bias))
    size = tasks.get(task).row_size(length)
    count = max(1, AT_ONCE[device.type] // size)
    with torch.no_grad():
        weights = whole.prepare(whole.layout.initialise([0], device))
        state = torch.zeros(1, 1, 1, shape.width, device=device)
        if not kernels.suits_narrow(whole.config, weights.layers[0], state):
            return None
    taken = {
        name: 1e3 * _step_seconds(model, weights, count, size, device) / count
        for name, model in (("ms", whole), ("parts_ms", parts))
    }
    return {"width": shape.width, "row_size": size, "rows": count, **taken}


@torch.inference_mode()
def _step_seconds(
    model: StackedTransformer, weights: Prepared, count: int, size: int, device: torch.device
) -> float:
    tokens = torch.randint(0, model.config.vocab, (1, count, size), device=device)

    def run() -> None:
        for _ in model.unroll(weights, tokens, TIMED):
            pass

    return timing.median_seconds(run, device, ROUNDS) / TIMED


def doubled(first: int, last: int) -> list[int]:
    """16, 32, 64, … up to `last`."""
    return [first << i for i in range((last // first).bit_length())]


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log y over log x, by least squares over the longer half of the points."""
    half = sorted(points)[-max(2, (len(points) + 1) // 2) :]
    x, y = ([math.log(value) for value in column] for column in zip(*half, strict=True))
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)
