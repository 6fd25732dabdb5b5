"""Answers at inference time, with no more computed than it takes.

`run_adaptive` loops until a stopping rule says enough, row by row: a finished row leaves the batch; `run_until_stopped`
does so for several rules in one pass. `generate` decodes next-token predictions greedily with a key-value cache; in a
looped model every loop step has its own:

    fed        1 0 1 >    1    0    1        pauses follow `>` where there are any
    predicted        1    0    1    #        ends with the first `#`, or with the row

Shapes: S seeds, N rows, L positions, W positions from the first that counts, R rows still in the loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation import rollout
from looped.evaluation.rollout import Reading, Rollout, parts, unroll_grid
from looped.evaluation.stopping import OnlineRule, Oracle, Rule
from looped.model import halting, positions
from looped.model.seeds import SeedModel, SeedWeights

FEW_LEAVE = 7 / 8  # rows are packed anew once less than this share of them is still running


@dataclass(frozen=True)
class DecodedBatch:
    """What every seed answers to every row."""

    tokens: Int[Tensor, "S N L"]  # decoded where the row counts, elsewhere the input's own
    steps: Int[Tensor, "S N"]  # loop steps until the answer
    surprise: Float[Tensor, "S N"]  # mean cross entropy with the decoded answer


# --- looping until rules say enough ------------------------------------------------------------------------
@torch.inference_mode()
def run_adaptive(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    rule: Rule,
    limits: int | Int[Tensor, "N"],
) -> DecodedBatch:
    """The answer of every row at the step the rule chooses, at most its limit, one for all or one for each.

    A rule that needs to see every step first costs a whole unroll, and then the steps it chose. It sees rows of one
    limit at a time, so that none chooses from steps that it may not take.
    """
    if isinstance(limits, int):
        limits = torch.full_like(batch.steps, limits)
    needed = batch.steps.expand(weights.embed.shape[0], -1)
    if not isinstance(rule, OnlineRule):
        needed = torch.empty_like(needed)
        for limit in sorted(set(limits.tolist())):
            alike = limits == limit
            grid = unroll_grid(model, weights, batch.rows(alike), limit, motion=rule.needs_motion)
            needed[:, alike] = rule.steps(grid)
        rule = Oracle()
    if isinstance(rule, Oracle) and len(late := (needed > limits).nonzero()):
        seed, row = late[0].tolist()
        stops, most = int(needed[seed, row]), int(limits[row])
        raise InputError(f"the oracle stops at step {stops}, but only {most} are allowed")
    return run_until_stopped(model, weights, batch, [rule], limits, needed=needed)[0]


@torch.inference_mode()
def run_until_stopped(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    rules: Sequence[OnlineRule],
    limits: Int[Tensor, "N"],
    *,
    needed: Int[Tensor, "S N"] | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> list[DecodedBatch]:
    """For each rule, the answer of every row at the step where it stops, at most at the row's limit.

    All rules share one pass. The steps are those that each rule chooses on a full grid (`OnlineRule.steps`); steps
    after the last rule has stopped are not computed. `needed` is what the oracle goes by, if not the batch's own.
    `on_step` is called after each step.
    """
    tokens = batch.tokens.expand(weights.embed.shape[0], -1, -1)
    needed = batch.steps.expand(tokens.shape[:2]) if needed is None else needed
    zeros = torch.zeros_like(needed)
    answers = [DecodedBatch(tokens.clone(), zeros.clone(), zeros.float()) for _ in rules]
    for here in parts(model, weights, batch):
        into = [DecodedBatch(*(x[:, here] for x in (a.tokens, a.steps, a.surprise))) for a in answers]
        moves = any(rule.needs_motion for rule in rules)
        roll = Rollout(model, weights, batch.rows(here), motion=moves)
        _run_part(roll, needed[:, here], rules, limits[here], into, on_step)
    return answers


def _run_part(
    roll: Rollout, needed: Int[Tensor, "S N"], rules: Sequence[OnlineRule], limits: Int[Tensor, "N"],
    into: Sequence[DecodedBatch], on_step: Callable[[], None],
) -> None:  # fmt: skip
    """Write what some rows answer into `into`; rows that every rule has stopped leave the loop."""
    look = any(rule.needs_answer for rule in rules)
    running = torch.ones(len(rules), *needed.shape, dtype=torch.bool, device=needed.device)
    every = torch.arange(needed.shape[0], device=needed.device)[:, None]
    last = int(limits.max())
    waiting: list[tuple[int, Tensor, Reading | Tensor]] = []  # steps of which none was asked who stops
    for t in range(1, last + 1):
        seen = roll.advance()
        on_step()
        now = roll.present(needed[every, roll.rows], look)
        stops = torch.stack([rule.stopped(now) for rule in rules]) | (limits[roll.rows] <= t)
        waiting.append((t, stops & running, roll.reading if look else seen))
        running &= ~stops
        if t % roll.asks_every and t < last:
            continue
        told = torch.stack([stopped for _, stopped, _ in waiting]).flatten(1).any(1).tolist()
        for step, stopped, state in itertools.compress(waiting, told):
            reading = state if isinstance(state, Reading) else roll.read(state)
            for part, each in zip(into, stopped, strict=True):
                _write(part, roll, step, reading, each)
        waiting.clear()
        if not any(told):
            continue
        left = running.any(0)
        most = int(left.sum(1).max())
        if most == 0:
            return
        if most < FEW_LEAVE * left.shape[1]:
            places = left.int().argsort(dim=1, descending=True, stable=True)[:, :most]
            running = running[:, every, places]
            roll.keep(places)


def _write(
    into: DecodedBatch, roll: Rollout, step: int, reading: Reading, stopped: Bool[Tensor, "S R"]
) -> None:
    """Note the rows that stop at a step, and what is read after it."""
    seed, place = stopped.nonzero(as_tuple=True)
    at = roll.rows[seed, place]
    own, counted = into.tokens[seed, at, roll.start :], roll.counted[seed, place]
    into.tokens[seed, at, roll.start :] = torch.where(counted, reading.answer[seed, place], own)
    into.steps[seed, at] = step
    into.surprise[seed, at] = reading.surprise[seed, place]


# --- token by token ----------------------------------------------------------------------------------------
@torch.inference_mode()
def generate(model: SeedModel, weights: SeedWeights, batch: Batch, loops: int, eos: int) -> DecodedBatch:
    """Greedy next-token answers to an NTP batch: only the questions (and pauses) of its rows are fed in.

    Each answer ends with its first `#`; everything after it is `#` too. The NLL of the argmax is the mean over what was
    generated. Rows are decoded together with those whose question is equally long. A Universal Transformer may halt
    before `loops` steps.
    """
    seeds, (rows, size) = weights.embed.shape[0], batch.tokens.shape
    positions.check_size(model.config, size)
    answers = DecodedBatch(
        batch.tokens.expand(seeds, -1, -1).clone(),
        torch.zeros(seeds, rows, dtype=torch.long, device=batch.tokens.device),
        torch.zeros(seeds, rows, device=batch.tokens.device),
    )
    kept = 2 * loops * model.config.layers * model.config.width
    most = rollout.rows_at_once(model.config, seeds, size, batch.tokens.device, kept)
    starts = batch.loss_mask.int().argmax(1)
    for start in sorted(set(starts.tolist())):
        for index in (starts == start).nonzero()[:, 0].split(most):
            prompt = batch.tokens[index, : start + 1].expand(seeds, -1, -1)
            answer, steps, surprise = _generate(model, weights, prompt, size, loops, eos)
            answers.tokens[:, index, start:] = answer
            answers.steps[:, index], answers.surprise[:, index] = steps, surprise
    return answers


def _generate(
    model: SeedModel, weights: SeedWeights, prompt: Int[Tensor, "S R P"], size: int, loops: int, eos: int
) -> tuple[Int[Tensor, "S R W"], Int[Tensor, "S R"], Float[Tensor, "S R"]]:
    """The tokens predicted from the prompt's last position on, loop steps, and the mean NLL of the tokens."""
    seeds, rows, known = prompt.shape
    places = positions.places(model.config, rows, size, prompt.device)
    caches: list[list[Any]] = [[None] * model.config.layers for _ in range(loops)]
    row = torch.full((seeds, rows, size + 1), eos, device=prompt.device)  # as far as it is written
    row[..., :known] = prompt
    counted = torch.arange(size, device=prompt.device) >= known - 1
    total = torch.zeros(seeds, rows, device=prompt.device)
    count, steps, took = torch.zeros_like(total), torch.zeros_like(total), torch.full_like(total, loops)
    running = torch.ones_like(total, dtype=torch.bool)
    fed = 0  # tokens that are in the caches
    for i in range(known, size + 1):
        if model.config.kind == "universal":  # every token costs a whole pass: not for tables
            logits, took = _universal_pass(
                model, weights, row[..., :size], counted.expand(seeds, rows, -1), loops
            )
            reading = rollout.reading_of(logits[:, :, i - 1 : i], running.new_ones(1, 1, 1))
        else:
            new = row[..., fed:i]
            last = torch.arange(fed, i, device=row.device).expand_as(new) == i - 1
            given = Batch(new, new, last, took)
            roll = Rollout(model, weights, given, caches=caches, at=places[:, fed:i])
            for _ in range(loops):
                roll.advance()
            reading, fed = roll.reading, i
        row[..., i] = torch.where(running, reading.answer[..., 0], eos)
        steps = torch.where(running, took, steps)
        total += reading.surprise * running
        count += running
        running = running & (row[..., i] != eos)
        if not running.any():
            break
    return row[..., known:], steps.round().long(), total / count


