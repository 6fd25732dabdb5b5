"""The fast engine: many seeds as one computation, weights stacked on a leading axis, fused kernels on CUDA."""

from looped.fast import layer_ops
from looped.fast.stacked import Prepared, StackedTransformer
from looped.fast.universal import StackedUniversal
from looped.model.config import ModelConfig

__all__ = ["Prepared", "StackedTransformer", "StackedUniversal", "build"]


def build(config: ModelConfig, linear: layer_ops.Linear = layer_ops.linear) -> StackedTransformer:
    """The stacked model that a configuration describes."""
    kind = StackedUniversal if config.kind == "universal" else StackedTransformer
    return kind(config, linear)
