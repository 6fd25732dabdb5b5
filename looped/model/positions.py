"""How a model may tell positions apart, beyond its causal mask. The paper uses none.

| kind       | what it does                                                            | acts on      |
|------------|-------------------------------------------------------------------------|--------------|
| none       | nothing: order is learned from the causal mask alone                     | –            |
| start      | a trained vector at the first position, as a start token would have       | embedding    |
| rotary     | turns queries and keys by an angle that grows with the position          | q, k         |
| alibi      | a penalty on attention that grows linearly with distance, a slope a head  | scores       |
| learned    | a trained vector per position, added to the input                        | embedding    |
| randomised | the same table, rows drawn in order from a longer range (Ruoss et al., 2023)    | embedding    |

Without any of the embedding's kinds, `1 1 1 1 >` and `1 1 1 >` differ in nothing but how many equal keys `>` sees: a
mean of equal values is that value, whatever their number and weights. Only T(n) can then tell the two apart well, and
a model trained without it needs a start.

Three small functions, one for each place where a kind may act; a kind that does not act there returns its input.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.errors import InputError
from looped.model.config import ModelConfig


def places(
    config: ModelConfig, rows: int, size: int, device: torch.device, generator: torch.Generator | None = None
) -> Int[Tensor, "rows size"]:
    """The position number of every token; randomised ones are drawn from `generator`, or spread evenly without."""
    check_size(config, size)
    if config.positions != "randomised":
        return torch.arange(size, device=device).expand(rows, size)
    if generator is None:
        even = torch.arange(size, device=device) * config.max_positions // size
        return even.expand(rows, size)
    keys = torch.rand(rows, config.max_positions, device=device, generator=generator)
    return keys.topk(size, dim=1).indices.sort(dim=1).values


def check_size(config: ModelConfig, size: int) -> None:
    """Raises if a row is longer than the position table."""
    if config.positions in ("learned", "randomised") and size > config.max_positions:
        raise InputError(
            f"rows of {size} tokens are longer than this model's table of {config.max_positions} positions"
        )


def embed(
    config: ModelConfig, table: Float[Tensor, "S M D"], at: Int[Tensor, "B L"]
) -> Float[Tensor, "S B L D"]:
    """What is added to the embedded input."""
    if config.positions == "start":
        return table[:, None] * (at == 0)[..., None]
    return table[:, at]


def turn(config: ModelConfig, x: Float[Tensor, "N H L d"], first: int = 0) -> Float[Tensor, "N H L d"]:
    """Queries or keys, turned by their position where the kind is rotary; `first` is the first token's position."""
    if config.positions != "rotary":
        return x
    half = x.shape[-1] // 2
    rate = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(first, first + x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * rate
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def bias(
    config: ModelConfig, queries: int, keys: int, device: torch.device
) -> Float[Tensor, "H Lq Lk"] | None:
    """What is added to attention scores, or None; the last query stands at the last key."""
    if config.positions != "alibi":
        return None
    slope = 2.0 ** (-8.0 * torch.arange(1, config.heads + 1, device=device) / config.heads)
    query = torch.arange(keys - queries, keys, device=device)[:, None]
    distance = (query - torch.arange(keys, device=device)).clamp(min=0)
    return -slope[:, None, None] * distance
