"""A model that says itself when it is done: the arithmetic of two published ways and one of ours, as pure functions.

Adaptive computation time (Graves, 2016; per position in the Universal Transformer) spends a probability of 1. Step n
takes p_n = σ(w·h_n + b) of it until less than ε is left; the step N at which that happens takes the rest, R:

    p          .3   .5   .4   …        at ε = .01: .3 + .5 + .4 ≥ .99, so N = 3 and R = 1 - .3 - .5 = .2
    weight     .3   .5   .2   0  …     the output is Σ weight_n · h_n, and what it costs is N + R = 3.2

PonderNet (Banino et al., 2021) reads λ_n = σ(w·h_n + b) as the chance to stop at step n, if not before:

    λ          .5   .5   .5            the last step allowed takes all that is left
    p          .5   .25  .25           the loss is Σ p_n · (loss of step n), plus a share of KL(p, a geometric law)

Ours reads one place: the end-of-question token, where the answer begins. σ(w·h + b) there is the chance that the
answer is there now, if it was not before; training says when it is (T(n)), and from the first step at which the chance
is above a half, the row's state stays as it is:

    σ          .1   .2   .9   …        trained for T = 3, it costs -log(.9 · .8 · .9) = .43
    state      h1   h2   h3   h3  …    more steps change nothing

`Gate` follows rows through a loop at inference. Knows nothing of blocks, tasks and training.
Shapes: S seeds, B rows, L positions, D width, T loop steps; `*P` is whatever halts on its own.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Halting = Literal["none", "act", "ponder", "eoq"]
Head = tuple[Tensor, ...]  # weight [S, 1, 1, D] and bias [S, 1, 1]
EPSILON = 0.01  # a position halts when less than this is left


def logits(head: Head, h: Float[Tensor, "S *P D"]) -> Float[Tensor, "S *P"]:
    """How much every position wants to halt, or every row by its state at one position: w·h + b."""
    weight, bias = head
    ones = [1] * (h.dim() - 2)
    return (h * weight.view(len(h), *ones, -1)).sum(-1) + bias.view(len(h), *ones)


def pooled(each: Float[Tensor, "S B L"], counted: Bool[Tensor, "#S B L"]) -> Float[Tensor, "S B"]:
    """The mean over the positions that count; the others, padding among them, have no say."""
    return (each * counted).sum(-1) / counted.sum(-1)


# --- adaptive computation time ------------------------------------------------------------------------------


class Act(NamedTuple):
    """Where adaptive computation time stands after some steps."""

    used: Float[Tensor, "*P"]  # probability spent so far; 1 where halted
    running: Bool[Tensor, "*P"]
    steps: Float[Tensor, "*P"]  # N, so far
    remainder: Float[Tensor, "*P"]  # R; 0 while running
    state: Float[Tensor, "*P D"]  # what the next step starts from: the last one, copied once halted
    output: Float[Tensor, "*P D"]  # Σ weight_n · h_n so far

    @property
    def cost(self) -> Float[Tensor, "*P"]:
        """What each place has cost: N + R. Its gradient flows through R alone, since N is a count."""
        return self.steps + self.remainder

    @property
    def read(self) -> Float[Tensor, "*P D"]:
        """The output if everything stopped here: what is left goes to the present state."""
        rest = torch.where(self.running, 1 - self.used, 0.0)
        return self.output + rest[..., None] * self.state


def act_start(h: Float[Tensor, "*P D"]) -> Act:
    """Nothing spent, every position running; `h` gives the shape."""
    none = torch.zeros_like(h[..., 0])
    return Act(none, torch.ones_like(none, dtype=torch.bool), none, none, h, torch.zeros_like(h))


def act_step(now: Act, h: Float[Tensor, "*P D"], p: Float[Tensor, "*P"], last: bool = False) -> Act:
    """After one more step that gave `h` and the halting probability `p`; at the `last` one every position halts."""
    enough = now.used + p >= 1 - EPSILON
    ends = now.running if last else now.running & enough
    rest = 1 - now.used
    weight = torch.where(ends, rest, torch.where(now.running, p, 0.0))
    return Act(
        used=now.used + weight,
        running=now.running & ~ends,
        steps=now.steps + now.running,
        remainder=torch.where(ends, rest, now.remainder),
        state=torch.where(now.running[..., None], h, now.state),
        output=now.output + weight[..., None] * h,
    )


# --- PonderNet ----------------------------------------------------------------------------------------------


def log_halting(wants: Float[Tensor, "*P T"]) -> Float[Tensor, "*P T"]:
    """log p_n of halting at step n, from w·h_n + b; the last step takes what is left, so that Σ p_n = 1."""
    on = F.logsigmoid(-wants)
    before = F.pad(on.cumsum(-1)[..., :-1], (1, 0))
    stop = torch.cat([F.logsigmoid(wants[..., :-1]), torch.zeros_like(wants[..., -1:])], dim=-1)
    return before + stop


def log_geometric(rate: float, steps: int, device: torch.device | str = "cpu") -> Float[Tensor, "T"]:
    """log of the geometric law of mean 1/rate, cut after `steps` steps and scaled to sum to 1."""
    at = torch.arange(steps, device=device, dtype=torch.float32)
    return torch.log_softmax(at * math.log1p(-rate), dim=0)


def log_speaking(wants: Float[Tensor, "*P T"]) -> Float[Tensor, "*P T+1"]:
    """The same without a step that has to take what is left: the last entry is the chance of never having halted."""
    return log_halting(F.pad(wants, (0, 1)))


def log_open_geometric(rate: float, steps: int, device: torch.device | str = "cpu") -> Float[Tensor, "T+1"]:
    """log of the geometric law of mean 1/rate up to `steps`, and of all that lies beyond in one."""
    at = torch.arange(steps + 1, device=device, dtype=torch.float32)
    beyond = at == steps
    return at * math.log1p(-rate) + torch.where(beyond, 0.0, math.log(rate))


def divergence(log_p: Float[Tensor, "*P T"], log_prior: Float[Tensor, "T"]) -> Float[Tensor, "*P"]:
    """KL(p, prior) in nats: 0 where they are equal."""
    return (log_p.exp() * (log_p - log_prior)).sum(-1)


def expected(losses: Float[Tensor, "*P T"], log_p: Float[Tensor, "*P T"]) -> Float[Tensor, "*P"]:
    """Σ p_n · loss_n for each example by itself; only then is anything averaged over examples."""
    return (log_p.exp() * losses).sum(-1)


# --- the end-of-question token -------------------------------------------------------------------------------


def eoq_of(counted: Bool[Tensor, "*B L"]) -> Int[Tensor, "*B"]:
    """Each row's first position that counts: its end-of-question token."""
    return counted.int().argmax(-1)