def exact(answers: DecodedBatch, batch: Batch) -> Bool[Tensor, "S N"]:
    """Which answers are right at every position that counts, the `#` after the answer included."""
    return ((answers.tokens == batch.targets) | ~batch.loss_mask).all(-1)


@torch.inference_mode()
def generates_exactly(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    loops: int,
    eos: int,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Bool[Tensor, "S N"], Float[Tensor, "S N"]]:
    """Which rows of an NTP batch `generate` would answer right, and the mean loop steps of a position.

    A greedy answer is right if and only if every token up to its first `#` is the most likely one after the right
    tokens before it, and the batch holds those: one pass tells. A test holds the two equal.
    """
    right, steps = [], []
    for here in parts(model, weights, batch):
        part = batch.rows(here)
        if model.config.kind == "universal":
            on_step()
            start, tokens = 0, part.tokens.expand(weights.embed.shape[0], -1, -1)
            logits, took = _universal_pass(model, weights, tokens, part.loss_mask.expand_as(tokens), loops)
            likeliest = logits.argmax(-1)
        else:
            roll = Rollout(model, weights, part)
            for _ in range(loops):
                roll.advance()
                on_step()
            start, likeliest = roll.start, roll.reading.answer
            took = torch.full(likeliest.shape[:2], float(loops), device=likeliest.device)
        right.append(
            rollout.greedily_right(likeliest, part.targets[:, start:], part.loss_mask[:, start:], eos)
        )
        steps.append(took)
    return torch.cat(right, dim=1), torch.cat(steps, dim=1)


# --- Universal Transformers -------------------------------------------------------------------------------------
# They decide themselves how often to loop: their whole pass is the model's (`StackedUniversal.answer`), and there is
# no state to take from step to step. Their model is the fast engine's, imported where it is needed.

HALF = 0.5  # a row of PonderNet stops where it has more likely halted than not


def _universal_pass(
    model: SeedModel, weights: SeedWeights, tokens: Int[Tensor, "S N L"], counted: Bool[Tensor, "S N L"], most: int
) -> tuple[Float[Tensor, "S N L V"], Float[Tensor, "S N"]]:  # fmt: skip
    """The scores where each row halts, and the loop steps it took: of a row, or the mean over its positions."""
    from looped.fast.universal import PreparedUniversal, StackedUniversal, split

    assert isinstance(model, StackedUniversal)
    assert isinstance(weights, PreparedUniversal)
    said = model.answer(weights, tokens, counted, most)
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
