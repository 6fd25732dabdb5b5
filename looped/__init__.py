"""Looped Transformers for length generalization: state a problem, loop one block, ask for longer ones.

>>> import looped
>>> model = looped.load("addition")
>>> model.solve("1011+0110")

Importing this is light: torch is loaded when a model is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from looped.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from looped.api import data, evaluate, register, train
    from looped.model.config import ModelConfig
    from looped.model.inside import trace_states
    from looped.model.looped import LoopedTransformer
    from looped.solve.solver import Solver
    from looped.zoo import Zoo

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "LoopedTransformer",
    "ModelConfig",
    "__version__",
    "data",
    "evaluate",
    "load",
    "register",
    "trace_states",
    "train",
    "zoo",
]

# What the front door hands out from further up, imported when it is asked for.
_HOMES = {"load": "looped.solve", "pick": "looped.devices", "zoo": "looped.zoo"}
_LATER = {
    "train": "looped.api",
    "data": "looped.api",
    "evaluate": "looped.api",
    "register": "looped.api",
    "trace_states": "looped.model.inside",
    "LoopedTransformer": "looped.model.looped",
    "ModelConfig": "looped.model.config",
}


def load(source: str | Path, device: str = "cpu") -> Solver:
    """A model ready to answer: a shipped name (`addition`), a run's folder, a checkpoint's file, a published model.

    A published model is its folder or `hub:owner/name`. `TASK-compiled` is the task's n-RASP-L program, compiled into
    weights on the spot. The device is cpu, cuda, cuda:N, or auto for a GPU where there is one.
    """
    where = import_module(_HOMES["pick"]).pick(device)
    solver: Solver = import_module(_HOMES["load"]).load(source, where)
    return solver


def zoo() -> Zoo:
    """The models that are shipped, with their cards; prints as a table."""
    shipped: Zoo = import_module(_HOMES["zoo"]).zoo()
    return shipped


def __getattr__(name: str) -> object:
    """What is asked for by name: `looped.train`, `looped.LoopedTransformer` and so on."""
    if name not in _LATER:
        raise AttributeError(f"module 'looped' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
