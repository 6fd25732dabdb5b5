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
            from looped.fast.engine import Engine

            return Engine(config, device, world=world)
        if backend == "fast":
            raise InputError(f"the fast engine cannot train this: {reason}")
        other = plain.refuses(config, world)
        if other is not None:
            raise InputError(
                f"no engine can train this: the fast one because {reason}; the plain one: {other}"
            )
        if world is None or world.rank == 0:
            print(f"looped: trained by the plain engine: the fast one cannot, {reason}", file=sys.stderr)
    return plain.PlainEngine(config, device, block=block, world=world)
