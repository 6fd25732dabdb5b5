"""What every training engine shares: its state in a checkpoint, other processes, and the watch over seeds that diverge.

`plain.PlainEngine` is the engine to read; `looped.fast` has two more, which compute the same.

Shapes: S seeds, B rows, L positions, P numbers of a seed's trained weights.
"""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped import batches, methods, serial, tasks
from looped.batches import Batch
from looped.checkpoints import Metadata, Shapes
from looped.errors import InputError
from looped.model import positions
from looped.model.seeds import SeedModel, SeedWeights
from looped.model.weights import check_fit
from looped.runs import Elsewhere
from looped.training import curriculum, optimizer
from looped.training.config import TrainConfig, product_dtype
from looped.training.curriculum import Stage
from looped.training.optimizer import AdamW, Moments
from looped.training.progress import Readings

GENERATORS = "generators"  # their states, in a checkpoint


class TrainingEngine(ABC):
    """Trains S seeds, a gradient step at a time: what all engines share, and what the trainer asks of them.

    A subclass sets `weights` [S, P], which change in place, and `moments`.
    """

    weights: Float[Tensor, "S P"]
    moments: Moments
    adamw: AdamW = staticmethod(optimizer.adamw)

    graphs = False  # whether a stage's gradient step is captured in a CUDA graph, whose shapes are fixed

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device | str,
        precision: torch.dtype | None = None,
        world: World | None = None,
    ) -> None:
        self.config, self.world = config, world or World()
        self.device = torch.device(device)
        cuda = self.device.type == "cuda"
        self.precision = precision or product_dtype(config, cuda)
        if cuda:  # for the whole process, as torch has it
            torch.backends.cuda.matmul.allow_tf32 = config.products == "tf32"
        self.task, self.method = tasks.get(config.task), methods.get(config.method)
        self.law = methods.parse_loops(config.loops)
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in config.seeds]
        self.done = 0  # gradient steps taken
        self._hyper: Float[Tensor, "S 3"] = torch.zeros(len(config.seeds), 3, device=self.device)
        self._stage: Stage | None = None

    def step(self) -> Readings:
        """Take one gradient step of every seed. The readings live on the device and may change with the next step."""
        config = self.config
        longest, family = curriculum.max_length(config, self.done), curriculum.family(config, self.done)
        if self._stage is None or (self._stage.longest, self._stage.family) != (longest, family):
            self._stage = replace(self.stage(longest), family=family)
        if self.moments.average is not None and self.done == self._average_from:
            self.moments.average.copy_(self.weights)
        share = curriculum.lr_share(config, self.done)
        self._hyper.copy_(torch.tensor(optimizer.hyper(config, share, self.done)))
        readings = self._carry_out(self._stage)
        self.done += 1
        return readings

    def stage(self, longest: int) -> Stage:
        """The shapes of the stage whose maximum length is `longest`."""
        return curriculum.stage(self.config, longest, self.device, self.world.rows, self.graphs)

    def _carry_out(self, stage: Stage) -> Readings:
        """Gradients and update, with the rates in `_hyper`."""
        loss, grad, right, longest = self.gradients(stage)
        norm = optimizer.update(self.config, self.weights, grad, self.moments, self._hyper, self.adamw)
        accuracy_longest = (right * longest).sum(1) / longest.sum(1)
        return Readings(loss, norm, right.mean(1), accuracy_longest)

    @abstractmethod
    def gradients(self, stage: Stage) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [S], gradient [S, P], rows answered exactly [S, B], rows of the maximum length [S, B]."""

    # --- what is drawn -------------------------------------------------------------------------------------
    def draw(self, stage: Stage) -> tuple[Batch, Bool[Tensor, "S B"]]:
        """A fresh batch for every seed, rows sorted by T, and which rows have the maximum length."""
        drawn = [curriculum.draw(self.config, stage, generator) for generator in self.generators]
        return batches.stack([batch for batch, _ in drawn]), torch.stack([longest for _, longest in drawn])

    def _places(self, size: int) -> Int[Tensor, "B L"] | None:
        """Randomised positions, where the model has them; shared by the seeds."""
        if self.config.model.positions != "randomised":
            return None
        return positions.places(self.config.model, self.config.batch, size, self.device, self.generators[0])

    def _depth(self, generator: torch.Generator) -> Int[Tensor, "B"] | None:
        """How many steps back each row's gradient flows, if it is cut."""
        most, size = self.config.backprop, (self.config.batch,)
        if not most:
            return None
        if self.config.window == "last":
            return torch.full(size, most, device=self.device)
        return torch.randint(1, most + 1, size, device=self.device, generator=generator)

    # --- weights that count --------------------------------------------------------------------------------
    @property
    def evaluated_weights(self) -> Float[Tensor, "S P"]:
        """The weights that count: their average where the run keeps one and it has begun."""
        if self.moments.average is None or self.done <= self._average_from:
            return self.weights
        return self.moments.average

    @property
    def _average_from(self) -> int:
        """The gradient step at which the average starts from the weights."""
        return self.config.curriculum_end if self.config.late_ema else 0

    @abstractmethod
    def evaluated(self) -> tuple[SeedModel, SeedWeights]:
        """The model with the weights that count, to be measured."""

    @abstractmethod
    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """The weights that count of the i-th seed, as its checkpoint holds them."""

    @abstractmethod
    def take_weights(self, i: int, weights: Mapping[str, Tensor]) -> None:
        """Put such weights, as `seed_weights` gives them, in the place of the i-th seed's."""

    # --- the state, as a checkpoint holds it ---------------------------------------------------------------
    def buffers(self) -> dict[str, Tensor]:
        """What a checkpoint has to hold beside weights and moments: changed in place."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Everything that a step changes: tensors that change in place, and a copy of the generators' states."""
        states = torch.stack([generator.get_state() for generator in self.generators])
        return {"weights": self.weights, **self.moments.tensors(), **self.buffers(), GENERATORS: states}

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Go back to where an engine was after `step` gradient steps; in place, as captured graphs need it."""
        with torch.no_grad():
            for name, place in self.state().items():
                place.copy_(tensors[name])
        for generator, state in zip(self.generators, tensors[GENERATORS], strict=True):
            generator.set_state(state.clone())  # rows of a file need not be aligned
        self.done = step

    def begin_from(self, weights: Sequence[Mapping[str, Tensor]], step: int) -> None:
        """Go to `step` before any has been taken, with these weights of the seeds and fresh moments."""
        with torch.no_grad():
            for i, own in enumerate(weights):
                self.take_weights(i, own)
            if self.moments.average is not None:
                self.moments.average.copy_(self.weights)
        self.done = step

    def check(self, wanted: Mapping[str, Tensor], metadata: Metadata, shapes: Shapes) -> None:
        """Raise unless a checkpoint was made on such a device, and has the shapes of the `wanted` tensors."""
        here, there = self.device.type, metadata.get("device", "")
        if there not in ("cpu", "cuda"):
            raise InputError("it does not say on which device it was made")
        if there != here:
            raise Elsewhere(f"it was made on {there!r}; go on there, not on {here!r}")
        check_fit(shapes, {name: tuple(tensor.shape) for name, tensor in wanted.items()})

    def verify(self, tensors: Mapping[str, Tensor]) -> None:
        """Raise unless tensors of the right shapes are of the right types, and generators can go on from theirs."""
        wanted = self.state()
        for name, tensor in tensors.items():
            dtype = wanted[name].dtype if name in wanted else torch.float32
            if tensor.dtype != dtype:
                raise InputError(f"its {name!r} is of type {tensor.dtype}, not {dtype}")
        for state in tensors[GENERATORS]:
            try:
                torch.Generator(self.device).set_state(state.clone())
            except RuntimeError:
                raise InputError("the states of its random generators are damaged") from None


# --- several processes that train one run together --------------------------------------------------------------
# Under torchrun every process draws the same batch from the same generators and computes some of its rows; gradients
# are added up, so that each process takes the same step, the step that one process alone would take. Every process then
# knows the same weights and readings; the first one, the leader, decides when to stop, and it alone writes files.
#
#     rows of a batch, sorted by T      0  1  2  3  4  5  6  7
#     with two processes                a  b  a  b  a  b  a  b      about equally many loop steps for each

T = TypeVar("T")


class World:
    """One process, which computes everything itself."""

    rank = 0
    size = 1

    @property
    def rows(self) -> slice:
        """Which rows of a batch this process computes."""
        return slice(self.rank, None, self.size)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor."""
        return tensor

    def join(self, mine: Bool[Tensor, "S b"], count: int) -> Bool[Tensor, "S B"]:
        """What every process found for its rows, as one batch of `count` rows."""
        return mine

    def from_leader(self, ask: Callable[[], T]) -> T:
        """What `ask` gives in the first process, known to all; so is its complaint, if it raises one."""
        return ask()

    def close(self) -> None:
        """Parts from the others."""


