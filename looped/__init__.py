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
    from looped.api import data, evaluate, register, train
    from looped.model.config import ModelConfig
    from looped.model.inside import trace_states
    from looped.model.looped import LoopedTransformer
    from looped.solve import load
    from looped.zoo import zoo

__version__ = "0.1.0"

__all__ = [
    "InputError", "LoopedTransformer", "ModelConfig", "__version__", "data", "evaluate", "load", "register",
    "trace_states", "train", "zoo",
]  # fmt: skip

# What the front door hands out from further up, imported when it is asked for.
_LATER = {
    "load": "looped.solve",
    "zoo": "looped.zoo",
    "train": "looped.api",
    "data": "looped.api",
    "evaluate": "looped.api",
    "register": "looped.api",
    "trace_states": "looped.model.inside",
    "LoopedTransformer": "looped.model.looped",
    "ModelConfig": "looped.model.config",
}


def __getattr__(name: str) -> object:
    """What is asked for by name: `looped.load`, `looped.train`, `looped.LoopedTransformer` and so on."""
    if name not in _LATER:
        raise AttributeError(f"module 'looped' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
