"""`bench train`: milliseconds of a gradient step and seed, against the same training written the ordinary way.

Both sides train the paper's model at the last curriculum stage, where steps are dearest. Ours is the recipe `fast`
(stratified lengths, so that rows leave the loop at their own T and end where their problem does); the peer (`peer.py`)
draws lengths independently, pads every row and runs it to the end. First one batch and the same weights go through
both, and their losses are compared; then timed rounds of the two alternate, so that a machine that slows down slows
both.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks import Measured, Table, timing
from benchmarks.peer import PeerTrainer, library, make_rows
from benchmarks.profile import profile_step
from benchmarks.stages import free, last_stage, made, of_blocks, ready
from looped import devices, tasks
from looped.batches import Batch
from looped.errors import InputError
from looped.fast.engine import Engine
from looped.fast.modules import ModuleEngine, trial
from looped.fast.packing import Packing
from looped.training.config import TrainConfig
from looped.training.curriculum import Plan, Stage

ROUNDS = 7  # readings of which the median is taken


def measure(
    *,
    task: str = "copy",
    seeds: int = 5,
    device: str = "auto",
    precision: str = "auto",
    steps: int = 35,
    peer_steps: int = ROUNDS,
    length: int | None = None,
    width: int | None = None,
    batch: int | None = None,
    block: str | None = None,
) -> Measured:
    """Time `steps` gradient steps of ours and `peer_steps` of the peer.

    `block` is FILE.py:Name, or several as FILE.py:Name,Name: blocks of the user's, timed beside the built-in one with
    their seeds stacked. A block that a run would not stack is not timed: the reason stands in its place.
    """
    if steps < 1 or peer_steps < 0:
        raise InputError(f"steps must be at least 1 and peer-steps at least 0, not {steps} and {peer_steps}")
    where = devices.pick(device)
    dtype = timing.precision_of(precision, where)
    config = last_stage(task, seeds, length=length, width=width, batch=batch)
    blocks = of_blocks(config, block, dtype) if block else {}
    if peer_steps:
        library()  # complains before any work is done
    found = _case(config, where, dtype)
    reasons = {name: trial(each, where, made(each)) for name, each in blocks.items()}
    stacked = [name for name, reason in reasons.items() if reason is None]
    at_work = [_ours(each, where, dtype) for each in (config, *(blocks[name] for name in stacked))]
    rounds = min(ROUNDS, steps)
    calls = [(partial(timing.seconds, engine.step, where, steps // rounds), rounds) for engine, _ in at_work]
    peer, theirs = _theirs(config, where) if peer_steps else (None, {})
    if peer is not None:
        found["loss_difference"] = loss_difference(config, where, dtype, peer)
        calls.append((partial(timing.seconds, peer.step, where), peer_steps))
    taken = _alternate(calls)
    stage, ceiling = _stage(config, where), found["ceiling_tflops"]
    profiled = 2 if where.type == "cuda" else 1
    ours, *others = (
        {**_times(readings, seeds), **about, "anatomy": profile_step(engine.step, where, calls=profiled)}
        for readings, (engine, about) in zip(taken, at_work, strict=False)
    )
    found["ours"] = ours | _rates(ours, _flops(config, stage), ceiling)
    if peer is not None:
        times = _times(taken[-1], 1)
        found["peer"] = times | theirs | _rates(times, _flops(config, stage, to_the_end=True), ceiling)
        found["speedup"] = times["ms_per_seed"] / ours["ms_per_seed"]
    if blocks:
        found["blocks"] = {name: {"refused": reason} for name, reason in reasons.items()}
    for name, side in zip(stacked, others, strict=True):
        side["times_built_in"] = side["ms_per_seed"] / ours["ms_per_seed"]
        if peer is not None:
            side["speedup"] = found["peer"]["ms_per_seed"] / side["ms_per_seed"]
        found["blocks"][name] = side
    return found


def table(measured: Measured) -> Table:
    """One row a side. Beside blocks of the user's: kernels by kind, in ms of a step of all seeds."""
    columns = ("side", "ms per step and seed", "TFLOP/s", "% of ceiling", "peak MB", "compile s", "capture s")
    sides: Measured = {side: measured[side] for side in ("ours", "peer") if side in measured}
    if "blocks" in measured:
        return _table_of_blocks(measured, sides)
    rows: list[Sequence[object]] = [
        (
            _label(side, got, measured),
            round(got["ms_per_seed"], 3),
            round(got["tflops"], 3),
            round(100 * got["share_of_ceiling"], 1),
            round(got["peak_bytes"] / 1e6, 1),
            round(got.get("compile_seconds", 0.0), 2),
            round(got.get("capture_seconds", 0.0), 2),
        )
        for side, got in sides.items()
    ]
    return columns, rows


def _table_of_blocks(measured: Measured, sides: Measured) -> Table:
    kinds = list(sides["ours"]["anatomy"]["ms"])
    columns = ("side", "ms per step and seed", "× built-in", "peer / it", "peak MB", "launches", *kinds)
    rows: list[Sequence[object]] = []
    for side, got in {**sides, **measured["blocks"]}.items():
        if "refused" in got:
            rows.append((f"{side}: {got['refused']}", *[""] * (len(columns) - 1)))
            continue
        ratios = [
            got.get("times_built_in"),
            measured.get("speedup") if side == "ours" else got.get("speedup"),
        ]
        kernels = got.get("anatomy", {"launches": "", "ms": {}})
        rows.append(
            (
                _label(side, got, measured),
                round(got["ms_per_seed"], 3),
                *("" if ratio is None else round(ratio, 2) for ratio in ratios),
                round(got["peak_bytes"] / 1e6, 1),
                kernels["launches"],
                *(round(kernels["ms"][kind], 2) if kernels["ms"] else "" for kind in kinds),
            )
        )
    return columns, rows


