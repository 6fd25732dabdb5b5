"""Which engine trains a run: the fast one where it handles everything that was asked for, otherwise the plain one."""

from __future__ import annotations

import sys
from typing import Literal, get_args

import torch

from looped.errors import InputError
from looped.model.looped import BlockMaker
from looped.training import plain
from looped.training.config import TrainConfig
from looped.training.engine import TrainingEngine
from looped.training.world import World

Backend = Literal["auto", "plain", "fast"]


def _stacks(config: TrainConfig, device: torch.device | str, block: BlockMaker | None) -> str | None:
    """Why the seeds of a block cannot be computed together; None if they can and it pays."""
    if len(config.seeds) == 1 and torch.device(device).type == "cpu":
        return "there is one"
    from looped.fast import trial

    return trial.of_modules(config, device, block)


def make(
    config: TrainConfig,
    device: torch.device | str = "cpu",
    world: World | None = None,
    backend: Backend = "auto",
    block: BlockMaker | None = None,
) -> TrainingEngine:
    """The engine for a configuration; `block` makes another block than the stock one.

    The reason why auto takes the plain engine goes to stderr.
    """
    if backend not in get_args(Backend):
        raise InputError(f"unknown backend {backend!r}; there are {', '.join(get_args(Backend))}")
    if backend != "plain":
        from looped.fast.supports import supports  # here: a plain run loads nothing of the fast engine

        reason = supports(block, config, torch.device(device).type == "cuda")
        if reason is None:
            from looped.fast import trial
            from looped.fast.engine import Engine

            engine = Engine(config, device, world=world)
            reason = trial.of_fast(engine)
            if reason is None:
                return engine
        if backend == "fast":
            raise InputError(f"the fast engine cannot train this: {reason}")
        other = plain.refuses(config, world)
        if other is not None:
            raise InputError(
                f"no engine can train this: the fast one because {reason}; the plain one: {other}"
            )
        stacked = _stacks(config, device, block)
        how = "with its seeds stacked" if stacked is None else f"a seed at a time ({stacked})"
        if world is None or world.rank == 0:
            print(
                f"looped: trained by the plain engine, {how}: the fast one cannot, {reason}", file=sys.stderr
            )
        if stacked is None:
            from looped.fast.modules import ModuleEngine

            return ModuleEngine(config, device, block=block, world=world)
    return plain.PlainEngine(config, device, block=block, world=world)
