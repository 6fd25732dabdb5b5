"""Back-propagation through the loop, written out: one small graph per step instead of one large one.

Forward, every step starts from a detached state; a row's state is kept when its own T is reached, and from then on
the row is not computed. Backward, the gradient of each step is asked for in turn, and a row's gradient joins where it
left. The result is what autograd gives for the whole loop (a test holds them equal); in exchange

- rows leave the loop without a trace in the graph, so nothing is computed that is not needed;
- with `checkpointing`, a step keeps only its input and is recomputed backward, so memory grows by one state a step;
- with `backprop=k`, the gradient of a row stops k steps before its end, and earlier steps are not recomputed at all.

Shapes: S seeds, B rows, L positions, D width; R positions of all rows, one after the other (`Packing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.fast.packing import Packing
from looped.fast.stacked import Prepared, StackedTransformer
from looped.model import halting, positions
from looped.training.curriculum import Plan
from looped.training.plain import answer_loss

Noise = Callable[[int], Tensor]  # so many first positions to what is added to their state, [S, n, D]


@dataclass(frozen=True)
class Outcome:
    """What one pass tells: per seed, and which rows were answered exactly."""

    loss: Float[Tensor, "S"]
    exact: Bool[Tensor, "S B"]


def backpropagate(
    model: StackedTransformer,
    weights: Prepared,
    batch: Batch,
    plan: Plan,
    packing: Packing | None = None,
    *,
    at: Int[Tensor, "B L"] | None = None,
    depth: Int[Tensor, "S B"] | None = None,
    most: int = 0,
    checkpointing: bool = False,
    noise: Noise | None = None,
    growth_clip: float = 0.0,
    halt_cost: float = 0.0,
    counted: Int[Tensor, "S"] | None = None,
) -> Outcome:
    """Loss of every row at its own T, its gradient added to the `.grad` of `weights`.

    Of each row only the positions of `packing` are computed: nothing past them may count. `depth` cuts a row's gradient
    that many steps before its end; `most` bounds it, and 0 means no cut. `noise` is added to the state before every
    step. `growth_clip` is that of `ceiling`, 0 for none. `halt_cost` weighs the loss of the end-of-question halting
    head (`halting.eoq_cost`). `counted` is as for `answer_loss`.
    """
    recompute = checkpointing or most > 0
    packing = packing or Packing.padded(*batch.tokens.shape[1:])
    x = embed(model, weights, batch, packing, at)
    source, steps = x.detach().flatten(1, 2), packing.spread(batch.steps)
    final, starts, ends = _forward(model, weights, steps, plan, packing, source, noise, keep=not recompute)

    final.requires_grad_()
    outcome = read(model, weights, packing.wide(final), batch, packing, counted)
    assert final.grad is not None
    highest = ceiling(final.grad, packing, growth_clip)

    flow = torch.zeros_like(source)  # the gradient of each row's state, as far back as we have come
    into = torch.zeros_like(source)  # the gradient of the embedded input
    for t in range(len(plan.active), 0, -1):
        active, leaving = plan.active[t - 1], plan.leaving[t - 1]
        # rows before `far` end `most` or more steps from here: nothing flows into them yet
        far = plan.leaving[t + most - 2] if most and t + most - 1 <= len(plan.active) else 0
        far = far if recompute else 0
        if far == active:  # nor into any other: none ends here or soon
            starts.pop()
            continue
        rows, here = packing.part(far, active), slice(packing.ends[far], packing.ends[active])
        if leaving < active:
            there = slice(packing.ends[leaving], packing.ends[active])
            done = (steps[:, there] == t)[..., None]
            flow[:, there] = torch.where(done, final.grad[:, there], flow[:, there])
        u = starts.pop()
        if recompute:
            u = u.detach()[:, here].requires_grad_()
            with torch.enable_grad():
                end = _step(model, weights, u, rows)
        else:
            end = ends.pop()
        wanted = flow[:, here]
        if depth is not None:
            near = packing.spread(batch.steps - depth)[:, here, None] < t
            wanted = torch.where(near, wanted, torch.zeros_like(wanted))
        if model.config.halting == "eoq":
            cost = _eoq_cost(weights, batch, end, slice(far, active), rows, t)
            torch.autograd.backward([end, cost], [wanted, torch.full_like(cost, halt_cost)])
        else:
            torch.autograd.backward(end, wanted)
        assert u.grad is not None
        grad = model.injected_from(rows.wide(u.grad)).flatten(1, 2)
        if highest is not None:
            grad = held(packing.part(far, len(packing.sizes)), grad, highest[:, far:])
        flow[:, here] = grad
        if model.config.injection or t == 1:
            into[:, here] += grad
        u.grad = None
    torch.autograd.backward(x, into.view_as(x))
    return outcome


def embed(
    model: StackedTransformer,
    weights: Prepared,
    batch: Batch,
    packing: Packing,
    at: Int[Tensor, "B L"] | None = None,
) -> Float[Tensor, "S b l D"]:
    """The input of packed rows; `at` overrides their position numbers."""
    _, rows, size = batch.tokens.shape
    if packing.fills(size):
        return model.embed(weights, batch.tokens, at)
    if at is None:
        at = positions.places(model.config, rows, size, batch.tokens.device)
    return model.embed(weights, packing.pack(batch.tokens)[:, None], packing.pack(at)[None])


def read(
    model: StackedTransformer,
    weights: Prepared,
    state: Float[Tensor, "S b l D"],
    batch: Batch,
    packing: Packing,
    counted: Int[Tensor, "S"] | None,
) -> Outcome:
    """What the states of packed rows at their ends say; the loss's gradient goes back into them."""
    logits = model.readout(weights, state)
    targets, mask = (packing.pack(x).view(logits.shape[:3]) for x in (batch.targets, batch.loss_mask))
    loss = answer_loss(logits, targets, mask, counted)
    torch.autograd.backward(loss.sum())
    wrong = ((logits.detach().argmax(-1) != targets) & mask).flatten(1)
    return Outcome(loss.detach(), packing.total(wrong.float()) == 0)