class Processes(World):
    """One of several processes that torchrun has started."""

    def __init__(self, device: torch.device) -> None:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._control = dist.new_group(backend="gloo")  # for what is said between steps, not on the device

    def sum(self, tensor: Tensor) -> Tensor:
        """Added up in place, with the same result in every process."""
        dist.all_reduce(tensor)
        return tensor

    def join(self, mine: Bool[Tensor, "S b"], count: int) -> Bool[Tensor, "S B"]:
        """Each process fills in its rows."""
        whole = mine.new_zeros(mine.shape[0], count, dtype=torch.float32)
        whole[:, self.rows] = mine.float()
        return self.sum(whole).bool()

    def from_leader(self, ask: Callable[[], T]) -> T:
        """Asks in the first process only."""
        box: list[Any] = [None, None]
        if self.rank == 0:
            try:
                box[0] = ask()
            except InputError as error:
                box[1] = str(error)
        dist.broadcast_object_list(box, src=0, group=self._control)
        if box[1] is not None:
            raise InputError(box[1])
        return box[0]  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the group."""
        dist.destroy_process_group()


def find_world(
    device: torch.device, environment: Mapping[str, str] = os.environ
) -> tuple[World, torch.device]:
    """The world torchrun describes in the environment, and this process's own device."""
    size = environment.get("WORLD_SIZE", "1")
    if size == "1":
        return World(), device
    local = environment.get("LOCAL_RANK", "")
    if not (size.isdecimal() and local.isdecimal()):
        raise InputError(f"WORLD_SIZE={size[:20]!r} and LOCAL_RANK={local[:20]!r} are not what torchrun sets")
    if device.type == "cuda":
        if int(local) >= torch.cuda.device_count():
            there = torch.cuda.device_count()
            raise InputError(f"process {local} finds {there} CUDA devices here: start one a device")
        device = torch.device("cuda", int(local))
        torch.cuda.set_device(device)
    return Processes(device), device


