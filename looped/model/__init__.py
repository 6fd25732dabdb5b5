"""The looped decoder: its configuration, positions and halting heads."""

from looped.model.config import ModelConfig

__all__ = ["ModelConfig"]
