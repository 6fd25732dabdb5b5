"""The loop, walked once: what rows answer after every step, for stopping rules, grids, `solve` and the explorer.

`Rollout` takes rows through the loop a step at a time and knows what can be read there; rows that are done can leave.
Only the positions that count are read: the window from the earliest of them on is all that is turned into scores.

A step grid holds what every example's answer is like after every step, for one length. Three cells of copy `1 0`, one
example, T = 2 (the answer counted is `1 0 # #`):

    step   decoded    correct   NLL        changed
    1      1 1 # #    no        .21        yes        (step 1 always counts as changed)
    2      1 0 # #    yes       .002       yes
    3      1 0 # #    yes       .004       no

`unroll_grid` fills one in bounded memory, a part of the rows at a time. Stopping rules (`stopping.py`) are functions of
a grid, or of what is known after a step (`Present`).

Shapes: S seeds, T loop steps, N examples (R still in the loop), L positions, W of them in the window, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.errors import InputError
from looped.model import ModelConfig
from looped.model.seeds import SeedModel, SeedWeights
from looped.result_files import Json

# Numbers a chunk of rows may keep alive at once: on a CPU what fits its caches, which is fastest (measured).
CPU_BUDGET = 1 << 22
NUMBER_BYTES = 4
GPU_SHARE = 16  # on a GPU one part in so many of its memory: enough to be busy, and others may be there
# Steps between two questions whether rows have stopped. On a GPU each waits for all steps so far, and up to three steps
# are computed in vain when all rows have.
CPU_STEPS, GPU_STEPS = 1, 4
STACKS = 4  # of a Universal Transformer: an encoder, a decoder with its look at it, and two masks

DIVERGED = (
    "computes values that are no finite numbers: its run has diverged, train it again with a smaller lr"
)


@dataclass(frozen=True)
class Present:
    """What is known of each example after a step, without looking ahead."""

    step: int  # from 1
    surprise: Float[Tensor, "S N"] | None  # None where no rule asks
    unchanged: Int[Tensor, "S N"]  # for how many steps the answer has stayed the same; 0 at step 1
    needed: Int[Tensor, "S N"]  # the oracle's T
    done: Bool[Tensor, "S N"] | None = None  # what the model says, if it can
    halting: Float[Tensor, "S N"] | None = None  # how surely it has halted, if it has a head
    motion: Float[Tensor, "S N"] | None = None  # how far its state has moved, where a rule needs it


@dataclass(frozen=True)
class Reading:
    """Decoded answers in the window, and the mean cross entropy of the scores with them (lower is surer)."""

    answer: Int[Tensor, "S B W"]
    surprise: Float[Tensor, "S B"]
    each: Float[Tensor, "S B W"]  # the same at every position


def window_start(counted: Bool[Tensor, "*S B L"]) -> int:
    """The first position that counts in any row."""
    return int(counted.flatten(0, -2).any(0).int().argmax())


def read(
    model: SeedModel,
    weights: SeedWeights,
    h: Float[Tensor, "S B W D"],
    counted: Bool[Tensor, "#S #B #W"],
) -> Reading:
    """The answer of a state and its NLL of the argmax, in fp32 whatever the precision of the weights."""
    return reading_of(model.readout(weights, h.contiguous()), counted)


def reading_of(logits: Float[Tensor, "S B W V"], counted: Bool[Tensor, "#S #B #W"]) -> Reading:
    """What scores say.

    The NLL of the argmax is the log of 1 + (the other tokens' share over the best one's): the cross entropy with the
    decoded answer, but still telling steps apart where a plain log-softmax would round all of them to 0.
    """
    logits = logits.float()
    best, answer = logits.max(-1, keepdim=True)
    each = (logits - best).exp().scatter(-1, answer, 0.0).sum(-1).log1p()
    return Reading(answer[..., 0], (each * counted).sum(-1) / counted.sum(-1), each)


def greedily_right(
    likeliest: Int[Tensor, "S B W"], targets: Int[Tensor, "B W"], counted: Bool[Tensor, "B W"], eos: int
) -> Bool[Tensor, "S B"]:
    """Which rows greedy decoding would answer right, given the likeliest next token after each right beginning.

    As long as an answer is right, what decoding feeds in is what the right answer feeds in; after its first `#` it is
    `#` by definition.
    """
    past_end = ((targets == eos) & counted).long().cumsum(-1) > 1
    return ((likeliest == targets) | ~counted | past_end).all(-1)


def is_done(config: ModelConfig, h: Float[Tensor, "S B L D"]) -> Bool[Tensor, "S B"] | None:
    """Whether each row's last position says that the answer is there; None for a model that never says."""
    return None if config.halt is None else h[:, :, -1, config.halt] > 0.5


