"""Looped Transformers for length generalization: state a problem, loop one block, hold past the training length."""

from looped.errors import InputError

__version__ = "0.1.0"

__all__ = ["InputError", "__version__"]
