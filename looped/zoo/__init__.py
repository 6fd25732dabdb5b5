"""The shipped models: weights as `NAME.safetensors`, a card beside each as `NAME.json`. No torch to list them.

>>> import looped
>>> looped.zoo()                                    # a table of what is there
>>> looped.load("copy")                             # one of them, ready to answer

`python -m looped.zoo add RUN --name NAME` puts a trained run's best seed here. The folder is a package and what
`looped.zoo()` calls at once, so the module itself can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType

from looped.zoo.card import Card, Measured, Origin
from looped.zoo.listing import Zoo, zoo
from looped.zoo.shelf import card, cards, find, names, path

__all__ = ["Card", "Measured", "Origin", "Zoo", "card", "cards", "find", "names", "path", "zoo"]


class _Callable(ModuleType):
    def __call__(self) -> Zoo:
        return zoo()


sys.modules[__name__].__class__ = _Callable