def motion(before: Float[Tensor, "S B L D"] | None, h: Float[Tensor, "S B L D"]) -> Float[Tensor, "S B"]:
    """How far the position of each row that moves most has come since the step before, relative to its size.

    Every position of the row counts: an answer may stand still while what will change it is still on its way.
    """
    if before is None:
        return torch.full(h.shape[:2], float("inf"), device=h.device)
    moved: Tensor = torch.linalg.vector_norm(h - before, dim=-1)
    moved = moved / torch.linalg.vector_norm(h, dim=-1).clamp(min=1e-9)
    return moved.amax(-1).float()


class Rollout:
    """Rows in the loop; what is known of them after the last step that was taken."""

    # what `keep` takes rows of
    _BY_ROW = ("rows", "counted", "targets", "unchanged", "motion", "seen", "state", "_input", "_before")

    def __init__(
        self, model: SeedModel, weights: SeedWeights, batch: Batch, *, motion: bool = False,
        caches: Sequence[list[Any]] = (), at: Int[Tensor, "B L"] | None = None,
    ) -> None:  # fmt: skip
        """Before the first step of a batch, the same for all seeds or stacked.

        With `motion`, how far states move is known too. With `caches`, one for each step, the batch goes on with rows
        whose earlier positions have been through the loop; `at` are the position numbers.
        """
        self.model, self.weights = model, weights
        self.start = window_start(batch.loss_mask)
        self.step = 0
        self.asks_every = CPU_STEPS if batch.tokens.device.type == "cpu" else GPU_STEPS
        seeds = weights.embed.shape[0]
        every = torch.arange(batch.tokens.shape[-2], device=batch.tokens.device)
        mask = batch.loss_mask.expand(seeds, -1, -1)
        self.rows: Int[Tensor, "S R"] = every.expand(seeds, -1)  # of the batch, those still in the loop
        self.counted: Bool[Tensor, "S R W"] = mask[..., self.start :]
        self.targets: Int[Tensor, "S R W"] = batch.targets.expand(seeds, -1, -1)[..., self.start :]
        self.unchanged: Int[Tensor, "S R"] = torch.zeros_like(self.rows)  # for so many steps, the answer
        self.seen: Tensor | None = None  # [S, R, L, D] what can be read after the last step
        self.state: Tensor | None = None  # what the next one starts from
        self.motion: Float[Tensor, "S R"] | None = None
        self._moves, self._caches, self._at = motion, caches, at
        self._tokens = batch.tokens.expand(seeds, -1, -1)
        self._input: Tensor | None = None  # [S, R, L, D] the tokens, embedded
        self._gate = model.gate(weights, mask)
        self._finished = False  # whether further steps change nothing
        self._reading: Reading | None = None
        self._before: Tensor | None = None  # the answer at the last step that was read

    def advance(self) -> Float[Tensor, "S R L D"]:
        """Take a step; what can be read after it."""
        last, self._reading = self.seen, None
        if self._input is None:
            self._input = self.model.embed(self.weights, self._tokens, self._at)
        if self.step % self.asks_every == 0:
            self._finished = self._finished or self._gate.finished
        if not self._finished:
            u = self.model.inject(self.state, self._input)
            cache = self._caches[self.step] if self._caches else None
            self.seen, self.state = self._gate.after(self.model.step(self.weights, u, cache))
        self.step += 1
        assert self.seen is not None
        if self._moves:
            self.motion = motion(last, self.seen)
        return self.seen

    @property
    def reading(self) -> Reading:
        """What the state says; computed when it is first asked for."""
        if self._reading is None:
            assert self.seen is not None
            found = self.read(self.seen)
            if self._before is not None:
                changed = ((found.answer != self._before) & self.counted).any(-1)
                self.unchanged = torch.where(changed, 0, self.unchanged + 1)
            self._reading, self._before = found, found.answer
        return self._reading

    def read(self, seen: Float[Tensor, "S R L D"]) -> Reading:
        """What a state of the rows still in the loop says."""
        return read(self.model, self.weights, seen[:, :, self.start :], self.counted)

    @property
    def correct(self) -> Bool[Tensor, "S R"]:
        """Which rows are right at every position that counts."""
        return ((self.reading.answer == self.targets) | ~self.counted).all(-1)

    @property
    def halted(self) -> Float[Tensor, "S R"] | None:
        """How surely each row has halted, if the model has a halting head."""
        return self._gate.halted

    def present(self, needed: Int[Tensor, "S R"], look: bool = True) -> Present:
        """What stopping rules may know; nothing is read from the state unless a rule will `look`."""
        surprise = self.reading.surprise if look else None
        assert self.seen is not None
        done = is_done(self.model.config, self.seen)
        return Present(self.step, surprise, self.unchanged, needed, done, self.halted, self.motion)

    def keep(self, places: Int[Tensor, "S r"]) -> None:
        """Go on with these rows only, counted among those still in the loop."""
        every = torch.arange(len(places), device=places.device)[:, None]
        for name in self._BY_ROW:
            held = getattr(self, name)
            setattr(self, name, None if held is None else held[every, places])
        self._reading = None
        self._gate.keep(every, places)


