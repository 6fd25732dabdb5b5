"""Matrix products on a CPU in fp32 by oneDNN, where it is faster than what torch takes.

For fp32 on a CPU torch calls MKL, which to judge by its rate does not use AVX-512 on AMD's processors: 115 GFLOP/s per
core of an EPYC that has it, where oneDNN computes 250. oneDNN is in torch's x86 builds too and generates its code for
the processor that it finds; on an EPYC without AVX-512 the two were alike. Torch has no setting that chooses it for
fp32, so this calls the operation that torch's compiler makes of a linear layer. That operation knows neither stacks nor
gradients: a stack is multiplied seed by seed, and the callers of `multiply` write gradients out.

Shapes: S seeds, N positions, I and O numbers before and after a product.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

# Multiplications of one seed's product from which this pays: a call of oneDNN takes 15 µs before it starts to compute,
# and gradients that are written out in Python take some more.
SMALLEST = 1 << 23


@cache
def available() -> bool:
    """Whether this build of torch has the operation."""
    return torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def suits(x: Float[Tensor, "S N I"], weight: Float[Tensor, "S I O"]) -> bool:
    """Whether oneDNN can compute x·W, and sooner."""
    fp32 = x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    return fp32 and x.shape[1] * weight[0].numel() >= SMALLEST and available()


def multiply(
    x: Float[Tensor, "S N I"], weight: Float[Tensor, "S I O"], bias: Float[Tensor, "S 1 O"] | None = None
) -> Float[Tensor, "S N O"]:
    """x·W, or x·W + b, by the faster library; without gradients."""
    if not suits(x, weight):
        return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias, x, weight)
    biases = [None] * len(x) if bias is None else bias[:, 0]
    of_seeds = [
        torch.ops.mkldnn._linear_pointwise(rows, matrix.T, own, "none", [], "")
        for rows, matrix, own in zip(x, weight, biases, strict=True)
    ]
    return of_seeds[0][None] if len(of_seeds) == 1 else torch.stack(of_seeds)