def _label(side: str, got: Measured, measured: Measured) -> str:
    return f"{side}, {got['seeds']} × {measured['task']} in {got['precision']}"


# --- the two sides -----------------------------------------------------------------------------------------


def _case(config: TrainConfig, device: torch.device, precision: torch.dtype) -> Measured:
    """What is measured, and the yardstick."""
    model = config.model
    return {
        "task": config.task, "length": config.max_length, "batch": config.batch, "width": model.width,
        "layers": model.layers, "heads": model.heads, "device": devices.describe(device),
        "ceiling_tflops": timing.ceiling_tflops(device, precision),
    }  # fmt: skip


def _ours(
    config: TrainConfig, device: torch.device, precision: torch.dtype
) -> tuple[Engine | ModuleEngine, Measured]:
    """An engine at work. It is made twice: the first time compiles, the second only captures."""
    first = ready(config, device, precision)[1]
    free(device)
    (engine, second), used = timing.peak_bytes(lambda: ready(config, device, precision), device)
    return engine, {
        "seeds": len(config.seeds),
        "precision": timing.precision_name(precision),
        "peak_bytes": used,
        "compile_seconds": max(0.0, first - second),  # next to nothing where kernels were compiled before
        "capture_seconds": second,
    }


def _theirs(config: TrainConfig, device: torch.device) -> tuple[PeerTrainer, Measured]:
    """The peer at work, one seed, in torch's default fp32."""
    task = tasks.get(config.task)

    def make() -> PeerTrainer:
        peer = PeerTrainer(task, config.model, config.max_length, config.batch, device)
        peer.step()
        return peer

    peer, used = timing.peak_bytes(make, device)
    rows = random.Random(0)
    data = timing.seconds(lambda: make_rows(task, config.max_length, config.batch, rows), device)
    return peer, {
        "library": f"transformers {library().__version__}, {peer.model.attention} attention",
        "seeds": 1,
        "precision": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32",
        "peak_bytes": used,
        "data_ms": 1e3 * data,
    }


def loss_difference(
    config: TrainConfig, device: torch.device, precision: torch.dtype, peer: PeerTrainer
) -> float:
    """How far the losses of both sides lie apart for one batch and the same weights."""
    engine = Engine(replace(config, seeds=config.seeds[:1]), device, precision=precision, graphs=False)
    before = engine.generators[0].get_state()
    batch, _ = engine.draw(engine.stage(config.max_length))
    engine.generators[0].set_state(before)  # the step draws the same rows again
    peer.model.load(engine.model.layout.to_dict(engine.weights[0]))
    rows = Batch(batch.tokens[0], batch.targets[0], batch.loss_mask[0], batch.steps[0])
    with torch.no_grad():
        theirs = peer.model.loss(rows)
    return float((engine.step().loss[0] - theirs).abs())


# --- time --------------------------------------------------------------------------------------------------


def _alternate(sides: Sequence[tuple[Callable[[], float], int]]) -> list[list[float]]:
    """Readings of every side in turn, as many of each as asked for, spread evenly over the time they take."""
    taken: list[list[float]] = [[] for _ in sides]
    while left := [i for i, (_, rounds) in enumerate(sides) if len(taken[i]) < rounds]:
        behind = min(left, key=lambda i: len(taken[i]) / sides[i][1])
        taken[behind].append(sides[behind][0]())
    return taken


def _times(taken: list[float], seeds: int) -> Measured:
    """Readings of a step of `seeds` seeds, in ms."""
    step = 1e3 * statistics.median(taken)
    return {"ms_per_step": step, "ms_per_seed": step / seeds, "rounds_ms": [1e3 * s for s in taken]}


def _rates(times: Measured, flops: float, ceiling: float) -> Measured:
    """The same as rates, with `flops` operations per step and seed."""
    tflops = flops / times["ms_per_seed"] / 1e9
    return {
        "floor_ms_per_seed": flops / ceiling / 1e9,
        "tflops": tflops,
        "share_of_ceiling": tflops / ceiling,
    }


def _stage(config: TrainConfig, device: torch.device) -> Stage:
    return Engine(replace(config, seeds=config.seeds[:1]), device).stage(config.max_length)


def _flops(config: TrainConfig, stage: Stage, *, to_the_end: bool = False) -> float:
    """Operations of a gradient step of one seed: rows leaving at their T, or every row run to the end."""
    assert stage.plan is not None
    steps = len(stage.plan.active)
    if not to_the_end:
        return matmul_flops(config, stage.plan, Packing(stage.computed))
    plan = Plan((config.batch,) * steps, (0,) * steps)
    return matmul_flops(config, plan, Packing.padded(config.batch, stage.row_size))


def matmul_flops(config: TrainConfig, plan: Plan, packing: Packing) -> float:
    """Floating-point operations of one gradient step of one seed: matrices and attention, both ways."""
    d, model = config.model.width, config.model
    of_rows = [size * (2 * d * d * (4 + 2 * model.expansion) + 4 * d * (size / 2)) for size in packing.sizes]
    return 3 * model.layers * sum(sum(of_rows[:active]) for active in plan.active)