# --- step grids --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class StepGrid:
    """Every example of one length after every step; step t is at index t - 1."""

    correct: Bool[Tensor, "S T N"]  # every position that counts is right
    surprise: Float[Tensor, "S T N"]  # mean cross entropy with its own decoded answer: lower is surer
    changed: Bool[Tensor, "S T N"]  # the decoded answer differs from the step before
    needed: Int[Tensor, "N"]  # the oracle's T
    done: Bool[Tensor, "S T N"] | None = None  # the model says that the answer is there, if it can
    halting: Float[Tensor, "S T N"] | None = None  # probability of having halted by then, if it has a head
    motion: Float[Tensor, "S T N"] | None = None  # how far the state has moved at most, if it was asked for

    @property
    def max_steps(self) -> int:
        """How many steps the grid has."""
        return self.correct.shape[1]


@torch.inference_mode()
def unroll_grid(
    model: SeedModel,
    weights: SeedWeights,
    batch: Batch,
    max_steps: int,
    *,
    motion: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> StepGrid:
    """Every row of an unstacked batch after each of `max_steps` steps, all seeds side by side.

    With `motion`, also how far states move. As many rows as fit the memory bound go through the loop at a time.
    `on_step` is called after each step.
    """
    if max_steps < 1:
        raise InputError(f"the number of loop steps must be at least 1, not {max_steps}")
    grids = []
    for here in parts(model, weights, batch):
        roll, seen = Rollout(model, weights, batch.rows(here), motion=motion), []
        for _ in range(max_steps):
            roll.advance()
            on_step()
            now = roll.present(batch.steps[here])
            halting = None if now.halting is None else now.halting.float()
            seen.append((roll.correct, now.surprise, now.unchanged == 0, now.done, halting, now.motion))
        names = ("correct", "surprise", "changed", "done", "halting", "motion")
        columns: dict[str, Any] = dict(zip(names, zip(*seen, strict=True), strict=True))
        known = {name: torch.stack(each, dim=1) for name, each in columns.items() if each[0] is not None}
        grids.append(StepGrid(needed=batch.steps[here], **known))
    return join(grids)


def join(grids: Sequence[StepGrid]) -> StepGrid:
    """Grids of the same steps and seeds, their examples one after the other."""

    def joined(name: str) -> Tensor | None:
        found = [getattr(grid, name) for grid in grids if getattr(grid, name) is not None]
        return torch.cat(found, dim=-1) if found else None

    return StepGrid(**{field.name: joined(field.name) for field in fields(StepGrid)})  # type: ignore[arg-type]


def correct_at(grid: StepGrid, steps: Int[Tensor, "S N"]) -> Bool[Tensor, "S N"]:
    """Which examples are right after the given step (from 1) of each."""
    return grid.correct.gather(1, steps[:, None] - 1)[:, 0]


def accuracy(grid: StepGrid, steps: Int[Tensor, "S N"]) -> Float[Tensor, "S"]:
    """The share of examples that are right after the given step of each, per seed."""
    return correct_at(grid, steps).double().mean(1)


def first_correct(grid: StepGrid) -> Int[Tensor, "S N"]:
    """The first step after which an example is right; 0 where it never is. Less T, that is the drift."""
    first = grid.correct.int().argmax(1) + 1
    return torch.where(grid.correct.any(1), first, 0)


def held_from(grid: StepGrid) -> Int[Tensor, "S N"]:
    """The step from which an example is right to the end of the grid; 0 where its last step is wrong."""
    wrong = ~grid.correct
    after = grid.max_steps - wrong.flip(1).int().argmax(1) + 1  # the step after the last wrong one
    return torch.where(wrong.any(1), torch.where(grid.correct[:, -1], after, 0), 1)


def random_exit(grid: StepGrid, mean: Float[Tensor, "S"]) -> Float[Tensor, "S"]:
    """Accuracy per seed of leaving at a step drawn evenly from the widest stretch around the given mean m.

    That is 1 to 2m - 1, or where that is more steps than there are, 2m - T to T. A rule that takes m steps on average
    and knows nothing would do as well: what a rule is worth is what it has more.
    """
    by_step = grid.correct.double().mean(2)  # [S, T]
    step = torch.arange(1, grid.max_steps + 1, device=by_step.device)
    first = (2 * mean - grid.max_steps).clamp(1, grid.max_steps)[:, None]
    last = (2 * mean - 1).clamp(1, grid.max_steps)[:, None]
    # the outermost steps may be in by a part
    share = ((last - step + 1).clamp(0, 1) * (step - first + 1).clamp(0, 1)).double()
    return (by_step * share).sum(1) / share.sum(1)


# --- running past T ----------------------------------------------------------------------------------------
# Some problems run on to 3·T(n), which shows what becomes of the answer of an adaptive model:
#
#     overrun   accuracy when every example runs 0, 1, 5 steps, 50 %, 100 % or 200 % of T past its T
#     drift     the first step at which an example's answer is right, less T: mean, 5 % and 95 % quantile;
#               the step of the best accuracy, less T; and from where to where around it at least 99 % are right
#
# An answer of one bit is right by chance half of the time, so for parity only the last two say something.

GOOD = 0.99  # the share of right answers that holds, as for L99
# name → extra steps past T: whole steps, and shares of T
EXTRA_STEPS = {"+0": 0, "+1": 1, "+5": 5}
EXTRA_SHARES = {"+50%": 0.5, "+100%": 1.0, "+200%": 2.0}
QUANTILES = {"low": 0.05, "high": 0.95}


def step_record(curve: Sequence[float], first: Sequence[int], needed: int) -> Json:
    """Overrun and drift of one seed: accuracy after every step, and each example's first right step (0: never)."""
    best = window(torch.tensor(curve, dtype=torch.double), needed)
    return {
        "overrun": {name: curve[needed + extra - 1] for name, extra in extras(needed).items()},
        "drift": drift(torch.tensor(first), needed) | best,
    }


def extras(needed: int) -> dict[str, int]:
    """How many steps past T each overrun is: `+50%` of 7 steps are 4, never fewer than asked for."""
    shares = {name: -int(-share * needed // 1) for name, share in EXTRA_SHARES.items()}
    return EXTRA_STEPS | shares


def drift(first: Int[Tensor, "N"], needed: int) -> Json:
    """The first right step less T over the examples that are ever right, and the share of those that never are."""
    ever = first > 0
    late = (first - needed)[ever].double()
    found: Json = {"never": float((~ever).double().mean()), "mean": None, **dict.fromkeys(QUANTILES)}
    if late.numel():
        found["mean"] = float(late.mean())
        for name, q in QUANTILES.items():
            found[name] = int(torch.quantile(late, q, interpolation="nearest"))
    return found


def window(curve: Float[Tensor, "T"], needed: int) -> Json:
    """The best step less T (of equals, the nearest to T), and the ends of the stretch around it that holds 99 %."""
    at = torch.arange(1, len(curve) + 1) - needed
    equals = at[curve == curve.max()]
    best = int(equals[equals.abs().argmin()])
    good = (curve >= GOOD).tolist()
    low = high = best + needed - 1
    if not good[low]:
        return {"best": best, "from": None, "to": None}
    while low > 0 and good[low - 1]:
        low -= 1
    while high + 1 < len(good) and good[high + 1]:
        high += 1
    return {"best": best, "from": low + 1 - needed, "to": high + 1 - needed}


# --- memory ------------------------------------------------------------------------------------------------
def parts(model: SeedModel, weights: SeedWeights, batch: Batch) -> Iterator[slice]:
    """The rows of a batch, as many at a time as fit the memory bound."""
    rows, size = batch.tokens.shape
    most = rows_at_once(model.config, weights.embed.shape[0], size, batch.tokens.device)
    return (slice(first, min(first + most, rows)) for first in range(0, rows, most))


def rows_at_once(config: ModelConfig, seeds: int, size: int, device: torch.device, kept: int = 0) -> int:
    """How many rows of `size` tokens fit the memory bound; `kept` is what each token keeps besides."""
    state = config.width * (8 + 2 * config.expansion) + 4 * config.vocab
    whole = config.positions == "alibi"  # its offsets are a mask over all keys, bands or not
    scores = sum(min(size, 0 if whole else band) or size for band in config.head_bands)
    row = size * (state + scores + kept) * (STACKS if config.kind == "universal" else 1)
    budget = CPU_BUDGET
    if device.type != "cpu":
        budget = int(torch.cuda.get_device_properties(device).total_memory) // (GPU_SHARE * NUMBER_BYTES)
    return max(1, budget // (seeds * row))
