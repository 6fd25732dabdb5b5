"""The looped decoder as plain modules: configuration, attention, block, positions and halting heads."""

from looped.model.block import Block
from looped.model.config import ModelConfig
from looped.model.looped import LoopedTransformer

__all__ = ["Block", "LoopedTransformer", "ModelConfig"]