# --- seeds that diverge ----------------------------------------------------------------------------------------
# A seed whose gradient is no longer finite stops by itself in the optimiser, before that step spoils it.
# A seed whose loss stays far above that of guessing is stopped here, and gets back the weights it had when its
# loss was last sane. The other seeds train on untouched.

FAR = 2.0  # times the loss of guessing every token with equal chances
PATIENCE = 200  # gradient steps that it has to last
KEEPS = "it keeps the weights from before that"


class Watch:
    """Looks at every report and stops the seeds that diverge."""

    def __init__(self, engine: TrainingEngine) -> None:
        self.engine, self.seeds = engine, engine.config.seeds
        self.limit = FAR * math.log(engine.config.model.vocab)
        self.stopped: dict[int, str] = {}  # seed → why
        self._above = [0] * len(self.seeds)  # gradient steps each loss has been too high
        self._good: Float[Tensor, "S P"] = engine.evaluated_weights.clone()

    @property
    def all_stopped(self) -> bool:
        """Whether all seeds have stopped."""
        return len(self.stopped) == len(self.seeds)

    def look(self, losses: Sequence[float | None], alive: Sequence[bool], steps: int) -> list[int]:
        """Takes in the mean losses of the last `steps` steps; returns the seeds that stopped since."""
        before = set(self.stopped)
        for i, (seed, loss) in enumerate(zip(self.seeds, losses, strict=True)):
            if seed in before:
                continue
            if not alive[i]:
                self.stopped[seed] = f"its gradient was no longer finite; {KEEPS}"
                continue
            sane = loss is not None and loss <= self.limit
            self._above[i] = 0 if sane else self._above[i] + steps
            if self._above[i] >= PATIENCE:
                self._give_back(i)
                far = f"above {self.limit:.2f}, {FAR:g} times that of guessing, for {self._above[i]} steps"
                self.stopped[seed] = f"its loss stayed {far}; {KEEPS}"
                self._above[i] = 0
        good = torch.tensor([above == 0 for above in self._above], device=self._good.device)
        torch.where(good[:, None], self.engine.evaluated_weights, self._good, out=self._good)
        return [seed for seed in self.stopped if seed not in before]

    def _give_back(self, i: int) -> None:
        moments = self.engine.moments
        moments.alive[i] = False
        for weights in (self.engine.weights, moments.average):
            if weights is not None:
                weights[i].copy_(self._good[i])

    def forget(self) -> None:
        """Take the present weights as good, whatever they were before."""
        self._good.copy_(self.engine.evaluated_weights)

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

    def restore(self, tensors: Mapping[str, Tensor], metadata: Metadata) -> None:
        """The inverse of `state`, once the engine itself is restored."""
        kept = self._kept(metadata)
        self.stopped = {int(seed): why for seed, why in kept["stopped"].items()}
        self._above = kept["above"]
        self.forget()
        for i in kept["good"]:
            self._good[i].copy_(tensors[f"good.{i}"])

    def _kept(self, metadata: Metadata) -> dict[str, Any]:
        """What `state` wrote, each part of the type it had."""
        told = serial.parse(metadata.get("watch", ""), "what it says of stopped seeds")
        kept: dict[str, Any] = told if isinstance(told, dict) else {}
        stopped: Any = kept.get("stopped")
        above: Any = kept.get("above")
        count = len(self.seeds)
        named = isinstance(stopped, dict) and stopped.keys() <= set(map(str, self.seeds))
        if not named or not all(isinstance(why, str) for why in stopped.values()):
            raise InputError("what it says of stopped seeds is damaged")
        if not _whole(above, PATIENCE) or len(above) != count:
            raise InputError("what it says of seeds that go wrong is damaged")
        usual = [i for i, steps in enumerate(above) if steps]  # all that older checkpoints held
        good = kept.get("good", usual)
        if not _whole(good, count) or len(set(good)) < len(good):
            raise InputError("what it says of good weights is damaged")
        return {"stopped": stopped, "above": above, "good": good}


def _whole(found: object, limit: int) -> bool:
    """Whether something read is a list of whole numbers from 0 up to a limit, which is not reached."""
    return isinstance(found, list) and all(type(i) is int and 0 <= i < limit for i in found)
