"""What a page asks for and gets: one question through one model, step by step, and attention weights.

    start   the row that is fed in, the target and where it begins, T(n), how many steps will be run
    steps   at every position the likeliest tokens and their probabilities; confidence, entropy, change
    end     at which step each stopping rule would have stopped, and what it would have answered

Steps are computed as they are asked for (`advance`), so that the server can serve others in between and a person can
cancel a run. Attention weights are taken from the same pass that `StackedTransformer.step` makes, layer by layer.

Shapes: K steps at a time, L positions, W of them from the answer's first on, D width.

A request's body is a JSON object with exactly the fields of one of the dataclasses here. An answer is JSON; arrays in
it are base64 of little-endian numbers, which a page reads ten times faster than lists. A run is answered as one JSON
object per line (`start`, `step` …, `end`), sent as they come.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped import serial
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.rollout import DIVERGED, Rollout, StepGrid, is_done, motion, read, window_start
from looped.explorer.models import USUAL_STRETCH, Query
from looped.fast import attention, layer_ops
from looped.fast.stacked import Prepared, StackedTransformer
from looped.rasp.trace import Trace
from looped.solve.solver import fitting_threads, text_of
from looped.vocab import Vocab

TOP = 4  # tokens per position whose probabilities are sent; the rest are "others"
# Those that look at one question alone, in the order in which they are listed.
RULES = ("oracle", "confidence", "threshold", "converged", "settled", "halt", "halt-mode")

Keep = Callable[[int, Float[Tensor, "L D"]], None]  # told of every step and the state after it


@dataclass(frozen=True)
class LoopStep:
    """What is seen after one step."""

    step: int
    tokens: np.ndarray  # uint16 [4, L], the likeliest first
    shares: np.ndarray  # uint16 [4, L], of 65535
    confidence: float  # exp of minus the mean cross entropy with its own answer, over what counts
    entropy: float  # mean over what counts, in bits
    change: float  # how far the state has moved, relative to its size, over what counts
    rewritten: int  # positions that count whose token is another than before
    correct: bool
    answer: str
    meaning: str  # what the answer stands for, see `Task.meaning`

    def message(self) -> dict[str, object]:
        """As it is sent; arrays are packed."""
        return {"kind": "step"} | {each.name: _sent(getattr(self, each.name)) for each in fields(self)}


class WatchedLoop:
    """A loop in progress."""

    def __init__(
        self, asked: Query, keep: Keep = lambda step, state: None, stops: Sequence[str] = ()
    ) -> None:
        solver, self._rules = asked.model.solver, (*RULES, *stops)
        self.asked, self._keep = asked, keep
        self.model, self.weights, self.task = solver.model, solver.weights, solver.task
        self.batch = asked.batch()
        self.start = window_start(self.batch.loss_mask)  # where the answer begins
        self.computed = 0.0  # seconds
        self.state: Float[Tensor, "L D"] | None = None  # after the last step so far
        self._seen: Float[Tensor, "L D"] | None = None  # what was read of it
        self._answer: Int[Tensor, "W"] | None = None  # and decoded
        self._past = StepHistory()
        self._roll = Rollout(self.model, self.weights, self.batch)

    @property
    def vocab(self) -> Vocab:
        """The names of the ids in a row."""
        return self.task.vocab

    @property
    def expected(self) -> str:
        """The right answer."""
        return self.task.format_answer(self.task.solve(list(self.asked.tokens)))

    @property
    def done(self) -> int:
        """Steps so far."""
        return len(self._past.answers)

    @property
    def over(self) -> bool:
        """Whether all steps are done."""
        return self.done == self.asked.steps

    def advance(self, seconds: float, most: int | None = None) -> list[LoopStep]:
        """The next steps, as many as fit the time but at least one; none when the loop is over.

        The time is what this thread has worked: on a busy machine, waiting would use it up.
        """
        began, worked = time.perf_counter(), time.thread_time()
        read: list[Tensor] = []
        first = self.done + 1
        with torch.inference_mode(), fitting_threads(self.model.config, self.batch.tokens.numel()):
            for step in range(first, min(self.asked.steps, first + (most or self.asked.steps) - 1) + 1):
                read.append(self._roll.advance())
                if self._roll.halted is not None:
                    self._past.halting.append(float(self._roll.halted))
                assert self._roll.state is not None
                self.state = self._roll.state[0, 0]
                self._keep(step, self.state)
                if time.thread_time() - worked > seconds:
                    break
            found = self._see(torch.cat(read, dim=1), first) if read else []
        self.computed += time.perf_counter() - began
        return found

    def start_message(self) -> dict[str, object]:
        """The first message of a run."""
        asked, expected = self.asked, self.expected
        return {
            "kind": "start", "question": asked.text, "length": asked.length, "needed": asked.needed,
            "steps": asked.steps, "names": list(self.vocab.names), "row": self.batch.tokens[0].tolist(),
            "target": self.batch.targets[0].tolist(), "from": self.start, "expected": expected,
            "meaning": self.task.meaning(expected),
        }  # fmt: skip

    def end_message(self) -> dict[str, object]:
        """The last message of a run."""
        return {"kind": "end", "rules": list(self.rules()), "seconds": round(self.computed, 4)}

    def rules(self) -> Iterator[dict[str, object]]:
        """Where each stopping rule would have stopped; `stopped` is false where it never did in these steps."""
        grid = self._past.grid(self.asked.needed)
        for rule in map(stopping.get, filter(self.asked.halts, self._rules)):
            chosen = int(rule.steps(grid)[0, 0])
            at = min(chosen, self.done)
            yield {
                "name": rule.name,
                "step": at,
                "stopped": chosen <= self.done,
                "answer": self._past.answers[at - 1],
                "meaning": self.task.meaning(self._past.answers[at - 1]),
                "correct": self._past.correct[at - 1],
            }

    def _see(self, h: Float[Tensor, "1 K L D"], first: int) -> list[LoopStep]:
        """Everything that is told of K states, all of them at once: this is half of a small model's time."""
        window = h[0, :, self.start :]
        reading = read(self.model, self.weights, window[None], self.batch.loss_mask[None, :, self.start :])
        answers, surprise = reading.answer[0], reading.surprise[0]
        if not bool(surprise.isfinite().all() & h.isfinite().all()):
            raise InputError(f"{self.asked.model.label} {DIVERGED}")
        logs = self.model.readout(self.weights, h).float().log_softmax(-1)[0]
        shares, tokens = logs.exp().topk(min(TOP, logs.shape[-1]), dim=-1)
        entropy = -(logs.exp() * logs)[:, self.start :].sum(-1).mean(-1) / math.log(2)
        correct = (answers == self.batch.targets[:, self.start :]).all(-1)
        rewritten, change = self._rewritten(answers), self._change(window)
        moved = motion(self._before(h[0])[None], h)[0]
        if self._seen is None:
            moved[0] = math.inf  # nothing was there to move from
        for k in (
            (moved == 0).nonzero()[:, 0].tolist()
        ):  # it stands still: as sure as before, not as K rounds it
            surprise[k] = surprise[k - 1] if k else self._past.surprise[-1]
        done = is_done(self.model.config, h)
        self._past.answers += [text_of(self.task, ids) for ids in answers.tolist()]
        self._past.surprise += surprise.tolist()
        self._past.correct += correct.tolist()
        self._past.changed += (rewritten > 0).tolist()
        self._past.motion += moved.tolist()
        self._past.done += [] if done is None else done[0].tolist()
        self._seen, self._answer = h[0, -1], answers[-1]
        # [K, L, top] → [K, top, L]: a page paints the likeliest tokens of a whole row first
        numbers = tokens.mT.numpy().astype(np.uint16), (shares.mT * 65535).round().numpy().astype(np.uint16)
        columns = (surprise.neg().exp(), entropy, change, rewritten, correct)
        texts = self._past.answers[first - 1 :]
        meanings = map(self.task.meaning, texts)
        rows = zip(*numbers, *(column.tolist() for column in columns), texts, meanings, strict=True)
        return [LoopStep(first + i, *row) for i, row in enumerate(rows)]

    def _rewritten(self, answers: Int[Tensor, "K W"]) -> Int[Tensor, "K"]:
        """How many tokens of each answer are new; all of them after the first step."""
        first = answers[:1] - 1 if self._answer is None else self._answer[None]
        return (answers != torch.cat([first, answers[:-1]])).sum(-1)

    def _change(self, window: Float[Tensor, "K W D"]) -> Float[Tensor, "K"]:
        """How far each state has moved from the one before, relative to its own size."""
        moved = window - self._before(window)
        distance: Tensor = torch.linalg.vector_norm(moved, dim=(1, 2))
        size: Tensor = torch.linalg.vector_norm(window, dim=(1, 2))
        return distance / size.clamp(min=1e-12)

    def _before(self, states: Float[Tensor, "K P D"]) -> Float[Tensor, "K P D"]:
        """The state before each, at the same last positions; zeros before the first."""
        size = states.shape[1]
        first = torch.zeros_like(states[:1]) if self._seen is None else self._seen[None, -size:]
        return torch.cat([first, states[:-1]])


