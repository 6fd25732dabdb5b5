"""Several stopping rules over one pass through the loop, which ends as soon as none of them is waiting.

A step grid needs every step that a rule might look at, twice T(n) for each. A model that settles where it should lets
all rules stop shortly after T(n); what comes later need not be computed. The steps chosen are those that each rule
chooses on a grid (`stopping.OnlineRule.steps`), and a test holds the two equal.

Shapes: R rules, S seeds, N examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped.batches import Batch
from looped.evaluation.reading import is_done, motion, read, rows_at_once, window_start
from looped.evaluation.stopping import OnlineRule, Present
from looped.model.loop import LoopedTransformer, Prepared


@dataclass(frozen=True)
class Stopped:
    """Where each rule stops each example, and whether its answer is right there."""

    correct: Bool[Tensor, "R S N"]
    steps: Int[Tensor, "R S N"]


@torch.inference_mode()
def watch(
    model: LoopedTransformer,
    weights: Prepared,
    batch: Batch,
    rules: Sequence[OnlineRule],
    max_steps: int,
    *,
    chunk: int | None = None,
) -> Stopped:
    """Runs every row until all rules have stopped it, at most `max_steps`; a chunk of rows at a time."""
    seeds, (rows, size) = weights.embed.shape[0], batch.tokens.shape
    chunk = chunk or rows_at_once(model.config, seeds, size, batch.tokens.device)
    parts = [
        _watch(model, weights, batch.rows(slice(first, first + chunk)), rules, max_steps)
        for first in range(0, rows, chunk)
    ]
    return Stopped(
        torch.cat([part.correct for part in parts], -1), torch.cat([part.steps for part in parts], -1)
    )


def _watch(
    model: LoopedTransformer, weights: Prepared, batch: Batch, rules: Sequence[OnlineRule], max_steps: int
) -> Stopped:
    seeds = weights.embed.shape[0]
    start = window_start(batch.loss_mask)
    counted, targets = batch.loss_mask[None, :, start:], batch.targets[None, :, start:]
    needed = batch.steps.expand(seeds, -1)
    longest = int(needed.max())
    running = torch.ones(len(rules), *needed.shape, dtype=torch.bool, device=needed.device)
    correct, steps = torch.zeros_like(running), torch.full_like(running, max_steps, dtype=torch.long)
    unchanged = torch.zeros_like(needed)
    before: Tensor | None = None
    last: Tensor | None = None
    looks = any(rule.needs_answer for rule in rules)
    moves = any(rule.needs_motion for rule in rules)
    gate = model.gate(weights, batch.loss_mask[None])
    states = model.unroll(weights, batch.tokens.expand(seeds, -1, -1), max_steps, gate)
    for t, h in enumerate(states, start=1):
        reading = read(model, weights, h[:, :, start:], counted) if looks else None
        if reading is not None:
            if before is not None:
                same = ((reading.answer == before) | ~counted).all(-1)
                unchanged = torch.where(same, unchanged + 1, 0)
            before = reading.answer
        done = is_done(model.config, h)
        moved = motion(last, h) if moves else None
        last = h if moves else None
        surprise = None if reading is None else reading.surprise
        now = Present(t, surprise, unchanged, needed, done, gate.halted, moved)
        stops = torch.stack([rule.stops(now) for rule in rules])
        if t == max_steps:
            stops = torch.ones_like(stops)
        stops &= running
        if looks or bool(stops.any()):  # an answer nobody stops at need not be read
            reading = reading or read(model, weights, h[:, :, start:], counted)
            right = ((reading.answer == targets) | ~counted).all(-1)
            correct |= stops & right
            steps = torch.where(stops, t, steps)
        running &= ~stops
        if t >= longest and not running.any():  # asked only where it may be so: a GPU has to stop to answer
            break
    return Stopped(correct, steps)