def _step(
    model: StackedTransformer, weights: Prepared, u: Float[Tensor, "S n D"], rows: Packing
) -> Float[Tensor, "S n D"]:
    """One step of packed rows."""
    return model.step(weights, rows.wide(u), packing=None if rows.even else rows).flatten(1, 2)


def _forward(
    model: StackedTransformer,
    weights: Prepared,
    steps: Int[Tensor, "S R"],
    plan: Plan,
    packing: Packing,
    source: Float[Tensor, "S R D"],
    noise: Noise | None,
    *,
    keep: bool,
) -> tuple[Float[Tensor, "S R D"], list[Tensor], list[Tensor]]:
    """Every row's state at its own T, the state each step starts from, and with `keep` its output with its graph."""
    final = torch.empty_like(source)
    starts: list[Tensor] = []
    ends: list[Tensor] = []
    h: Tensor | None = None
    for t, (active, leaving) in enumerate(zip(plan.active, plan.leaving, strict=True), 1):
        rows, count = packing.part(0, active), packing.ends[active]
        u = model.inject(None if h is None else rows.wide(h[:, :count]), rows.wide(source[:, :count]))
        u = u.flatten(1, 2)
        u = (u if noise is None else u + noise(count)).detach().requires_grad_()
        with torch.set_grad_enabled(keep):
            end = _step(model, weights, u, rows)
        starts.append(u)
        if keep:
            ends.append(end)
        h = end.detach()
        if leaving < active:
            here = slice(packing.ends[leaving], count)
            done = (steps[:, here] == t)[..., None]
            final[:, here] = torch.where(done, h[:, here], final[:, here])
    return final, starts, ends


def _eoq_cost(
    weights: Prepared, batch: Batch, end: Float[Tensor, "S n D"], rows: slice, packing: Packing, step: int
) -> Float[Tensor, ""]:
    """The halting loss of some rows after a step, summed."""
    at = packing.starts(end.device) + halting.eoq_of(batch.loss_mask[:, rows])
    wants = halting.logits(weights.head, end.gather(1, at[..., None].expand(-1, -1, end.shape[2])))
    steps = batch.steps[:, rows]
    return halting.eoq_cost(wants, steps == step, steps >= step).sum()


def ceiling(
    final: Float[Tensor, "S R D"], packing: Packing, growth_clip: float
) -> Float[Tensor, "S B"] | None:
    """The largest norm a row's gradient may have on its way back, `growth_clip` times that at its end; None: any.

    A loop that is chaotic for some rows multiplies their gradients by a thousand in ten steps; without a ceiling such
    rows are all that a batch's gradient is made of.
    """
    return growth_clip * packing.norms(final) if growth_clip else None


def held(packing: Packing, flow: Float[Tensor, "S n D"], highest: Float[Tensor, "S B"]) -> Tensor:
    """Rows whose norm has grown past the highest they may have, scaled down to it: they point the same way."""
    norm = packing.norms(flow).clamp_min(torch.finfo(torch.float32).tiny)
    share = packing.spread((highest / norm).clamp_max(1))
    return flow * share[:, : flow.shape[1], None].to(flow.dtype)
