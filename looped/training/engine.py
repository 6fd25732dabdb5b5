"""Which engine trains a run, the state of one in a checkpoint, and the watch over seeds that diverge."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from looped import serial
from looped.checkpoints import Metadata, Shapes
from looped.errors import InputError
from looped.model.looped import BlockMaker
from looped.runs import Elsewhere
from looped.training import plain
from looped.training.config import TrainConfig
from looped.training.plain import PlainEngine, TrainingEngine
from looped.training.progress import Window
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
            from looped.fast.engine import Engine, trial

            engine = Engine(config, device, world=world)
            reason = trial(engine)
            if reason is None:
                return engine
        if backend == "fast":
            raise InputError(f"the fast engine cannot train this: {reason}")
        other = plain.refuses(config, world)
        if other is not None:
            raise InputError(
                f"no engine can train this: the fast one because {reason}; the plain one: {other}"
            )
        from looped.fast import modules

        alone = len(config.seeds) == 1 and torch.device(device).type == "cpu"
        stacked = "there is one" if alone else modules.trial(config, device, block)
        how = "with its seeds stacked" if stacked is None else f"a seed at a time ({stacked})"
        if world is None or world.rank == 0:
            print(
                f"looped: trained by the plain engine, {how}: the fast one cannot, {reason}", file=sys.stderr
            )
        if stacked is None:
            return modules.ModuleEngine(config, device, block=block, world=world)
    return PlainEngine(config, device, block=block, world=world)


# --- the state of an engine, as tensors; restoring copies in place, as captured graphs need it -----------------

GENERATORS = "generators"


def take_state(engine: TrainingEngine, window: Window) -> dict[str, Tensor]:
    """Weights, moments, generators and unreported readings of an engine at this moment."""
    states = torch.stack([generator.get_state() for generator in engine.generators])
    return {**_places(engine, window), GENERATORS: states}


def restore_state(engine: TrainingEngine, window: Window, tensors: dict[str, Tensor], step: int) -> None:
    """Puts an engine where it was after `step` gradient steps."""
    with torch.no_grad():
        for name, place in _places(engine, window).items():
            place.copy_(tensors[name])
    for generator, state in zip(engine.generators, tensors[GENERATORS], strict=True):
        generator.set_state(state.clone())  # rows of a file need not be aligned
    engine.done = step


def begin_from(engine: TrainingEngine, weights: Sequence[Mapping[str, Tensor]], step: int) -> None:
    """Puts an engine that has taken no step at `step`, with these weights of its seeds and fresh moments."""
    with torch.no_grad():
        for i, own in enumerate(weights):
            engine.take_weights(i, own)
        if engine.moments.average is not None:
            engine.moments.average.copy_(engine.weights)
    engine.done = step


def check_state(
    engine: TrainingEngine, window: Window, rows: Mapping[str, Tensor], metadata: Metadata, shapes: Shapes
) -> None:
    """Raises unless a checkpoint with these texts and shapes fits the engine and holds rows like `rows` beside."""
    here, there = engine.device.type, metadata.get("device", "")
    if there not in ("cpu", "cuda"):
        raise InputError("it does not say on which device it was made")
    if there != here:
        raise Elsewhere(f"it was made on {there!r}; go on there, not on {here!r}")
    wanted = {**take_state(engine, window), **rows}
    expected = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    odd = sorted(name for name in expected.keys() | shapes.keys() if shapes.get(name) != expected.get(name))
    if odd:
        raise InputError(f"its {odd[0][:40]!r} is of shape {shapes.get(odd[0])}, not {expected.get(odd[0])}")


def verify_state(engine: TrainingEngine, window: Window, tensors: Mapping[str, Tensor]) -> None:
    """Raises unless tensors of the right shapes are of the right types, and generators can go on from theirs."""
    wanted = take_state(engine, window)
    for name, tensor in tensors.items():
        dtype = wanted[name].dtype if name in wanted else torch.float32
        if tensor.dtype != dtype:
            raise InputError(f"its {name!r} is of type {tensor.dtype}, not {dtype}")
    for state in tensors[GENERATORS]:
        try:
            torch.Generator(engine.device).set_state(state.clone())
        except RuntimeError:
            raise InputError("the states of its random generators are damaged") from None


def _places(engine: TrainingEngine, window: Window) -> dict[str, Tensor]:
    """The tensors that training changes in place, by name."""
    own = {"weights": engine.weights, **engine.moments.tensors(), "window": window.sums}
    return {**own, **engine.buffers()}


# --- watch ---------------------------------------------------------------------------------------------------
# Which seeds have gone wrong, and what their last good weights were.
#
# A seed whose gradient is no longer finite stops by itself in the optimiser, before that step spoils it.
# A seed whose loss stays far above that of guessing is stopped here, and gets back the weights it had when its
# loss was last sane. The other seeds train on untouched.
#
# Shapes: S seeds, P numbers of a seed's weights.


FAR = 2.0  # times the loss of guessing every token with equal chances
PATIENCE = 200  # gradient steps that it has to last


class Watch:
    """Looks at every report and stops the seeds that diverge."""

    def __init__(self, engine: TrainingEngine) -> None:
        self.engine = engine
        self.limit = FAR * math.log(engine.config.model.vocab)
        self.stopped: dict[int, str] = {}  # seed → why
        self._above = [0] * len(engine.config.seeds)  # gradient steps each loss has been too high
        self._good: Float[Tensor, "S P"] = engine.evaluated_weights.clone()

    @property
    def all_stopped(self) -> bool:
        """Whether all seeds have stopped."""
        return len(self.stopped) == len(self.engine.config.seeds)

    def look(self, losses: Sequence[float | None], alive: Sequence[bool], steps: int) -> list[int]:
        """Takes in the mean losses of the last `steps` steps; returns the seeds that stopped since."""
        fresh: list[int] = []
        for i, seed in enumerate(self.engine.config.seeds):
            if seed in self.stopped:
                continue
            loss = losses[i]
            if not alive[i]:
                self.stopped[seed] = (
                    "its gradient was no longer finite; it keeps the weights from before that"
                )
            elif loss is None or loss > self.limit:
                self._above[i] += steps
                if self._above[i] >= PATIENCE:
                    self._give_back(i)
                    self.stopped[seed] = (
                        f"its loss stayed above {self.limit:.2f}, {FAR:g} times that of guessing, for "
                        f"{self._above[i]} steps; it keeps the weights from before that"
                    )
                    self._above[i] = 0
            else:
                self._above[i] = 0
            if seed in self.stopped:
                fresh.append(seed)
        self._keep()
        return fresh

    def _keep(self) -> None:
        sane = torch.tensor([above == 0 for above in self._above], device=self._good.device)
        torch.where(sane[:, None], self.engine.evaluated_weights, self._good, out=self._good)

    def _give_back(self, i: int) -> None:
        engine = self.engine
        engine.moments.alive[i] = False
        engine.weights[i].copy_(self._good[i])
        if engine.moments.average is not None:
            engine.moments.average[i].copy_(self._good[i])

    def forget(self) -> None:
        """Take the present weights as good, whatever they were before."""
        self._good.copy_(self.engine.evaluated_weights)

    # --- going on later ------------------------------------------------------------------------------------
    def state(self) -> tuple[dict[str, Tensor], Metadata]:
        """What a checkpoint has to hold; of the good weights only those that are not the present ones.

        They are those of the last report, and a checkpoint may come between two: what has happened since may be bad.
        """
        now = self.engine.evaluated_weights
        good = [i for i in range(len(self._good)) if not torch.equal(self._good[i], now[i])]
        told = {"stopped": self.stopped, "above": self._above, "good": good}
        return {f"good.{i}": self._good[i] for i in good}, {"watch": json.dumps(told)}

    def places(self, metadata: Metadata) -> dict[str, Tensor]:
        """The rows a checkpoint with these texts has to hold, and tensors of their shape and type."""
        return {f"good.{i}": self._good[i] for i in self._kept(metadata)["good"]}

    def _kept(self, metadata: Metadata) -> dict[str, Any]:
        """What `state` wrote, each part of the type it had."""
        kept = serial.parse(metadata.get("watch", ""), "what it says of stopped seeds")
        stopped, above = (kept.get("stopped"), kept.get("above")) if isinstance(kept, dict) else (None, None)
        seeds = self.engine.config.seeds
        if not (isinstance(stopped, dict) and set(stopped) <= set(map(str, seeds))) or not all(
            isinstance(why, str) for why in stopped.values()
        ):
            raise InputError("what it says of stopped seeds is damaged")
        if not (isinstance(above, list) and len(above) == len(seeds)) or not all(
            type(steps) is int and 0 <= steps < PATIENCE for steps in above
        ):
            raise InputError("what it says of seeds that go wrong is damaged")
        usual = [i for i, steps in enumerate(above) if steps]  # all that older checkpoints held
        good = kept.get("good", usual) if isinstance(kept, dict) else usual
        known = isinstance(good, list) and all(type(i) is int and 0 <= i < len(seeds) for i in good)
        if not known or len(set(good)) < len(good):
            raise InputError("what it says of good weights is damaged")
        return {"stopped": stopped, "above": above, "good": good}

    def restore(self, tensors: dict[str, Tensor], metadata: Metadata) -> None:
        """The inverse, once the engine itself is restored."""
        kept = self._kept(metadata)
        self.stopped = {int(seed): why for seed, why in kept["stopped"].items()}
        self._above = kept["above"]
        self._good.copy_(self.engine.evaluated_weights)
        for i in kept["good"]:
            self._good[i].copy_(tensors[f"good.{i}"])
