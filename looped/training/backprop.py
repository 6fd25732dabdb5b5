"""Back-propagation through the loop, written out: one small graph per step instead of one large one.

Forward, every step starts from a detached state; a row's state is kept when its own T is reached, and from then on
the row is not computed. Backward, the gradient of each step is asked for in turn, and a row's gradient joins where it
left. The result is what autograd gives for the whole loop (a test holds them equal); in exchange

- rows leave the loop without a trace in the graph, so nothing is computed that nobody needs;
- with `checkpointing`, a step keeps only its input and is recomputed backward, so memory grows by one state a step;
- with `backprop=k`, the gradient of a row stops k steps before its end, and earlier steps are not recomputed at all.

Shapes: S seeds, B rows, L positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.model.loop import LoopedTransformer, Prepared
from looped.training import losses
from looped.training.curriculum import Plan

Noise = Callable[[int], Tensor]  # rows to what is added to their state, [S, rows, L, D]


@dataclass(frozen=True)
class Outcome:
    """What one pass tells: per seed, and which rows were answered exactly."""

    loss: Float[Tensor, "S"]
    exact: Bool[Tensor, "S B"]


def backpropagate(
    model: LoopedTransformer,
    weights: Prepared,
    batch: Batch,
    plan: Plan,
    *,
    at: Int[Tensor, "B L"] | None = None,
    depth: Int[Tensor, "S B"] | None = None,
    most: int = 0,
    checkpointing: bool = False,
    noise: Noise | None = None,
    counted: Int[Tensor, "S"] | None = None,
) -> Outcome:
    """Loss of every row at its own T, its gradient added to the `.grad` of `weights`.

    `depth` cuts a row's gradient that many steps before its end; `most` bounds it, and 0 means no cut.
    `noise` is added to the state before every step. `counted` is as for `losses.answer_loss`.
    """
    recompute = checkpointing or most > 0
    x = model.embed(weights, batch.tokens, at)
    source = x.detach()
    final = torch.empty_like(source)
    starts: list[Tensor] = []  # the state each step starts from
    ends: list[Tensor] = []  # its output, with its graph, unless recomputed
    h: Tensor | None = None
    for t, (active, leaving) in enumerate(zip(plan.active, plan.leaving, strict=True), 1):
        u = model.inject(None if h is None else h[:, :active], source[:, :active])
        u = (u if noise is None else u + noise(active)).detach().requires_grad_()
        with torch.set_grad_enabled(not recompute):
            end = model.step(weights, u)
        starts.append(u)
        ends.append(end)
        h = end.detach()
        if leaving < active:
            done = (batch.steps[:, leaving:active] == t)[..., None, None]
            final[:, leaving:active] = torch.where(done, h[:, leaving:], final[:, leaving:active])
        if recompute:
            ends.pop()

    final.requires_grad_()
    logits = model.readout(weights, final)
    loss = losses.answer_loss(logits, batch.targets, batch.loss_mask, counted)
    torch.autograd.backward(loss.sum())
    assert final.grad is not None

    flow = torch.zeros_like(source)  # the gradient of each row's state, as far back as we have come
    into = torch.zeros_like(source)  # the gradient of the embedded input
    for t in range(len(plan.active), 0, -1):
        active, leaving = plan.active[t - 1], plan.leaving[t - 1]
        if leaving < active:
            done = (batch.steps[:, leaving:active] == t)[..., None, None]
            flow[:, leaving:active] = torch.where(
                done, final.grad[:, leaving:active], flow[:, leaving:active]
            )
        # rows before `far` end `most` or more steps from here: nothing flows into them yet
        far = plan.leaving[t + most - 2] if most and t + most - 1 <= len(plan.active) else 0
        u = starts.pop()
        if recompute:
            u = u.detach()[:, far:].requires_grad_()
            with torch.enable_grad():
                end = model.step(weights, u)
        else:
            end, far = ends.pop(), 0
        wanted = flow[:, far:active]
        if depth is not None:
            near = (batch.steps - depth)[:, far:active, None, None] < t
            wanted = torch.where(near, wanted, torch.zeros_like(wanted))
        torch.autograd.backward(end, wanted)
        assert u.grad is not None
        flow[:, far:active] = u.grad
        if model.config.injection or t == 1:
            into[:, far:active] += u.grad
        u.grad = None
    torch.autograd.backward(x, into)
    return Outcome(loss.detach(), losses.exact(logits.detach(), batch.targets, batch.loss_mask))
