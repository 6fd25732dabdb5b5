"""What the benches of training run: the last curriculum stage of a task, the paper's sizes unless told otherwise."""

from __future__ import annotations

import gc
from dataclasses import replace

import torch

from benchmarks import timing
from looped import registry, tasks
from looped.errors import InputError
from looped.fast.engine import Engine
from looped.fast.modules import ModuleEngine
from looped.model.looped import BlockMaker
from looped.training import recipes
from looped.training.config import TrainConfig

METHOD, RECIPE = "fop-loop-adaptive", "fast"


def last_stage(
    task: str,
    seeds: int,
    *,
    length: int | None = None,
    width: int | None = None,
    batch: int | None = None,
) -> TrainConfig:
    """The recipe `fast` without noise, in a curriculum of one stage: its last, where steps are dearest."""
    if seeds < 1:
        raise InputError(f"a bench needs at least 1 seed, not {seeds}")
    config = recipes.make(task, METHOD, RECIPE, tuple(range(seeds)))
    longest = tasks.get(task).check_length(length or config.max_length)
    return replace(
        config,
        max_length=longest,
        start_length=longest,
        batch=batch or config.batch,
        noise=0.0,  # the peer has none, and the same step is to be compared
        model=replace(config.model, width=width or config.model.width),
    )


def of_blocks(config: TrainConfig, named: str, precision: torch.dtype) -> dict[str, TrainConfig]:
    """The same for blocks of the user's, FILE.py:Name or FILE.py:Name,Name, by what each is called."""
    file, _, names = named.rpartition(":")
    products = timing.precision_name(precision)
    return {
        name: replace(
            config,
            block=registry.resolve("block", f"{file}:{name}" if file else name),
            products=products,  # type: ignore[arg-type]
        )
        for name in names.split(",")
    }


def made(config: TrainConfig) -> BlockMaker | None:
    """What makes the block of a configuration; None for the stock block."""
    maker: BlockMaker | None = registry.find("block", config.block) if config.block else None
    return maker


def ready(
    config: TrainConfig, device: torch.device, precision: torch.dtype
) -> tuple[Engine | ModuleEngine, float]:
    """An engine that has taken its first step, and the seconds that took: on CUDA, those of capturing it."""
    engine: Engine | ModuleEngine
    if config.block:
        engine = ModuleEngine(config, device, block=made(config))
    else:
        engine = Engine(config, device, precision=precision)
    return engine, timing.seconds(engine.step, device)


def free(device: torch.device) -> None:
    """Give back what dropped engines held."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
