"""Every method of the paper as a row of data, not a branch; and how many loop steps a problem gets.

| method               | prediction | loops                  | distinct layers | input injection | pause tokens |
|----------------------|------------|------------------------|-----------------|-----------------|--------------|
| fop-loop-adaptive    | FOP        | T(n) of each problem   | the block's     | yes             | 0            |
| fop-loop-adaptive-wo | FOP        | T(n) of each problem   | the block's     | no              | 0            |
| fop-loop-fixed       | FOP        | the largest T trained  | the block's     | yes             | 0            |
| fop                  | FOP        | 1                      | 20 × the block's| –               | 0            |
| fop-pause            | FOP        | 1                      | 20 × the block's| –               | 20           |
| ntp                  | NTP        | 1                      | 20 × the block's| –               | 0            |
| ntp-pause            | NTP        | 1                      | 20 × the block's| –               | 20           |
| ntp-loop             | NTP        | 20                     | the block's     | yes             | 0            |

Beyond the paper's eight, the two systems of its Table 1 that it never ran (`looped.fast.universal`), which decide
themselves how often to loop, T(n) being only what they may not exceed:

| method    | prediction | loops                          | distinct layers                  | halting             |
|-----------|------------|--------------------------------|----------------------------------|---------------------|
| ut        | NTP        | each position's own, to T(n)   | an encoder's and a decoder's block | ACT, per position   |
| pondernet | NTP        | each problem's own, to T(n)    | an encoder's and a decoder's block | PonderNet's node    |

The paper does not say whether NTP-Loop injects its input; we do, which can only help that baseline.
"""

from __future__ import annotations

import re
from collections import ChainMap
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from looped import registry
from looped.batches import Prediction
from looped.errors import InputError
from looped.model.halting import Halting
from looped.tasks.base import Task

UNTIED = 20  # how many blocks deep the paper's models without weight tying are
PAUSES = 20  # pause tokens of the paper's pause methods


@dataclass(frozen=True)
class Method:
    """One way to train and run a model on a task."""

    name: str
    prediction: Prediction
    adaptive: bool = False  # every problem runs for its own T(n)
    loops: int | None = 1  # loop steps when not adaptive; None: the largest T of the training lengths
    depth: int = 1  # distinct layers, in blocks of the looped method
    injection: bool = True  # the input is added to the state at every step
    pause: int = 0  # pause tokens between question and answer
    universal: bool = False  # an encoder and a decoder (`looped.fast.universal`) instead of a decoder alone
    halting: Halting = "none"  # how the method itself decides when to stop

    def steps(self, task: Task, own: Int[Tensor, "*B"], max_length: int) -> Int[Tensor, "*B"]:
        """Loop steps for problems that need `own` steps, in a model trained up to `max_length`."""
        if self.adaptive:
            return own
        fixed = self.loops if self.loops is not None else largest_steps(task, max_length)
        return torch.full_like(own, fixed)


def largest_steps(task: Task, max_length: int) -> int:
    """The most loop steps any problem up to `max_length` needs."""
    variants = torch.arange(task.variants)
    return int(task.steps(torch.full_like(variants, max_length), variants).max())


def _by_name(*methods: Method) -> dict[str, Method]:
    return {method.name: method for method in methods}


METHODS = _by_name(
    Method("fop-loop-adaptive", "fop", adaptive=True),
    Method("fop-loop-adaptive-wo", "fop", adaptive=True, injection=False),
    Method("fop-loop-fixed", "fop", loops=None),
    Method("fop", "fop", depth=UNTIED),
    Method("fop-pause", "fop", depth=UNTIED, pause=PAUSES),
    Method("ntp", "ntp", depth=UNTIED),
    Method("ntp-pause", "ntp", depth=UNTIED, pause=PAUSES),
    Method("ntp-loop", "ntp", loops=20),
)
BEYOND = _by_name(  # the paper's other two systems: in no figure of the paper
    Method("ut", "ntp", adaptive=True, injection=False, universal=True, halting="act"),
    Method("pondernet", "ntp", adaptive=True, injection=False, universal=True, halting="ponder"),
)


registry.declare(
    "method", "looped.methods", "--method", "an object of looped.methods.Method", registry.object_of(Method),
    ChainMap(BEYOND, METHODS),
)  # fmt: skip


def get(name: str) -> Method:
    """The method of that name, as a run records it."""
    found: Method = registry.find("method", name)
    return found


# --- loop steps -------------------------------------------------------------------------------------------------

LOOPS_FORM = re.compile(
    r"(?P<times>\d{0,4})(?P<base>[Tq])(\+(?P<plus>\d{1,4})|/(?P<over>[1-9]\d{0,3})|\.\.(?P<upto>[1-9]\d{0,3})(?P=base))?"
)
MOST_LOOPS = 4096  # a constant number of loop steps


@dataclass(frozen=True)
class Loops:
    """Loop steps of a problem as a function of its T(n) and of its question's q tokens.

    | rule             | loop steps                                             | needs T(n)   |
    |------------------|--------------------------------------------------------|--------------|
    | `T`              | T(n), as in the paper                                  | yes          |
    | `T+k` `kT` `T/k` | T(n) + k, k · T(n), T(n) / k rounded up                | yes, wrongly |
    | `k`              | k, whatever the problem                                | no           |
    | `q` `kq` `kq/m`  | as many as the question has tokens, or k/m times that  | no           |
    | `jq..kq`         | drawn evenly from j · q up to k · q, for each problem  | no           |
    | `jT..kT`         | drawn evenly from j · T(n) up to k · T(n)              | yes          |

    Copy of `1 0 1` has q = 3 and, under `q..2q`, is asked for its answer after 3, 4, 5 or 6 steps: it has to be held.
    """

    base: Literal["T", "q", "constant"] = "T"
    times: int = 1
    over: int = 1
    plus: int = 0
    upto: int = 0  # the other end of a range, in times; 0: no range

    @property
    def plain(self) -> bool:
        """Whether it is T(n) itself."""
        return self == PLAIN

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


def parse_loops(text: str) -> Loops:
    """The rule a text names."""
    if text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= MOST_LOOPS:
        return Loops("constant", times=int(text))
    if found := LOOPS_FORM.fullmatch(text):
        numbers = {name: int(found[name]) for name in ("times", "over", "plus", "upto") if found[name]}
        rule = Loops("T" if found["base"] == "T" else "q", **numbers)
        shifted = rule.base == "q" and rule.plus > 0
        if rule.times >= 1 and (rule.upto == 0 or rule.times < rule.upto) and not shifted:
            return rule
    raise InputError(
        f"loop steps are told as T, T+1, 2T, T/2, 16, q, 2q, 3q/2, q..2q or T..2T (T: the task's own, q: the "
        f"question's tokens, a number: up to {MOST_LOOPS}), not {text[:20]!r}"
    )
