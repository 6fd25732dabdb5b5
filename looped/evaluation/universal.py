"""Answers of a Universal Transformer, which decides itself how often to loop: greedy, token by token, or at one glance.

A greedy answer is right if and only if every token up to its first `#` is the most likely one after the right tokens
before it: as long as it is right, what is fed in is what the right answer feeds in. So one pass over rows that hold the
right answers tells which greedy answers are exact (`exact`), and token-by-token decoding (`greedy`) is left for
questions without a given answer. A test holds the two equal.

Shapes: S seeds, N rows, L positions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.evaluation.rollout import greedily_right, rows_at_once
from looped.fast.universal import PreparedUniversal, Said, StackedUniversal, split
from looped.model import halting
from looped.model.seeds import SeedModel, SeedWeights

HALF = 0.5  # a row of PonderNet stops where it has more likely halted than not
STACKS = 4  # an encoder, a decoder with its look at it, and two masks: times the memory of a looped decoder


@torch.inference_mode()
def exact(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    most: int,
    eos: int,
    *,
    on_chunk: Callable[[], None] = lambda: None,
) -> tuple[Bool[Tensor, "S N"], Float[Tensor, "S N"]]:
    """Which greedy answers are right at every token, and the mean loop steps of a position of question and answer."""
    assert isinstance(model, StackedUniversal)
    assert isinstance(weights, PreparedUniversal)
    seeds, (rows, size) = weights.embed.shape[0], batch.tokens.shape
    chunk = max(1, rows_at_once(model.config, seeds, size, batch.tokens.device) // STACKS)
    right, steps = [], []
    for first in range(0, rows, chunk):
        on_chunk()
        part = batch.rows(slice(first, first + chunk))
        mask = part.loss_mask.expand(seeds, -1, -1)
        said = model.answer(weights, part.tokens.expand(seeds, -1, -1), mask, most)
        logits, took = halted(said, mask)
        right.append(greedily_right(logits.argmax(-1), part.targets, part.loss_mask, eos))
        steps.append(took)
    return torch.cat(right, dim=1), torch.cat(steps, dim=1)


@torch.inference_mode()
def greedy(
    model: SeedModel, weights: SeedWeights, batch: Batch, most: int, eos: int
) -> tuple[Int[Tensor, "S N L"], Float[Tensor, "S N"], Float[Tensor, "S N"]]:
    """Tokens with the answers filled in, loop steps, and the mean NLL of what was generated.

    Only what stands up to `>` is read. Every token costs a whole pass: for people, not for tables.
    """
    assert isinstance(model, StackedUniversal)
    assert isinstance(weights, PreparedUniversal)
    seeds = weights.embed.shape[0]
    counted = batch.loss_mask.expand(seeds, -1, -1)
    question, place = split(counted)
    tokens = torch.where(question, batch.tokens, eos)
    running = torch.ones_like(counted[..., 0])
    total, count = (torch.zeros(running.shape, device=tokens.device) for _ in range(2))
    answer = tokens.clone()
    steps = torch.zeros_like(total)
    for i in range(int(place.max()) + 1):
        logits, took = halted(model.answer(weights, tokens, counted, most), counted)
        here = counted & (place == i)  # the one place of each row that is asked now
        running = running & here.any(-1)
        shares = logits.float().log_softmax(-1).max(-1)
        said = torch.where(here, shares.indices, 0).sum(-1)
        said = torch.where(running, said, eos)
        total += torch.where(running, -torch.where(here, shares.values, 0.0).sum(-1), 0.0)
        count += running
        steps = torch.where(running, took, steps)
        answer = torch.where(here, said[..., None], answer)
        tokens = torch.where(counted & (place == i + 1), said[..., None], tokens)
        running = running & (said != eos)
        if not running.any():
            break
    return torch.where(counted & (place > i), eos, answer), steps, total / count


def halted(
    said: Said, counted: Bool[Tensor, "S N L"]
) -> tuple[Float[Tensor, "S N L V"], Float[Tensor, "S N"]]:
    """The scores where each row halts, and the loop steps it took: of a row, or the mean over its positions."""
    if not said.wants:
        assert said.encoder is not None
        assert said.decoder is not None
        question, _ = split(counted)
        took = (said.encoder.steps * question).sum(-1) + (said.decoder.steps * counted).sum(-1)
        return said.logits[0], took / (question.sum(-1) + counted.sum(-1))
    chance = halting.log_halting(torch.stack(said.wants, dim=-1).float()).exp().cumsum(-1)
    at = (chance >= HALF).int().argmax(-1)
    logits = said.logits[0]
    for t, later in enumerate(said.logits[1:], 1):
        logits = torch.where((at == t)[..., None, None], later, logits)
    return logits, (at + 1).float()