def at_eoq(x: Float[Tensor, "S B L D"], counted: Bool[Tensor, "#S B L"]) -> Float[Tensor, "S B D"]:
    """What stands at each row's end-of-question token."""
    eoq = eoq_of(counted)[..., None, None].expand(x.shape[0], -1, 1, x.shape[-1])
    return x.gather(2, eoq)[:, :, 0]


def eoq_cost(
    wants: Float[Tensor, "S R"], ends: Bool[Tensor, "S R"], running: Bool[Tensor, "S R"]
) -> Float[Tensor, "S R"]:
    """What a step adds to -log of the chance to halt where `ends` says; 0 for rows that are no longer running."""
    each = F.binary_cross_entropy_with_logits(wants.float(), ends.float(), reduction="none")
    return torch.where(running, each, 0.0)


# --- at inference -------------------------------------------------------------------------------------------


class Gate:
    """Follows rows through the loop: what is read after a step, what goes on, how surely each row has halted."""

    def __init__(self, kind: Halting, head: Head, counted: Bool[Tensor, "#S B L"] | None = None) -> None:
        self.kind, self.head, self.counted = kind, head, counted
        self.halted: Float[Tensor, "S B"] | None = None  # chance of having halted by now, if there is one
        self._act: Act | None = None
        self._on: Tensor | None = None  # log of the probability of not having halted, for PonderNet
        self._kept: Tensor | None = None  # the last state, for rows whose head has said that they are done

    def after(self, h: Float[Tensor, "S B L D"]) -> tuple[Tensor, Tensor]:
        """What is read after this step, and the state that the next one starts from."""
        if self.kind == "eoq" and self.counted is not None:
            says = (logits(self.head, at_eoq(h, self.counted)) > 0).to(h.dtype)
            if self._kept is not None and self.halted is not None:
                h = torch.where(self.halted[..., None, None] > 0, self._kept, h)
                says = torch.maximum(says, self.halted)
            self.halted, self._kept = says, h
            return h, h
        if self.kind in ("none", "eoq"):
            return h, h
        wants = logits(self.head, h)
        counted = torch.ones_like(wants[:1], dtype=torch.bool) if self.counted is None else self.counted
        if self.kind == "ponder":
            on = F.logsigmoid(-pooled(wants, counted))
            self._on = on if self._on is None else self._on + on
            self.halted = -torch.expm1(self._on)
            return h, h
        self._act = act_step(self._act or act_start(h), h, wants.sigmoid())
        self.halted = (~self._act.running | ~counted).all(-1).to(h.dtype)
        return self._act.read, self._act.state

    @property
    def finished(self) -> bool:
        """Whether no further step can change anything: every row has halted."""
        return self._kept is not None and self.halted is not None and bool((self.halted > 0).all())

    def keep(self, every: Int[Tensor, "S 1"], keep: Int[Tensor, "S R"]) -> None:
        """Goes on with some rows of each seed only."""
        if self.counted is not None:
            self.counted = self.counted.expand(len(every), -1, -1)[every, keep]
        if self._on is not None:
            self._on = self._on[every, keep]
        if self._kept is not None and self.halted is not None:
            self._kept, self.halted = self._kept[every, keep], self.halted[every, keep]
        if self._act is not None:
            self._act = Act(*(each[every, keep] for each in self._act))
