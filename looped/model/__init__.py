"""The looped decoder: configuration, weights with a seed axis, attention, block and loop."""

from looped.model.config import ModelConfig
from looped.model.loop import LoopedTransformer, Prepared

__all__ = ["LoopedTransformer", "ModelConfig", "Prepared"]
