"""`bench scale`: what a seed costs when 1, 2, 4, … of them are trained side by side."""

from __future__ import annotations

from benchmarks import Measured, Table, timing
from benchmarks.stages import free, last_stage, ready
from looped import devices
from looped.errors import InputError

ROUNDS = 5


def measure(
    *,
    task: str = "copy",
    seeds: int = 32,
    device: str = "auto",
    precision: str = "auto",
    steps: int = 20,
    length: int | None = None,
    width: int | None = None,
    batch: int | None = None,
) -> Measured:
    """Time a gradient step with 1, 2, 4, … up to `seeds` seeds; `speedup` is of the cheapest seed over a lone one."""
    if steps < 1:
        raise InputError(f"steps must be at least 1, not {steps}")
    where = devices.pick(device)
    dtype = timing.precision_of(precision, where)
    rounds = min(ROUNDS, steps)
    rows = []
    for count in counts(seeds):
        free(where)
        config = last_stage(task, count, length=length, width=width, batch=batch)
        (engine, capture), used = timing.peak_bytes(lambda config=config: ready(config, where, dtype), where)  # type: ignore[misc]
        taken = timing.median_seconds(engine.step, where, rounds, steps // rounds)
        del engine
        rows.append(
            {
                "seeds": count,
                "ms_per_step": 1e3 * taken,
                "ms_per_seed": 1e3 * taken / count,
                "peak_bytes": used,
                "capture_seconds": capture,
            }
        )
    return {
        "task": task, "length": config.max_length, "batch": config.batch, "width": config.model.width,
        "device": devices.describe(where), "precision": timing.precision_name(dtype), "rows": rows,
        "speedup": rows[0]["ms_per_seed"] / min(row["ms_per_seed"] for row in rows),
    }  # fmt: skip


def counts(most: int) -> list[int]:
    """1, 2, 4, … and `most` itself."""
    if most < 1:
        raise InputError(f"a bench needs at least 1 seed, not {most}")
    powers = [1 << i for i in range(most.bit_length())]
    return list(dict.fromkeys([*powers, most]))


def table(measured: Measured) -> Table:
    """One row a number of seeds."""
    columns = ("seeds", "ms per step", "ms per step and seed", "peak MB", "capture s")
    return columns, [
        (
            row["seeds"],
            round(row["ms_per_step"], 3),
            round(row["ms_per_seed"], 3),
            round(row["peak_bytes"] / 1e6, 1),
            round(row["capture_seconds"], 2),
        )
        for row in measured["rows"]
    ]
