"""The processes that train one run together, and what they have to tell each other.

Under torchrun every process draws the same batch from the same generators and computes some of its rows; the gradients
are added up, so that each process takes the same step, the step that one process alone would take. Every process then
knows the same weights and readings; the first one, the leader, decides when to stop, and it alone writes files.

    rows of a batch, sorted by T      0  1  2  3  4  5  6  7
    with two processes                a  b  a  b  a  b  a  b      about equally many loop steps for each

`World` is a process alone: every method is the identity. `NoOpRun` is the folder of a run to all but the leader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Bool
from torch import Tensor

from looped.errors import InputError
from looped.runs import Run
from looped.training.config import TrainConfig

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
        answer: T = box[0]
        return answer

    def close(self) -> None:
        """Ends the group."""
        dist.destroy_process_group()


def found(device: torch.device, environment: Mapping[str, str] = os.environ) -> tuple[World, torch.device]:
    """The world torchrun describes in the environment, and this process's own device."""
    size = environment.get("WORLD_SIZE", "1")
    if size == "1":
        return World(), device
    local = environment.get("LOCAL_RANK", "")
    if not (size.isdecimal() and local.isdecimal()):
        raise InputError(f"WORLD_SIZE={size[:20]!r} and LOCAL_RANK={local[:20]!r} are not what torchrun sets")
    if device.type == "cuda":
        if int(local) >= torch.cuda.device_count():
            raise InputError(
                f"process {local} of this machine finds {torch.cuda.device_count()} CUDA devices; start one a device"
            )
        device = torch.device("cuda", int(local))
        torch.cuda.set_device(device)
    return Processes(device), device


class NoOpRun(Run):
    """The folder of a run to all but the leader: takes what it is given to keep, and keeps nothing."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config

    def _nothing(self, *args: object, **kwargs: object) -> Any:
        """The leader does."""
        return []

    __exit__ = log = rewind = save_state = save_seed = _nothing  # only the leader reads a state
