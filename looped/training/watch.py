"""Which seeds have gone wrong, and what their last good weights were.

A seed whose gradient is no longer finite stops by itself in the optimiser, before that step spoils it.
A seed whose loss stays far above that of guessing is stopped here, and gets back the weights it had when its
loss was last sane. The other seeds train on untouched.

Shapes: S seeds, P numbers of a seed's weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped import serial
from looped.checkpoints import Metadata
from looped.errors import InputError
from looped.training.engine import TrainingEngine

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