@dataclass
class StepHistory:
    """What stopping rules ask about the steps so far."""

    answers: list[str] = field(default_factory=list)
    surprise: list[float] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    changed: list[bool] = field(default_factory=list)
    motion: list[float] = field(default_factory=list)
    done: list[bool] = field(default_factory=list)  # what the model says; empty for one that does not
    halting: list[float] = field(default_factory=list)  # of its halting head; empty where it has none

    def grid(self, needed: int) -> StepGrid:
        """The steps as a grid, and one more at which no rule would stop: a rule that names it never stopped."""
        return StepGrid(
            _column([*self.correct, False]),
            _column([*self.surprise, math.inf]),
            _column([*self.changed, True]),
            torch.tensor([needed]),
            _column([*self.done, False]) if self.done else None,
            _column([*self.halting, -math.inf]) if self.halting else None,
            _column([*self.motion, math.inf]),
        )


def _column(values: list[bool] | list[float]) -> Tensor:
    """A list over steps as [S, T, N] with one seed and one example."""
    return torch.tensor(values)[None, :, None]


@torch.inference_mode()
def attention_map(
    asked: Query, before: Float[Tensor, "L D"] | None, layer: int, head: int
) -> Float[Tensor, "L L"]:
    """How much position i (row) takes from position j, in the step that follows the state `before`.

    `before` is None for the first step, which sees the embedded question alone.
    """
    solver = asked.model.solver
    model, config, stacked = solver.model, solver.model.config, solver.weights
    if not isinstance(model, StackedTransformer) or not isinstance(stacked, Prepared):
        raise InputError("a block of the user's own has no attention maps to show")
    x = model.embed(stacked, asked.batch().tokens[None])
    h = model.inject(None if before is None else before[None, None], x)
    seen: list[Tensor] = []

    def watched(qkv: Tensor) -> Tensor:
        seen.append(qkv)
        return attention.attend(config, qkv)

    for i, weights in enumerate(stacked.layers[: layer + 1]):
        attend = watched if i == layer else partial(attention.attend, config)
        h = layer_ops.apply_layer(weights, h, attend, model.linear, model.normalise, model.activate)
    found = attention.weights(config, seen[0])[0, head].float()
    if not bool(found.isfinite().all()):
        raise InputError(f"{asked.model.label} {DIVERGED}")
    return found


