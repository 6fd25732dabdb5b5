"""The shipped models: weights as `NAME.safetensors`, a card beside each as `NAME.json`. No torch to list them.

>>> import looped
>>> looped.zoo()                                    # a table of what is there
>>> looped.load("copy")                             # one of them, ready to answer

`python -m scripts.publish_model add RUN --name NAME` puts a trained run's best seed here. `looped.zoo` is this package
and the function `looped.zoo()` at once, so the module itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType

from looped.zoo.registry import Card, MeasuredAccuracy, Origin, Zoo, card, cards, find, names, path, zoo

__all__ = ["Card", "MeasuredAccuracy", "Origin", "Zoo", "card", "cards", "find", "names", "path", "zoo"]


class _Callable(ModuleType):
    def __call__(self) -> Zoo:
        return zoo()


sys.modules[__name__].__class__ = _Callable
