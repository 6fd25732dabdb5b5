"""Losses that look at the whole trajectory, by autograd alone: the way of everything that may not know T(n).

| model, supervision   | the loss of an example                                                                     |
|----------------------|--------------------------------------------------------------------------------------------|
| `halting=act`        | of the weighted state Σ p_n h_n, plus `halt_cost` times the mean N + R of its positions      |
| `halting=ponder`     | Σ p_n · (loss after step n), plus `halt_cost` times KL(p, geometric law of `halt_prior`)     |
| `halting=eoq`, `expected` | the same, p from the head at `>`; never to have halted costs a blind guess             |
| `supervision=best`   | the mean from its best step on, to the last: once right, it has to stay right                |

Every row runs to the largest number of steps of the stage, so shapes never change and nothing waits for the host: a
row's own number would tell a halting head where to stop. Only `best` looks no further than a row's own steps, and for
the best one in their first half: a step with nothing after it could be right by luck, one row at the last step and
another at the one before (of parity, some step always is). `looped.model.halting` has the arithmetic.

Shapes: S seeds, B rows, L positions, D width, T loop steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from looped.batches import Batch
from looped.fast.backprop import Noise, Outcome
from looped.fast.stacked import Prepared, StackedTransformer
from looped.fast.universal import PreparedUniversal, StackedUniversal, Step, read_all, split
from looped.model import halting
from looped.training.config import TrainConfig
from looped.training.plain import answer_loss, exact, example_loss

Parts = tuple[
    Tensor, Tensor, Tensor
]  # the answer's loss [S], cost of halting [S], rows that are right [S, B]
EveryStep = tuple[Float[Tensor, "S B T"], Bool[Tensor, "S B T"]]  # losses of rows; which are right


class Trajectory:
    """One pass over a batch, in `most` steps, and the losses that look at it.

    `batch` may be a part of the rows that the loss is a mean over: `config.batch` rows, `counted` positions.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: StackedTransformer,
        weights: Prepared,
        batch: Batch,
        most: int,
        *,
        at: Int[Tensor, "B L"] | None = None,
        noise: Noise | None = None,
        counted: Int[Tensor, "S"] | None = None,
    ) -> None:
        self.config, self.model, self.weights, self.batch, self.most = config, model, weights, batch, most
        self.at, self.noise, self.counted = at, noise, counted

    @cached_property
    def x(self) -> Float[Tensor, "S B L D"]:
        """The embedded input."""
        return self.model.embed(self.weights, self.batch.tokens, self.at)

    def backpropagate(self) -> Outcome:
        """The loss of every row, its gradient added to the `.grad` of the weights."""
        if self.model.config.kind == "universal":
            loss = self.universal
        elif self.model.config.halting == "act":
            loss = self.act
        else:
            by_supervision = {"best": self.best, "expected": self.expected, "last": self.ponder}
            loss = by_supervision[self.config.supervision]
        answer, cost, exact = loss()
        torch.autograd.backward((answer + cost).sum())
        return Outcome(answer.detach(), exact)

    def walk(self, h: Float[Tensor, "S B L D"] | None) -> Float[Tensor, "S B L D"]:
        """A state, None at first, after one more step."""
        u = self.model.inject(h, self.x)
        u = u if self.noise is None else u + self.noise(u.shape[1] * u.shape[2]).view_as(u)
        return self.recomputed(self.model.step)(self.weights, u)

    def recomputed(self, step: Step) -> Step:
        """The step, with `checkpointing` keeping nothing but its input until backward."""
        if not self.config.checkpointing:
            return step

        def again(*given: object) -> Tensor:
            kept: Tensor = checkpoint(step, *given, use_reentrant=False, preserve_rng_state=False)
            return kept

        return again

    # --- the losses ----------------------------------------------------------------------------------------
    def universal(self) -> Parts:
        """Both systems of the paper's Table 1; in ACT, padding costs nothing, in the encoder or the decoder."""
        model, weights, batch = self.model, self.weights, self.batch
        assert isinstance(model, StackedUniversal)
        assert isinstance(weights, PreparedUniversal)
        steps = self.recomputed(model.encode_step), self.recomputed(model.decode_step)
        said = model.answer(weights, batch.tokens, batch.loss_mask, self.most, *steps)
        if said.wants:
            return ponder_parts(self.config, torch.stack(said.wants, dim=-1), *self._judged(said.logits))
        assert said.encoder is not None
        assert said.decoder is not None
        question, _ = split(batch.loss_mask)
        each = halting.pooled(said.encoder.cost, question) + halting.pooled(
            said.decoder.cost, batch.loss_mask
        )
        return self._read(said.logits[0], each.sum(1) / self.config.batch)

    def act(self) -> Parts:
        """Every position halts on its own; what it says is the weighted mean of its states."""
        h = self.walk(None)
        now = halting.act_start(h)
        for t in range(1, self.most + 1):
            h = h if t == 1 else self.walk(now.state)
            now = halting.act_step(
                now, h, halting.logits(self.weights.head, h).sigmoid(), last=t == self.most
            )
        cost = now.cost.sum((1, 2)) / (self.config.batch * self.batch.tokens.shape[-1])
        return self._read(self.model.readout(self.weights, now.output), cost)

    def ponder(self) -> Parts:
        """Every row halts as a whole; its loss is expected over when."""
        wants: list[Tensor] = []
        head, counted = self.weights.head, self.batch.loss_mask
        each, right = self._every_step(
            lambda h: wants.append(halting.pooled(halting.logits(head, h), counted))
        )
        return ponder_parts(self.config, torch.stack(wants, dim=-1), each, right)

    def expected(self) -> Parts:
        """The halting head says when the answer is there. No step takes the rest, or rows would wait for the last."""
        wants: list[Tensor] = []
        head, counted = self.weights.head, self.batch.loss_mask
        each, right = self._every_step(
            lambda h: wants.append(halting.logits(head, halting.at_eoq(h, counted)))
        )
        log_p = halting.log_speaking(torch.stack(wants, dim=-1).float())
        prior = halting.log_open_geometric(self.config.halt_prior, self.most, log_p.device)
        silence = math.log(self.model.config.vocab)
        return _weighted(self.config, log_p, prior, F.pad(each, (0, 1), value=silence), F.pad(right, (0, 1)))

    def best(self) -> Parts:
        """The best step of a row's own from which to hold the answer."""
        each, right = self._every_step()
        total, _ = best_and_later(each, self.batch.steps)
        answer = total.sum(1) / self.config.batch
        at_end = right.gather(-1, self.batch.steps[..., None] - 1)[..., 0]
        return answer, torch.zeros_like(answer), at_end

    # --- reading -------------------------------------------------------------------------------------------
    def _read(self, logits: Float[Tensor, "S B L V"], cost: Float[Tensor, "S"]) -> Parts:
        """What one read-out of every row says, and what halting costs before its weight."""
        targets, mask = self.batch.targets, self.batch.loss_mask
        answer = answer_loss(logits, targets, mask, self.counted)
        return answer, self.config.halt_cost * cost, exact(logits.detach(), targets, mask)

    def _every_step(self, note: Callable[[Tensor], None] = lambda h: None) -> EveryStep:
        """What every state says; `note` sees each of them on the way."""
        states: list[Tensor] = []
        for _ in range(self.most):
            states.append(self.walk(states[-1] if states else None))
            note(states[-1])
        return self._judged(read_all(self.model, self.weights, states))

    def _judged(self, logits: list[Float[Tensor, "S B L V"]]) -> EveryStep:
        targets, mask = self.batch.targets, self.batch.loss_mask
        each = torch.stack([example_loss(scores, targets, mask) for scores in logits], dim=-1)
        return each, torch.stack([exact(scores.detach(), targets, mask) for scores in logits], dim=-1)