T = TypeVar("T")
OUTPUT = "output"  # the name of what a program would put out, beside its variables


@dataclass(frozen=True)
class RunRequest:
    """Ask a model a question and watch it."""

    model: str
    question: str
    stretch: float = USUAL_STRETCH  # how far to run, in multiples of T(n)


@dataclass(frozen=True)
class ProgramRequest:
    """Run the program of a model's task on a question."""

    model: str
    question: str


@dataclass(frozen=True)
class AttentionRequest:
    """Where a head looks at a step; layers and heads count from 0, steps from 1."""

    model: str
    question: str
    step: int
    layer: int
    head: int


@dataclass(frozen=True)
class DrawRequest:
    """Draw a question for a model."""

    model: str
    length: int
    family: str = "uniform"
    seed: int = 0


def read_request(kind: type[T], body: bytes) -> T:
    """A request from a body; raises a sentence that names what is wrong with it."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("the request is not UTF-8") from None
    return serial.from_json(kind, serial.parse(text, "the request"), "the request")


def _sent(value: object) -> object:
    if isinstance(value, np.ndarray):
        return packed(value)
    return round(value, 6) if isinstance(value, float) else value


def packed(array: np.ndarray) -> str:
    """An array's numbers as base64, little-endian."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def json_line(message: dict[str, object]) -> bytes:
    """One message of a stream."""
    return json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def program_message(run: Trace) -> dict[str, object]:
    """A program's run, its output first; values are int16 [steps + 1, L], -1 for no token. Row 0 is the preparation."""
    steps = {OUTPUT: run.outputs} | {
        name: [entry.values for entry in run.entries if entry.name == name] for name in run.variables
    }
    return {
        "steps": run.steps,
        "names": list(run.program.vocab.names),
        "variables": [
            {"name": name, "tokens": name == OUTPUT or name in run.program.tokens, "values": packed(_stacked(rows))}
            for name, rows in steps.items()
        ],
    }  # fmt: skip


def _stacked(rows: Sequence[np.ndarray]) -> np.ndarray:
    """A value that is the same everywhere stands at every position."""
    return np.stack([np.broadcast_to(row, rows[0].shape) for row in rows]).astype(np.int16)
