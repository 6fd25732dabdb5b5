"""Losses that look at the whole trajectory, by autograd alone: the way of everything that may not know T(n).

| model, supervision   | the loss of an example                                                                     |
|----------------------|--------------------------------------------------------------------------------------------|
| `halting=act`        | of the weighted state Σ p_n h_n, plus `halt_cost` times the mean N + R of its positions      |
| `halting=ponder`     | Σ p_n · (loss after step n), plus `halt_cost` times KL(p, geometric law of `halt_prior`)     |
| `halting=mark`, `expected` | the same, p from the head at `>`; never to have halted costs a blind guess             |
| `supervision=best`   | the mean from its best step on, to the last: once right, it has to stay right                |

Every row runs to the largest number of steps of the stage, so shapes never change and nothing waits for the host: a
row's own number would tell a halting head where to stop. Only `best` looks no further than a row's own steps, and for
the best one in their first half: a step with nothing after it could be right by luck, one row at the last step and
another at the one before (of parity, some step always is).
A test holds the arithmetic; `looped.model.halting` states it.

Shapes: S seeds, B rows, L positions, D width, T loop steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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

Walk = Callable[[Tensor | None], Tensor]  # a state (None at first) to the state after one more step
Parts = tuple[
    Tensor, Tensor, Tensor
]  # the answer's loss [S], cost of halting [S], rows that are right [S, B]


def backpropagate(
    config: TrainConfig,
    model: StackedTransformer,
    weights: Prepared,
    batch: Batch,
    most: int,
    *,
    at: Int[Tensor, "B L"] | None = None,
    noise: Noise | None = None,
    counted: Int[Tensor, "S"] | None = None,
) -> Outcome:
    """The loss of every row over `most` steps, its gradient added to the `.grad` of `weights`.

    `batch` may be a part of the rows that the loss is a mean over: `config.batch` rows, `counted` positions.
    """
    if isinstance(model, StackedUniversal):
        answer, cost, exact = _universal(config, model, weights, batch, most, counted)
        torch.autograd.backward((answer + cost).sum())
        return Outcome(answer.detach(), exact)
    x = model.embed(weights, batch.tokens, at)

    def walk(h: Tensor | None) -> Tensor:
        u = model.inject(h, x)
        u = u if noise is None else u + noise(u.shape[1] * u.shape[2]).view_as(u)
        return step(weights, u)

    step: Step = _recomputed(model.step) if config.checkpointing else model.step
    if model.config.halting == "act":
        answer, cost, exact = _act(config, model, weights, batch, walk, most, counted)
    else:
        each = {"best": _best, "expected": _expected, "last": _ponder}[config.supervision]
        answer, cost, exact = each(config, model, weights, batch, walk, most)
    torch.autograd.backward((answer + cost).sum())
    return Outcome(answer.detach(), exact)


def _recomputed(step: Step) -> Step:
    """The same step, keeping nothing but its input until backward."""

    def again(*given: object) -> Tensor:
        kept: Tensor = checkpoint(step, *given, use_reentrant=False, preserve_rng_state=False)
        return kept

    return again


def _universal(
    config: TrainConfig,
    model: StackedUniversal,
    weights: Prepared,
    batch: Batch,
    most: int,
    counted: Tensor | None,
) -> Parts:
    """Both systems of the paper's Table 1; in ACT, padding costs nothing, in the encoder or the decoder."""
    assert isinstance(weights, PreparedUniversal)
    encode: Step = _recomputed(model.encode_step) if config.checkpointing else model.encode_step
    decode: Step = _recomputed(model.decode_step) if config.checkpointing else model.decode_step
    said = model.answer(weights, batch.tokens, batch.loss_mask, most, encode, decode)
    targets, mask = batch.targets, batch.loss_mask
    if said.wants:
        return ponder_parts(config, torch.stack(said.wants, dim=-1), *_read_all(batch, said.logits))
    assert said.encoder is not None
    assert said.decoder is not None
    question, _ = split(mask)
    each = halting.pooled(said.encoder.cost, question) + halting.pooled(said.decoder.cost, mask)
    (logits,) = said.logits
    answer = answer_loss(logits, targets, mask, counted)
    return answer, config.halt_cost * each.sum(1) / config.batch, exact(logits.detach(), targets, mask)


