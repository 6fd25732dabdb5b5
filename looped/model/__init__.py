"""The looped decoder and its relatives: configuration, weights with a seed axis, attention, block and loop."""

from looped.model import block
from looped.model.config import ModelConfig
from looped.model.loop import LoopedTransformer, Prepared
from looped.model.universal import UniversalTransformer

__all__ = ["LoopedTransformer", "ModelConfig", "Prepared", "UniversalTransformer", "build"]


def build(config: ModelConfig, linear: block.Linear = block.linear) -> LoopedTransformer:
    """The model that a configuration describes."""
    kind = UniversalTransformer if config.kind == "universal" else LoopedTransformer
    return kind(config, linear)
