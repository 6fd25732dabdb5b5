"""The loop, walked once: what rows answer after every step, for stopping rules, grids, `solve` and the explorer.

`Rollout` takes rows through the loop a step at a time and knows what can be read there; rows that are done can leave.
Only the positions that count are read: the window from the earliest of them on is all that is turned into scores.

A step grid holds what every example's answer is like after every step, for one length. Three cells of copy `1 0`, one
example, T = 2 (the answer counted is `1 0 # #`):

    step   decoded    correct   NLL        changed
    1      1 1 # #    no        .21        yes        (step 1 always counts as changed)
    2      1 0 # #    yes       .002       yes
    3      1 0 # #    yes       .004       no

`unroll_grid` fills one in bounded memory, a chunk of rows at a time. Stopping rules (`stopping.py`) are functions of a
grid, or of what is known after a step (`Present`).

Shapes: S seeds, T loop steps, N examples (R still in the loop), L positions, W of them in the window, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.errors import InputError
from looped.model import ModelConfig
from looped.model.seeds import SeedModel, SeedWeights

# Numbers a chunk of rows may keep alive at once: on a CPU what fits its caches, which is fastest (measured).
CPU_BUDGET = 1 << 22
NUMBER_BYTES = 4
GPU_SHARE = 16  # on a GPU one part in so many of its memory: enough to be busy, and others may be there


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


def window_start(counted: Bool[Tensor, "B L"]) -> int:
    """The first position that counts in any row."""
    return int(counted.any(0).int().argmax())


def read(
    model: SeedModel,
    weights: SeedWeights,
    h: Float[Tensor, "S B W D"],
    counted: Bool[Tensor, "#S #B #W"],
) -> Reading:
    """The answer of a state and its NLL of the argmax, in fp32 whatever the precision of the weights.

    The NLL of the argmax is the log of 1 + (the other tokens' share over the best one's): the cross entropy with the
    decoded answer, but still telling steps apart where a plain log-softmax would round all of them to 0.
    """
    logits = model.readout(weights, h.contiguous()).float()
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

    def __init__(self, model: SeedModel, weights: SeedWeights, batch: Batch, *, motion: bool = False) -> None:
        """Before the first step. With `motion`, how far states move is known too."""
        self.model, self.weights = model, weights
        self.start = window_start(batch.loss_mask)
        self.step = 0
        seeds = weights.embed.shape[0]
        every = torch.arange(batch.tokens.shape[0], device=batch.tokens.device)
        self.rows: Int[Tensor, "S R"] = every.expand(seeds, -1)  # of the batch, those still in the loop
        self.counted: Bool[Tensor, "S R W"] = batch.loss_mask[:, self.start :].expand(seeds, -1, -1)
        self.targets: Int[Tensor, "S R W"] = batch.targets[:, self.start :].expand(seeds, -1, -1)
        self.unchanged: Int[Tensor, "S R"] = torch.zeros_like(self.rows)  # for so many steps, the answer
        self.seen: Tensor | None = None  # [S, R, L, D] what can be read after the last step
        self.state: Tensor | None = None  # what the next one starts from
        self.motion: Float[Tensor, "S R"] | None = None
        self._moves = motion
        self._tokens = batch.tokens.expand(seeds, -1, -1)
        self._input: Tensor | None = None  # [S, R, L, D] the tokens, embedded
        self._gate = model.gate(weights, batch.loss_mask[None])
        self._reading: Reading | None = None
        self._before: Tensor | None = None  # the answer at the last step that was read

    def advance(self) -> Float[Tensor, "S R L D"]:
        """Take a step; what can be read after it."""
        last, self._reading = self.seen, None
        self.step += 1
        if self._input is None:
            self._input = self.model.embed(self.weights, self._tokens)
        if last is None or not self._gate.finished:
            u = self.model.inject(self.state, self._input)
            self.seen, self.state = self._gate.after(self.model.step(self.weights, u))
        assert self.seen is not None
        if self._moves:
            self.motion = motion(last, self.seen)
        return self.seen

    @property
    def reading(self) -> Reading:
        """What the state says; computed when it is first asked for."""
        if self._reading is None:
            assert self.seen is not None
            found = read(self.model, self.weights, self.seen[:, :, self.start :], self.counted)
            if self._before is not None:
                changed = ((found.answer != self._before) & self.counted).any(-1)
                self.unchanged = torch.where(changed, 0, self.unchanged + 1)
            self._reading, self._before = found, found.answer
        return self._reading

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
        for name in (
            "rows",
            "counted",
            "targets",
            "unchanged",
            "_input",
            "seen",
            "state",
            "_before",
            "motion",
        ):
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
    chunk: int | None = None,
    motion: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> StepGrid:
    """Runs every row of an unstacked batch for `max_steps` steps, all seeds side by side.

    With `motion`, also how far states move. `chunk` rows go through the loop at a time: as many as fit the memory
    bound, unless given. `on_step` is called after each step.
    """
    if max_steps < 1:
        raise InputError(f"the number of loop steps must be at least 1, not {max_steps}")
    rows, size = batch.tokens.shape
    chunk = chunk or rows_at_once(model.config, weights.embed.shape[0], size, batch.tokens.device)
    grids = []
    for first in range(0, rows, chunk):
        part = batch.rows(slice(first, first + chunk))
        roll = Rollout(model, weights, part, motion=motion)
        grids.append(_grid(roll, part.steps, max_steps, on_step))
    return join(grids)


def _grid(roll: Rollout, needed: Int[Tensor, "N"], max_steps: int, on_step: Callable[[], None]) -> StepGrid:
    seen: list[tuple[Tensor | None, ...]] = []
    for _ in range(max_steps):
        h = roll.advance()
        on_step()
        correct, done = roll.correct, is_done(roll.model.config, h)
        halted = None if roll.halted is None else roll.halted.float()
        seen.append((correct, roll.reading.surprise, roll.unchanged == 0, done, halted, roll.motion))
    names = ("correct", "surprise", "changed", "done", "halting", "motion")
    columns: dict[str, Any] = dict(zip(names, zip(*seen, strict=True), strict=True))
    known = {name: torch.stack(column, dim=1) for name, column in columns.items() if column[0] is not None}
    return StepGrid(needed=needed, **known)


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


def overrun(grid: StepGrid, extra: int) -> Float[Tensor, "S"]:
    """Accuracy per seed when every example runs `extra` steps past its T (or, if negative, stops before)."""
    steps = grid.needed + extra
    low, high = int(steps.min()), int(steps.max())
    if low < 1 or high > grid.max_steps:
        raise InputError(f"{extra} steps past T lie outside the grid's steps 1 to {grid.max_steps}")
    return accuracy(grid, steps.expand(grid.correct.shape[0], -1))


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


# --- memory ------------------------------------------------------------------------------------------------


def rows_at_once(config: ModelConfig, seeds: int, size: int, device: torch.device, kept: int = 0) -> int:
    """How many rows of `size` tokens fit the memory bound; `kept` is what each token keeps besides."""
    state = config.width * (8 + 2 * config.expansion) + 4 * config.vocab
    whole = config.positions == "alibi"  # its offsets are a mask over all keys, bands or not
    scores = sum(min(size, 0 if whole else band) or size for band in config.head_bands)
    row = size * (state + scores + kept)
    return max(1, _budget(device) // (seeds * row))


def _budget(device: torch.device) -> int:
    """How many numbers may be alive at once."""
    if device.type == "cpu":
        return CPU_BUDGET
    return int(torch.cuda.get_device_properties(device).total_memory) // (GPU_SHARE * NUMBER_BYTES)
