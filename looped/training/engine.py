"""What the trainer asks of an engine. There are two: `training.plain` and `fast.engine`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from looped import serial
from looped.checkpoints import Metadata, Shapes
from looped.errors import InputError
from looped.loops import Loops
from looped.methods import Method
from looped.model.seeds import SeedModel, SeedWeights
from looped.runs import Elsewhere
from looped.tasks.base import Task
from looped.training.config import TrainConfig
from looped.training.optimizer import Moments
from looped.training.progress import Readings, Window


class TrainingEngine(Protocol):
    """Trains S seeds, a gradient step at a time; P numbers of a seed's trained weights lie in one row."""

    config: TrainConfig
    device: torch.device
    task: Task
    method: Method
    law: Loops
    weights: Tensor  # [S, P], changed in place
    moments: Moments
    generators: list[torch.Generator]
    done: int  # gradient steps taken

    def step(self) -> Readings:
        """Take one gradient step."""

    @property
    def evaluated_weights(self) -> Tensor:
        """[S, P] the weights that count: their average where the run keeps one and it has begun."""

    def evaluated(self) -> tuple[SeedModel, SeedWeights]:
        """The model with the weights that count, to be measured."""

    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """The weights that count of the i-th seed, as its checkpoint holds them."""

    def buffers(self) -> dict[str, Tensor]:
        """What else a checkpoint has to hold to go on: changed in place."""


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
