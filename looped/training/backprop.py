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
from looped.model import halting
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
    steady: float = 0.0,
    halt_cost: float = 0.0,
    counted: Int[Tensor, "S"] | None = None,
) -> Outcome:
    """Loss of every row at its own T, its gradient added to the `.grad` of `weights`.

    `depth` cuts a row's gradient that many steps before its end; `most` bounds it, and 0 means no cut.
    `noise` is added to the state before every step. `steady` is that of `ceiling`, 0 for none. `halt_cost` is what
    a row weighs whose mark is to say when it is done (`halting.mark_cost`). `counted` is as for `losses.answer_loss`.
    """
    recompute = checkpointing or most > 0
    x = model.embed(weights, batch.tokens, at)
    source = x.detach()
    final, starts, ends = _forward(model, weights, batch, plan, source, noise, keep=not recompute)

    final.requires_grad_()
    logits = model.readout(weights, final)
    loss = losses.answer_loss(logits, batch.targets, batch.loss_mask, counted)
    torch.autograd.backward(loss.sum())
    assert final.grad is not None
    highest = ceiling(final.grad, steady)

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
        rows = slice(far, active)
        cost = _mark_cost(weights, batch, end, rows, t) if model.config.halting == "mark" else None
        if cost is None:
            torch.autograd.backward(end, wanted)
        else:
            torch.autograd.backward([end, cost], [wanted, torch.full_like(cost, halt_cost)])
        assert u.grad is not None
        grad = model.injected_from(u.grad)
        if highest is not None:
            grad = hold(grad, highest[:, far:active])
        flow[:, far:active] = grad
        if model.config.injection or t == 1:
            into[:, far:active] += grad
        u.grad = None
    torch.autograd.backward(x, into)
    return Outcome(loss.detach(), losses.exact(logits.detach(), batch.targets, batch.loss_mask))


def _forward(
    model: LoopedTransformer,
    weights: Prepared,
    batch: Batch,
    plan: Plan,
    source: Float[Tensor, "S B L D"],
    noise: Noise | None,
    *,
    keep: bool,
) -> tuple[Float[Tensor, "S B L D"], list[Tensor], list[Tensor]]:
    """Every row's state at its own T, the state each step starts from, and with `keep` its output with its graph."""
    final = torch.empty_like(source)
    starts: list[Tensor] = []
    ends: list[Tensor] = []
    h: Tensor | None = None
    for t, (active, leaving) in enumerate(zip(plan.active, plan.leaving, strict=True), 1):
        u = model.inject(None if h is None else h[:, :active], source[:, :active])
        u = (u if noise is None else u + noise(active)).detach().requires_grad_()
        with torch.set_grad_enabled(keep):
            end = model.step(weights, u)
        starts.append(u)
        if keep:
            ends.append(end)
        h = end.detach()
        if leaving < active:
            done = (batch.steps[:, leaving:active] == t)[..., None, None]
            final[:, leaving:active] = torch.where(done, h[:, leaving:], final[:, leaving:active])
    return final, starts, ends


def _mark_cost(weights: Prepared, batch: Batch, end: Tensor, rows: slice, step: int) -> Float[Tensor, ""]:
    """What the marks of some rows cost after a step, in all."""
    wants = halting.mark_wants(weights.head, halting.at_mark(end, batch.loss_mask[:, rows]))
    steps = batch.steps[:, rows]
    return halting.mark_cost(wants, steps == step, steps >= step).sum()


def ceiling(final: Float[Tensor, "S B L D"], steady: float) -> Float[Tensor, "S B"] | None:
    """The largest norm a row's gradient may have on its way back: `steady` times that at its end; None for no limit."""
    return steady * _norm(final) if steady else None


def hold(flow: Float[Tensor, "S B L D"], highest: Float[Tensor, "S B"]) -> Float[Tensor, "S B L D"]:
    """Rows whose gradient has grown past their ceiling are scaled down to it: they point the same way.

    A loop that is chaotic for some rows multiplies their gradients by a thousand in ten steps; without a ceiling such
    rows are all that a batch's gradient is made of.
    """
    share = (highest / _norm(flow).clamp_min(torch.finfo(torch.float32).tiny)).clamp_max(1)
    return flow * share[..., None, None].to(flow.dtype)


def _norm(rows: Float[Tensor, "S B L D"]) -> Float[Tensor, "S B"]:
    wide = torch.promote_types(rows.dtype, torch.float32)
    norm: Tensor = torch.linalg.vector_norm(rows.flatten(2), dim=2, dtype=wide)
    return norm
