"""What samplers are made of: input distributions, and rows of different lengths. Knows nothing of any task.

A model that is right on even draws may still fail on rare inputs, so every task can also be sampled from

    uniform    every symbol equally likely: the paper's distribution, for training and for tests
    zeros      0 0 0 0 0
    ones       1 1 1 1 1
    repeated   one random symbol over and over, drawn anew for each number of a question
    mixed      every question has its own share of ones, from none to all (unique set: its own number of symbols)
    p=0.05     each bit is 1 with this probability; any number from 0 to 1 will do
    carry      (addition, multiplication) a carry born at the lowest place travels to the highest
    no-carry   (the same) every place would pass a carry on, but none is ever born
    distinct   (unique set) all symbols different, as far as the alphabet goes
    few        (unique set) three symbols at most
    mixed+few  each question from one of those named, evenly; any number of them

The first six are drawn here; the others belong to the structure of one or two tasks and are drawn there.
Shapes: B rows, N digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

Ids = Int[Tensor, "B N"]
Digits = Int[Tensor, "B _"]
Sizes = Int[Tensor, "B"]
Flags = Bool[Tensor, "B N"]

BITS = ("0", "1")
UNIFORM = "uniform"
SHARES = ("p=0.05", "p=0.2", "p=0.8", "p=0.95")
BIT_FAMILIES: tuple[str, ...] = (UNIFORM, "zeros", "ones", "repeated", "mixed", *SHARES)
CARRY_FAMILIES = ("carry", "no-carry")
SYMBOL_FAMILIES = (UNIFORM, "repeated", "mixed")  # of more than two symbols


def uniform(rows: int, size: int, generator: Generator, symbols: int = 2) -> Ids:
    """Every one of `symbols` symbols equally likely, everywhere."""
    return torch.randint(0, symbols, (rows, size), generator=generator, device=generator.device)


def repeated(rows: int, size: int, generator: Generator, symbols: int = 2) -> Ids:
    """One random symbol a row, at every position."""
    return uniform(rows, 1, generator, symbols).repeat(1, size)


def draw_bits(family: str, rows: int, size: int, generator: Generator) -> Ids:
    """Bits of one of the distributions in `BIT_FAMILIES`, on the generator's device."""
    device = generator.device
    if family in ("zeros", "ones"):
        return torch.full((rows, size), int(family == "ones"), device=device)
    if family in (UNIFORM, "repeated"):
        return (uniform if family == UNIFORM else repeated)(rows, size, generator)
    share: Tensor | float | None = probability(family)
    if family == "mixed":
        share = torch.rand(rows, 1, generator=generator, device=device)
    assert share is not None, f"{family} is no family of bits: check_family comes first"
    return (torch.rand(rows, size, generator=generator, device=device) < share).long()


def draw_symbols(family: str, rows: int, size: int, generator: Generator, symbols: int = 2) -> Ids:
    """Symbols of one of `BIT_FAMILIES`, or of `SYMBOL_FAMILIES` where there are more than two."""
    if symbols == 2:
        return draw_bits(family, rows, size, generator)
    if family == "repeated":
        return repeated(rows, size, generator, symbols)
    if family == "mixed":  # every question has its own share of each symbol, all shares equally likely
        shares = -torch.rand(rows, symbols, generator=generator, device=generator.device).clamp(1e-6).log()
        bounds = (shares / shares.sum(1, keepdim=True)).cumsum(1)[:, None, :-1]
        return (torch.rand(rows, size, 1, generator=generator, device=generator.device) > bounds).sum(-1)
    return uniform(rows, size, generator, symbols)


def drawn_below(limits: Int[Tensor, "*B"], generator: Generator) -> Int[Tensor, "*B"]:
    """Whole numbers from 0 up to, and without, each limit, all equally likely."""
    u = torch.rand(limits.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return torch.minimum((u * limits).long(), limits - 1)


def probability(family: str) -> float | None:
    """The probability of a 1 in a distribution written `p=0.3`; None for any other text."""
    if not family.startswith("p="):
        return None
    try:
        p = float(family.removeprefix("p="))
    except ValueError:
        return None
    return p if 0 <= p <= 1 else None


def is_known(family: str, families: tuple[str, ...]) -> bool:
    """Whether a task with these can draw this one: listed, or another `p=` where one is, or several by `+`."""
    shares = any(name.startswith("p=") for name in families)
    return all(name in families or (shares and probability(name) is not None) for name in family.split("+"))


Draw = Callable[[str], tuple[Tensor, ...]]


def blended(family: str, rows: int, generator: Generator, draw: Draw) -> tuple[Tensor, ...]:
    """What `draw` gives for a distribution, or for several joined by `+`: every row from one of them."""
    drawn = [draw(name) for name in family.split("+")]
    if len(drawn) == 1:
        return drawn[0]
    row = torch.arange(rows, device=generator.device)
    which = torch.randint(len(drawn), (rows,), generator=generator, device=generator.device)
    return tuple(torch.stack(each)[which, row] for each in zip(*drawn, strict=True))


# --- rows of different lengths in one tensor -------------------------------------------------------------------
# Left-aligned, padded on the right. Every function has fixed shapes and asks the device for nothing, so that a sampler
# can live in a CUDA graph.
#
#     values     1 0 1 . .     lengths 3      `.` stands for anything: what lies past a row's length is not read
#     filled     1 0 1 # #     with `#` as the padding
#     mirrored   1 0 1 # #     the row's own part turned round


def within(lengths: Sizes, size: int) -> Bool[Tensor, "B size"]:
    """Which of `size` positions lie inside each row's own length."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def filled(values: Ids, lengths: Sizes, padding: int) -> Ids:
    """The same rows, with `padding` past each row's length."""
    return values.masked_fill(~within(lengths, values.shape[1]), padding)


def mirrored(values: Ids, lengths: Sizes) -> Ids:
    """Each row's own part turned round, still left-aligned; anything may lie past its length."""
    places = torch.arange(values.shape[1], device=values.device)
    return values.gather(1, (lengths[:, None] - 1 - places).clamp(min=0))


def joined(parts: Sequence[tuple[Digits, Sizes]], size: int, padding: int) -> Int[Tensor, "B size"]:
    """Rows of several (values, lengths) one after the other: `1 0 .` and `+` and `1 1 .` to `1 0 + 1 1 #`."""
    start = torch.zeros_like(parts[0][1])
    keep, target, values = [], [], []
    for part, lengths in parts:
        keep.append(within(lengths, part.shape[1]))
        target.append(start[:, None] + torch.arange(part.shape[1], device=part.device))
        values.append(part)
        start = start + lengths
    return _placed(torch.cat(values, 1), torch.cat(target, 1), torch.cat(keep, 1), size, padding)


def compacted(values: Ids, keep: Flags, size: int, padding: int) -> Int[Tensor, "B size"]:
    """The kept values of each row, moved left without gaps."""
    return _placed(values, keep.long().cumsum(1) - 1, keep, size, padding)


def _placed(values: Ids, target: Ids, keep: Flags, size: int, padding: int) -> Int[Tensor, "B size"]:
    """Kept values at their target positions; the rest goes to a spare last column that is cut off."""
    out = values.new_full((values.shape[0], size + 1), padding)
    return out.scatter_(1, torch.where(keep, target, size), values)[:, :size]
