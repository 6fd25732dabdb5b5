"""Rows of different lengths in one tensor: left-aligned, padded on the right. Knows no task.

Every function has fixed shapes and asks the device for nothing, so that a sampler can live in a CUDA graph.

    values     1 0 1 . .     lengths 3      `.` stands for anything: what lies past a row's length is not read
    filled     1 0 1 # #     with `#` as the padding
    mirrored   1 0 1 # #     the row's own part turned round

Shapes: B rows, N positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def within(lengths: Int[Tensor, "B"], size: int) -> Bool[Tensor, "B size"]:
    """Which of `size` positions lie inside each row's own length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def filled(values: Int[Tensor, "B N"], lengths: Int[Tensor, "B"], padding: int) -> Int[Tensor, "B N"]:
    """The same rows, with `padding` past each row's length."""
    return values.masked_fill(~within(lengths, values.shape[1]), padding)


def mirrored(values: Int[Tensor, "B N"], lengths: Int[Tensor, "B"]) -> Int[Tensor, "B N"]:
    """Each row's own part turned round, still left-aligned; anything may lie past its length."""
    places = torch.arange(values.shape[1], device=values.device)
    return values.gather(1, (lengths[:, None] - 1 - places).clamp(min=0))


def joined(
    parts: Sequence[tuple[Int[Tensor, "B _"], Int[Tensor, "B"]]], size: int, padding: int
) -> Int[Tensor, "B size"]:
    """Rows of several (values, lengths) one after the other: `1 0 .` and `+` and `1 1 .` to `1 0 + 1 1 #`."""
    start = torch.zeros_like(parts[0][1])
    keep, target, values = [], [], []
    for part, lengths in parts:
        keep.append(within(lengths, part.shape[1]))
        target.append(start[:, None] + torch.arange(part.shape[1], device=part.device))
        values.append(part)
        start = start + lengths
    return _placed(torch.cat(values, 1), torch.cat(target, 1), torch.cat(keep, 1), size, padding)


def compacted(
    values: Int[Tensor, "B N"], keep: Bool[Tensor, "B N"], size: int, padding: int
) -> Int[Tensor, "B size"]:
    """The kept values of each row, moved left without gaps."""
    return _placed(values, keep.long().cumsum(1) - 1, keep, size, padding)


def _placed(
    values: Int[Tensor, "B N"],
    target: Int[Tensor, "B N"],
    keep: Bool[Tensor, "B N"],
    size: int,
    padding: int,
) -> Int[Tensor, "B size"]:
    """Kept values at their target positions; the rest goes to a spare last column that is cut off."""
    out = values.new_full((values.shape[0], size + 1), padding)
    return out.scatter_(1, torch.where(keep, target, size), values)[:, :size]
