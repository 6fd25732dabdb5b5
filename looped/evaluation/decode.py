"""Answers at inference time, with no more computed than it takes.

`run_adaptive` loops until a stopping rule says enough, row by row: a finished row leaves the batch. `run_until_stopped`
does so for several rules in one pass.
`generate` decodes next-token predictions greedily with a key-value cache; in a looped model every loop step
has its own:

    fed        1 0 1 >    1    0    1        pauses follow `>` where there are any
    predicted        1    0    1    #        ends with the first `#`, or with the row

Shapes: S seeds, N rows, L positions, W positions from the first that counts, R rows still in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.errors import InputError
from looped.evaluation.rollout import Rollout, greedily_right, read, rows_at_once, unroll_grid, window_start
from looped.evaluation.stopping import OnlineRule, Oracle, Rule
from looped.model import halting, positions
from looped.model.seeds import SeedModel, SeedWeights

if TYPE_CHECKING:
    from looped.fast.universal import Said

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
    max_steps: int,
    *,
    limits: Int[Tensor, "N"] | None = None,
    chunk: int | None = None,
) -> DecodedBatch:
    """The answer of every row at the step the rule chooses, at most `max_steps`, and at most its own of `limits`.

    A rule that needs to see every step first costs a whole unroll, and then the steps it chose. It sees rows of one
    limit at a time, so that none chooses from steps that it may not take.
    """
    seeds, rows = weights.embed.shape[0], batch.tokens.shape[0]
    if limits is None:
        limits = torch.full_like(batch.steps, max_steps)
    limits = limits.clamp(max=max_steps)
    needed = batch.steps.expand(seeds, rows)
    if not isinstance(rule, OnlineRule):
        needed = torch.empty_like(needed)
        for limit in sorted(set(limits.tolist())):
            alike = limits == limit
            grid = unroll_grid(
                model, weights, batch.rows(alike), limit, chunk=chunk, motion=rule.needs_motion
            )
            needed[:, alike] = rule.steps(grid)
        rule = Oracle()
    if isinstance(rule, Oracle) and len(late := (needed > limits).nonzero()):
        seed, row = late[0].tolist()
        raise InputError(
            f"the oracle stops at step {int(needed[seed, row])}, but only {int(limits[row])} are allowed"
        )
    return run_until_stopped(model, weights, batch, [rule], limits, needed=needed, chunk=chunk)[0]


@torch.inference_mode()
def run_until_stopped(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    rules: Sequence[OnlineRule],
    limits: Int[Tensor, "N"],
    *,
    needed: Int[Tensor, "S N"] | None = None,
    chunk: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> list[DecodedBatch]:
    """For each rule, the answer of every row at the step where it stops, at most at the row's limit.

    All rules share one pass. The steps are those that each rule chooses on a full grid (`OnlineRule.steps`); steps
    after the last rule has stopped are not computed. `needed` is what the oracle goes by, if not the batch's own.
    `on_step` is called after each step.
    """
    seeds, (rows, size) = weights.embed.shape[0], batch.tokens.shape
    needed = batch.steps.expand(seeds, rows) if needed is None else needed
    chunk = chunk or rows_at_once(model.config, seeds, size, batch.tokens.device)
    answers = [
        DecodedBatch(
            batch.tokens.expand(seeds, -1, -1).clone(),
            torch.zeros_like(needed),
            torch.zeros(needed.shape, device=needed.device),
        )
        for _ in rules
    ]
    for first in range(0, rows, chunk):
        here = slice(first, first + chunk)
        into = [DecodedBatch(*(x[:, here] for x in (a.tokens, a.steps, a.surprise))) for a in answers]
        _run_chunk(model, weights, batch.rows(here), needed[:, here], rules, limits[here], into, on_step)
    return answers


def _run_chunk(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    needed: Int[Tensor, "S N"],
    rules: Sequence[OnlineRule],
    limits: Int[Tensor, "N"],
    into: Sequence[DecodedBatch],
    on_step: Callable[[], None],
) -> None:
    """Run one chunk and write its answers into `into`; rows that every rule has stopped leave the loop."""
    roll = Rollout(model, weights, batch, motion=any(rule.needs_motion for rule in rules))
    look = any(rule.needs_answer for rule in rules)
    running = torch.ones(len(rules), *needed.shape, dtype=torch.bool, device=needed.device)
    every = torch.arange(needed.shape[0], device=needed.device)[:, None]
    for t in range(1, int(limits.max()) + 1):
        roll.advance()
        on_step()
        now = roll.present(needed[every, roll.rows], look)
        stops = torch.stack([rule.stops(now) for rule in rules]) | (limits[roll.rows] <= t)
        stops &= running
        if not stops.any():
            continue
        for part, stopped in zip(into, stops, strict=True):
            _write(part, roll, stopped)
        running &= ~stops
        left = running.any(0)
        most = int(left.sum(1).max())
        if most == 0:
            return
        if most < FEW_LEAVE * left.shape[1]:
            places = left.int().argsort(dim=1, descending=True, stable=True)[:, :most]
            running = running[:, every, places]
            roll.keep(places)


def _write(into: DecodedBatch, roll: Rollout, stops: Bool[Tensor, "S R"]) -> None:
    """Note the rows that stop at this step."""
    seed, place = stops.nonzero(as_tuple=True)
    at = roll.rows[seed, place]
    own = into.tokens[seed, at, roll.start :]
    answer = roll.reading.answer[seed, place]
    into.tokens[seed, at, roll.start :] = torch.where(roll.counted[seed, place], answer, own)
    into.steps[seed, at] = roll.step
    into.surprise[seed, at] = roll.reading.surprise[seed, place]


# --- token by token ----------------------------------------------------------------------------------------


@torch.inference_mode()
def generate(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    loops: int,
    eos: int,
    *,
    chunk: int | None = None,
) -> DecodedBatch:
    """Greedy next-token answers to an NTP batch: only the questions (and pauses) of its rows are fed in.

    Each answer ends with its first `#`; everything after it is `#` too. The NLL of the argmax is the mean over what was
    generated. Rows are decoded together with those whose question is equally long. A Universal Transformer may halt
    before `loops` steps.
    """
    if model.config.kind == "universal":
        return _universal_greedy(model, weights, batch, loops, eos)
    seeds, (rows, size) = weights.embed.shape[0], batch.tokens.shape
    positions.check_size(model.config, size)
    answers = DecodedBatch(
        batch.tokens.expand(seeds, -1, -1).clone(),
        torch.full((seeds, rows), loops, device=batch.tokens.device),
        torch.zeros(seeds, rows, device=batch.tokens.device),
    )
    kept = 2 * loops * model.config.layers * model.config.width
    chunk = chunk or rows_at_once(model.config, seeds, size, batch.tokens.device, kept)
    for start, index in _alike(batch.loss_mask, chunk):
        prompt = batch.tokens[index, : start + 1].expand(seeds, -1, -1)
        generated, surprise = _generate(model, weights, prompt, size, loops, eos)
        answers.tokens[:, index, start:] = generated
        answers.surprise[:, index] = surprise
    return answers


def _alike(counted: Bool[Tensor, "N L"], chunk: int) -> Iterator[tuple[int, Int[Tensor, "R"]]]:
    """Rows whose answer starts at one place, at most `chunk` at a time, and that place."""
    starts = counted.int().argmax(1)
    for start in sorted(set(starts.tolist())):
        for index in (starts == start).nonzero()[:, 0].split(chunk):
            yield start, index


def _generate(
    model: SeedModel,
    weights: SeedWeights,
    prompt: Int[Tensor, "S R P"],
    size: int,
    loops: int,
    eos: int,
) -> tuple[Int[Tensor, "S R W"], Float[Tensor, "S R"]]:
    """The tokens predicted from the prompt's last position on, and their mean NLL."""
    seeds, rows, known = prompt.shape
    places = positions.places(model.config, rows, size, prompt.device)
    caches: list[list[Any]] = [[None] * model.config.layers for _ in range(loops)]
    out = torch.full((seeds, rows, size - known + 1), eos, device=prompt.device)
    total = torch.zeros(seeds, rows, device=prompt.device)
    count = torch.zeros_like(total)
    running = torch.ones(seeds, rows, dtype=torch.bool, device=prompt.device)
    once = torch.ones(1, 1, 1, dtype=torch.bool, device=prompt.device)
    fed, done = prompt, 0
    for i in range(out.shape[2]):
        x = model.embed(weights, fed, places[:, done : done + fed.shape[2]])
        h: Tensor | None = None
        for cache in caches:
            h = model.step(weights, model.inject(h, x), cache)
        assert h is not None
        reading = read(model, weights, h[:, :, -1:], once)
        fed, done = torch.where(running[..., None], reading.answer, eos), done + fed.shape[2]
        out[:, :, i] = fed[..., 0]
        total += reading.surprise * running
        count += running
        running = running & (fed[..., 0] != eos)
        if not running.any():
            break
    return out, total / count


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
    chunk: int | None = None,
    on_step: Callable[[], None] = lambda: None,
) -> Bool[Tensor, "S N"]:
    """Which rows of an NTP batch `generate` would answer right, in one pass: the batch holds their beginnings."""
    seeds, (rows, size) = weights.embed.shape[0], batch.tokens.shape
    chunk = chunk or rows_at_once(model.config, seeds, size, batch.tokens.device)
    found = []
    for first in range(0, rows, chunk):
        part = batch.rows(slice(first, first + chunk))
        start = window_start(part.loss_mask)
        for h in model.unroll(weights, part.tokens.expand(seeds, -1, -1), loops):  # noqa: B007
            on_step()
        likeliest = model.readout(weights, h[:, :, start:].contiguous()).argmax(-1)
        found.append(greedily_right(likeliest, part.targets[:, start:], part.loss_mask[:, start:], eos))
    return torch.cat(found, dim=1)


