"""Rows of different sizes one after the other, so that nothing is computed for the padding of short ones.

    padded  [S, B, L]      a a a a        packed  [S, R]   a a a a b b c
                           b b · ·
                           c · · ·

Everything in a model but attention looks at one position at a time and does not care. Attention takes rows of one
size together (`runs`). A packing whose rows are all equally long is what `[S, B, L]` is anyway.

Shapes: S seeds, B rows, L positions of a padded row, R = Σ sizes, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, groupby

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """How many positions each row of a batch has."""

    sizes: tuple[int, ...]

    @staticmethod
    @lru_cache(maxsize=256)
    def padded(rows: int, size: int) -> Packing:
        """Rows that are all equally long."""
        return Packing((size,) * rows)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Where the rows before the first, second, … end: 0, then running sums of the sizes."""
        return tuple(accumulate(self.sizes, initial=0))

    @cached_property
    def even(self) -> bool:
        """Whether all rows are equally long."""
        return len(set(self.sizes)) <= 1

    def fills(self, size: int) -> bool:
        """Whether every row has so many positions."""
        return self.even and self.sizes[0] == size

    @cached_property
    def longest(self) -> int:
        """Positions of the longest row."""
        return max(self.sizes)

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Neighbours of one size: how many, and how long."""
        return tuple((len(list(rows)), size) for size, rows in groupby(self.sizes))

    def part(self, first: int, last: int) -> Packing:
        """The rows from `first` up to `last`."""
        return Packing(self.sizes[first:last])

    # --- between padded and packed -------------------------------------------------------------------------
    def pack(self, padded: Tensor) -> Tensor:
        """[…, B, L] to […, R]."""
        size = padded.shape[-1]
        if self.fills(size):
            return padded.flatten(-2)
        return padded.flatten(-2)[..., self._index(size, padded.device)]

    def wide(self, flat: Float[Tensor, "S n D"]) -> Float[Tensor, "S b l D"]:
        """Packed positions as a model takes them: whole rows if they are even, otherwise one long one."""
        if not self.even:
            return flat[:, None]
        s, n, d = flat.shape
        return flat.view(s, n // self.sizes[0], self.sizes[0], d)

    # --- from rows to positions and back -------------------------------------------------------------------
    def of_rows(self, rows: slice, device: torch.device) -> Int[Tensor, "n"]:
        """The positions of some rows."""
        chosen = range(len(self.sizes))[rows]
        places = [at for row in chosen for at in range(self.ends[row], self.ends[row + 1])]
        return torch.tensor(places, device=device)

    def spread(self, of_rows: Tensor) -> Tensor:
        """[S, B] to [S, R]: every position has what its row has."""
        if self.even:
            return of_rows[..., None].expand(-1, -1, self.sizes[0]).flatten(1)
        return of_rows[:, self._row_of(of_rows.device)]

    def total(self, of_positions: Float[Tensor, "S n"]) -> Float[Tensor, "S B"]:
        """The sum over each row's positions, of which the first n are given; 0 for rows of which there is none."""
        member = self._member(of_positions.device)[: of_positions.shape[1]]
        return of_positions @ member.to(of_positions.dtype)

    def norms(self, flow: Float[Tensor, "S n D"]) -> Float[Tensor, "S B"]:
        """The norm of each row as a whole, in fp32 or better; 0 for rows past the first n positions."""
        wide = flow.to(torch.promote_types(flow.dtype, torch.float32))
        return self.total(wide.square().sum(-1)).sqrt()

    # --- made once for each packing and device: a graph that is being captured may not ask the host ----------
    @lru_cache(maxsize=256)  # noqa: B019 - equal packings share what is kept, and few are alive
    def starts(self, device: torch.device) -> Int[Tensor, "B"]:
        """Where each row starts."""
        return torch.tensor(self.ends[:-1]).to(device)

    @lru_cache(maxsize=1024)  # noqa: B019
    def places(self, device: torch.device) -> Int[Tensor, "B 2"]:
        """Where each row starts and how many positions it has, as kernels read it."""
        rows = list(zip(self.ends[:-1], self.sizes, strict=True))
        return torch.tensor(rows, dtype=torch.int32, device=device)

    @lru_cache(maxsize=256)  # noqa: B019
    def _row_of(self, device: torch.device) -> Int[Tensor, "R"]:
        return torch.arange(len(self.sizes)).repeat_interleave(torch.tensor(self.sizes)).to(device)

    @lru_cache(maxsize=256)  # noqa: B019
    def _index(self, size: int, device: torch.device) -> Int[Tensor, "R"]:
        """Each packed position's place in padded rows of `size` positions."""
        places = [row * size + at for row, own in enumerate(self.sizes) for at in range(own)]
        return torch.tensor(places).to(device)

    @lru_cache(maxsize=64)  # noqa: B019
    def _member(self, device: torch.device) -> Float[Tensor, "R B"]:
        """1 where a position belongs to a row."""
        rows = torch.arange(len(self.sizes), device=device)
        return (self._row_of(device)[:, None] == rows).float()
