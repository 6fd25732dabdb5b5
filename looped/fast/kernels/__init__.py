"""Triton kernels for CUDA.

Every tensor is [S, rows, width] with contiguous rows and any stride between seeds, so that the pieces of a larger
buffer can be read and written in place; weights on their way into the loop and back have layers before the seeds.
"""

# fmt: off
# isort: off
from looped.fast.kernels.attention import (
    LONGEST, attend, attention_backward, attention_forward, available, knows, narrow_layer, suits, suits_narrow,
)
from looped.fast.kernels.passes import (
    adamw, boundary_backward, fold, fold_backward, gelu_backward, gelu_forward, hold, inject_norm, input_backward,
    norm_backward, residual_norm,
)

__all__ = [
    "LONGEST", "adamw", "attend", "attention_backward", "attention_forward", "available",
    "boundary_backward", "fold", "fold_backward", "gelu_backward", "gelu_forward", "hold", "inject_norm",
    "input_backward", "knows", "narrow_layer", "norm_backward", "residual_norm", "suits", "suits_narrow",
]
