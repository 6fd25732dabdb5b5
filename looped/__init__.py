"""Looped Transformers for length generalization: state a problem, loop one block, ask for longer ones."""

from looped.errors import InputError

__version__ = "0.1.0"

__all__ = ["InputError", "__version__"]
