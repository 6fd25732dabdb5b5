"""Input distributions: ways to draw the digits of a question beyond evenly. Knows nothing of any task.

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

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor

BITS = ("0", "1")
UNIFORM = "uniform"
BIT_FAMILIES: tuple[str, ...] = (
    UNIFORM,
    "zeros",
    "ones",
    "repeated",
    "mixed",
    "p=0.05",
    "p=0.2",
    "p=0.8",
    "p=0.95",
)
CARRY_FAMILIES = ("carry", "no-carry")

Draw = Callable[[int, int, torch.Generator], Tensor]


def uniform(rows: int, size: int, generator: torch.Generator, symbols: int = 2) -> Int[Tensor, "B N"]:
    """Every one of `symbols` symbols equally likely, everywhere."""
    return torch.randint(0, symbols, (rows, size), generator=generator, device=generator.device)


def repeated(rows: int, size: int, generator: torch.Generator, symbols: int = 2) -> Int[Tensor, "B N"]:
    """One random symbol a row, at every position."""
    return uniform(rows, 1, generator, symbols).repeat(1, size)


def _zeros(rows: int, size: int, generator: torch.Generator) -> Int[Tensor, "B N"]:
    return torch.zeros(rows, size, dtype=torch.long, device=generator.device)


def _ones(rows: int, size: int, generator: torch.Generator) -> Int[Tensor, "B N"]:
    return torch.ones(rows, size, dtype=torch.long, device=generator.device)


def _mixed(rows: int, size: int, generator: torch.Generator) -> Int[Tensor, "B N"]:
    share = torch.rand(rows, 1, generator=generator, device=generator.device)
    return (torch.rand(rows, size, generator=generator, device=generator.device) < share).long()


_DRAWS: dict[str, Draw] = {
    UNIFORM: uniform,
    "zeros": _zeros,
    "ones": _ones,
    "repeated": repeated,
    "mixed": _mixed,
}


def draw_bits(family: str, rows: int, size: int, generator: torch.Generator) -> Int[Tensor, "B N"]:
    """Bits of one of the distributions in `BIT_FAMILIES`, on the generator's device."""
    if family in _DRAWS:
        return _DRAWS[family](rows, size, generator)
    p = probability(family)
    assert p is not None, f"{family} is no family of bits: check_family comes first"
    return (torch.rand(rows, size, generator=generator, device=generator.device) < p).long()


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
    any_share = any(name.startswith("p=") for name in families)
    return all(
        name in families or (any_share and probability(name) is not None) for name in family.split("+")
    )


def blended(
    family: str, rows: int, generator: torch.Generator, draw: Callable[[str], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """What `draw` gives for a distribution, or for several joined by `+`: every row from one of them."""
    drawn = [draw(name) for name in family.split("+")]
    if len(drawn) == 1:
        return drawn[0]
    row = torch.arange(rows, device=generator.device)
    which = torch.randint(len(drawn), (rows,), generator=generator, device=generator.device)
    return tuple(torch.stack(each)[which, row] for each in zip(*drawn, strict=True))