# --- Universal Transformers -------------------------------------------------------------------------------------
# They decide themselves how often to loop. A greedy answer is right if and only if every token up to its first `#` is
# the most likely one after the right tokens before it, so one pass over rows that hold the right answers tells which
# greedy answers are exact; token-by-token decoding is left for questions without a given answer. A test holds the two
# equal. Their model is the fast engine's, imported where it is needed.

HALF = 0.5  # a row of PonderNet stops where it has more likely halted than not
STACKS = 4  # an encoder, a decoder with its look at it, and two masks: times the memory of a looped decoder


@torch.inference_mode()
def universal_exact(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    most: int,
    eos: int,
    *,
    on_chunk: Callable[[], None] = lambda: None,
) -> tuple[Bool[Tensor, "S N"], Float[Tensor, "S N"]]:
    """Which greedy answers are right at every token, and the mean loop steps of a position of question and answer."""
    from looped.fast.universal import PreparedUniversal, StackedUniversal

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
        logits, took = _halted(said, mask)
        right.append(greedily_right(logits.argmax(-1), part.targets, part.loss_mask, eos))
        steps.append(took)
    return torch.cat(right, dim=1), torch.cat(steps, dim=1)


@torch.inference_mode()
def _universal_greedy(
    model: SeedModel, weights: SeedWeights, batch: Batch, most: int, eos: int
) -> DecodedBatch:
    """Greedy answers; only what stands up to `>` is read. Every token costs a whole pass: not for tables."""
    from looped.fast.universal import PreparedUniversal, StackedUniversal, split

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
        logits, took = _halted(model.answer(weights, tokens, counted, most), counted)
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
    filled = torch.where(counted & (place > i), eos, answer)
    return DecodedBatch(filled, steps.round().long(), total / count)


def _halted(
    said: Said, counted: Bool[Tensor, "S N L"]
) -> tuple[Float[Tensor, "S N L V"], Float[Tensor, "S N"]]:
    """The scores where each row halts, and the loop steps it took: of a row, or the mean over its positions."""
    if not said.wants:
        from looped.fast.universal import split

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
