"""Triton kernels for CUDA.

Every tensor is [S, rows, width] with contiguous rows and any stride between seeds, so that the pieces of a larger
buffer can be read and written in place; weights on their way into the loop and back have layers before the seeds.
"""

from looped.fast.kernels.attention import (
    LONGEST,
    WIDEST,
    attend,
    attention_backward,
    attention_forward,
    available,
    narrow_layer,
    suits,
    suits_narrow,
)
from looped.fast.kernels.rows import (
    boundary_backward,
    gelu_backward,
    gelu_forward,
    hold,
    inject_norm,
    input_backward,
    norm_backward,
    residual_norm,
)
from looped.fast.kernels.weights import adamw, fold, fold_backward

# fmt: off
__all__ = [
    "LONGEST", "WIDEST", "adamw", "attend", "attention_backward", "attention_forward", "available",
    "boundary_backward", "fold", "fold_backward", "gelu_backward", "gelu_forward", "hold", "inject_norm",
    "input_backward", "narrow_layer", "norm_backward", "residual_norm", "suits", "suits_narrow",
]