def _act(
    config: TrainConfig,
    model: StackedTransformer,
    weights: Prepared,
    batch: Batch,
    walk: Walk,
    most: int,
    counted: Tensor | None,
) -> Parts:
    """Every position halts on its own; what it says is the weighted mean of its states."""
    h = walk(None)
    now = halting.act_start(h)
    for t in range(1, most + 1):
        h = h if t == 1 else walk(now.state)
        now = halting.act_step(now, h, halting.logits(weights.head, h).sigmoid(), last=t == most)
    logits = model.readout(weights, now.output)
    answer = answer_loss(logits, batch.targets, batch.loss_mask, counted)
    cost = now.cost.sum((1, 2)) / (config.batch * batch.tokens.shape[-1])
    return answer, config.halt_cost * cost, exact(logits.detach(), batch.targets, batch.loss_mask)


def _ponder(
    config: TrainConfig, model: StackedTransformer, weights: Prepared, batch: Batch, walk: Walk, most: int
) -> Parts:
    """Every row halts as a whole; its loss is expected over when."""
    wants: list[Tensor] = []

    def note(h: Tensor) -> None:
        wants.append(halting.pooled(halting.logits(weights.head, h), batch.loss_mask))

    each, right = _every_step(model, weights, batch, walk, most, note)
    return ponder_parts(config, torch.stack(wants, dim=-1), each, right)


def _expected(
    config: TrainConfig, model: StackedTransformer, weights: Prepared, batch: Batch, walk: Walk, most: int
) -> Parts:
    """The halting head says when the answer is there. No step takes the rest, or rows would wait for the last one."""
    wants: list[Tensor] = []

    def note(h: Tensor) -> None:
        wants.append(halting.mark_wants(weights.head, halting.at_mark(h, batch.loss_mask)))

    each, right = _every_step(model, weights, batch, walk, most, note)
    log_p = halting.log_speaking(torch.stack(wants, dim=-1).float())
    prior = halting.log_open_geometric(config.halt_prior, most, log_p.device)
    silence = math.log(model.config.vocab)
    return _weighted(config, log_p, prior, F.pad(each, (0, 1), value=silence), F.pad(right, (0, 1)))


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


def _best(
    config: TrainConfig, model: StackedTransformer, weights: Prepared, batch: Batch, walk: Walk, most: int
) -> Parts:
    """The best step of a row's own from which to hold the answer."""
    each, right = _every_step(model, weights, batch, walk, most)
    total, _ = best_and_later(each, batch.steps)
    exact = right.gather(-1, batch.steps[..., None] - 1)[..., 0]
    answer = total.sum(1) / config.batch
    return answer, torch.zeros_like(answer), exact


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


def _every_step(
    model: StackedTransformer,
    weights: Prepared,
    batch: Batch,
    walk: Walk,
    most: int,
    note: Callable[[Tensor], None] = lambda h: None,
) -> tuple[Float[Tensor, "S B T"], Bool[Tensor, "S B T"]]:
    """The loss of every row after every step, and whether it is right there; `note` sees each state."""
    states: list[Tensor] = []
    h: Tensor | None = None
    for _ in range(most):
        h = walk(h)
        note(h)
        states.append(h)
    return _read_all(batch, read_all(model, weights, states))


def _read_all(
    batch: Batch, logits: list[Float[Tensor, "S B L V"]]
) -> tuple[Float[Tensor, "S B T"], Bool[Tensor, "S B T"]]:
    """The loss of every row by each step's scores, and whether it is right there."""
    targets, mask = batch.targets, batch.loss_mask
    each = torch.stack([example_loss(scores, targets, mask) for scores in logits], dim=-1)
    return each, torch.stack([exact(scores.detach(), targets, mask) for scores in logits], dim=-1)
