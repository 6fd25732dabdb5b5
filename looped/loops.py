"""How many loop steps a problem gets: the task's own T(n), a wrong number, or one that the question alone tells.

| rule           | loop steps                                                | needs T(n)   |
|----------------|-----------------------------------------------------------|--------------|
| `T`            | T(n), as in the paper                                     | yes          |
| `T+k` `kT` `T/k` | T(n) + k, k · T(n), T(n) / k rounded up                   | yes, wrongly |
| `k`            | k, whatever the problem                                   | no           |
| `q` `kq`       | as many as the question has tokens, or k times as many    | no           |
| `jq..kq`       | drawn evenly from j · q up to k · q, for each problem     | no           |
| `jT..kT`       | drawn evenly from j · T(n) up to k · T(n)                 | yes          |

Copy of `1 0 1` has q = 3 and, under `q..2q`, is asked for its answer after 3, 4, 5 or 6 steps: it has to be held.
Knows a task's sizes and nothing of training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from looped.errors import InputError
from looped.tasks.base import Task

FORM = re.compile(
    r"(?P<times>\d{0,4})(?P<base>[Tq])(\+(?P<plus>\d{1,4})|/(?P<over>[1-9]\d{0,3})|\.\.(?P<upto>[1-9]\d{0,3})(?P=base))?"
)
LARGEST = 4096  # a constant number of loop steps


@dataclass(frozen=True)
class Loops:
    """Loop steps of a problem as a function of its T(n) and of its question's q tokens."""

    base: Literal["T", "q", "constant"] = "T"
    times: int = 1
    over: int = 1
    plus: int = 0
    upto: int = 0  # the other end of a range, in times; 0: no range

    @property
    def plain(self) -> bool:
        """Whether it is T(n) itself."""
        return self == PLAIN

    @property
    def free(self) -> bool:
        """Whether the number of steps does not depend on T(n)."""
        return self.base != "T"

    def first(self, own: Int[Tensor, "*B"], tokens: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The fewest steps of problems with these T(n) and these many question tokens."""
        base = {"T": own, "q": tokens, "constant": torch.ones_like(own)}[self.base]
        return ((base * self.times + self.over - 1) // self.over + self.plus).clamp(min=1)

    def last(self, own: Int[Tensor, "*B"], tokens: Int[Tensor, "*B"]) -> Int[Tensor, "*B"]:
        """The most steps."""
        base = own if self.base == "T" else tokens
        return (base * self.upto).clamp(min=1) if self.upto else self.first(own, tokens)

    def draw(
        self, own: Int[Tensor, "B"], tokens: Int[Tensor, "B"], generator: torch.Generator
    ) -> Int[Tensor, "B"]:
        """The steps of each problem; nothing is drawn where there is nothing to choose."""
        low = self.first(own, tokens)
        if not self.upto:
            return low
        choices = self.last(own, tokens) - low + 1
        u = torch.rand(low.shape, device=low.device, generator=generator)
        return low + torch.minimum((u * choices).long(), choices - 1)

    def bounds(self, task: Task, own: Int[Tensor, "2"], longest: int) -> tuple[int, int]:
        """Bounds on the steps of problems with T(n) between two values and at most this length.

        How few tokens a question has is not known without it, so a rule of q is bounded by 1 from below.
        """
        tokens = torch.full_like(own, task.question_size(longest))
        low = 1 if self.base == "q" else int(self.first(own, tokens)[0])
        return low, int(self.last(own, tokens)[1])


PLAIN = Loops()


def parse(text: str) -> Loops:
    """The rule a text names."""
    if text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= LARGEST:
        return Loops("constant", times=int(text))
    found = FORM.fullmatch(text)
    rule = None
    if found:
        base: Literal["T", "q"] = "T" if found["base"] == "T" else "q"
        numbers = {name: int(found[name] or default) for name, default in _DEFAULTS.items()}
        rule = Loops(base, **numbers)
    ranged = rule is not None and (rule.upto == 0 or rule.times < rule.upto)
    shifted = rule is not None and rule.base == "q" and (rule.plus > 0 or rule.over > 1)
    if rule is None or rule.times < 1 or not ranged or shifted:
        raise InputError(
            f"loop steps are told as T, T+1, 2T, T/2, 16, q, 2q, q..2q or T..2T (T: the task's own, q: the question's "
            f"tokens, a number: up to {LARGEST}), not {text[:20]!r}"
        )
    return rule


_DEFAULTS = {"times": 1, "over": 1, "plus": 0, "upto": 0}