def ponder_parts(
    config: TrainConfig,
    wants: Float[Tensor, "S B T"],
    each: Float[Tensor, "S B T"],
    right: Bool[Tensor, "S B T"],
) -> Parts:
    """PonderNet's loss, from what the head says and the loss and the rightness after every step."""
    log_p = halting.log_halting(wants.float())
    prior = halting.log_geometric(config.halt_prior, wants.shape[-1], wants.device)
    return _weighted(config, log_p, prior, each, right)


def _weighted(
    config: TrainConfig,
    log_p: Float[Tensor, "S B T"],
    prior: Float[Tensor, "T"],
    each: Float[Tensor, "S B T"],
    right: Bool[Tensor, "S B T"],
) -> Parts:
    """Losses weighted by when a row halts, and how far that is from the prior."""
    answer = halting.expected(each, log_p).sum(1) / config.batch
    cost = halting.divergence(log_p, prior).sum(1) / config.batch
    halts = (log_p.detach().exp().cumsum(-1) >= 0.5).int().argmax(-1, keepdim=True)
    return answer, config.halt_cost * cost, right.gather(-1, halts)[..., 0]


def best_and_later(
    each: Float[Tensor, "S B T"], steps: Int[Tensor, "S B"]
) -> tuple[Float[Tensor, "S B"], Int[Tensor, "S B"]]:
    """The mean loss from the best step on up to the row's last; and that step (from 0), in the first half of its own.

    losses      3  1  2  4  .5          of 4 steps, the first 2 may be the best:
    mean from   2.5  7/3  3  4          so it is the second, and 7/3 the loss
    """
    at = torch.arange(each.shape[-1], device=each.device)
    own = steps[..., None]
    inside = torch.where(at < own, each, 0.0)
    means = inside.flip(-1).cumsum(-1).flip(-1) / (own - at).clamp(min=1)
    late = at >= (own + 1) // 2
    best = means.detach().masked_fill(late, float("inf")).argmin(-1)
    return means.gather(-1, best[..., None])[..., 0], best
