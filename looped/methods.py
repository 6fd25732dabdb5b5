"""Every method of the paper as a row of data, not a branch.

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

from collections import ChainMap
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from looped import registry
from looped.batches import Prediction
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


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("fop-loop-adaptive", "fop", adaptive=True),
        Method("fop-loop-adaptive-wo", "fop", adaptive=True, injection=False),
        Method("fop-loop-fixed", "fop", loops=None),
        Method("fop", "fop", depth=UNTIED),
        Method("fop-pause", "fop", depth=UNTIED, pause=PAUSES),
        Method("ntp", "ntp", depth=UNTIED),
        Method("ntp-pause", "ntp", depth=UNTIED, pause=PAUSES),
        Method("ntp-loop", "ntp", loops=20),
    )
}

BEYOND: dict[str, Method] = {
    method.name: method
    for method in (
        Method("ut", "ntp", adaptive=True, injection=False, universal=True, halting="act"),
        Method("pondernet", "ntp", adaptive=True, injection=False, universal=True, halting="ponder"),
    )
}  # the paper's other two systems: in no figure of the paper


registry.declare(
    "method", "looped.methods", "--method", "an object of looped.methods.Method", registry.object_of(Method),
    ChainMap(BEYOND, METHODS),
)  # fmt: skip


def get(name: str) -> Method:
    """The method of that name, as a run records it."""
    found: Method = registry.find("method", name)
    return found
