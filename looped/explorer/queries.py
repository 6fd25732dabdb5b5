"""What can be asked here, and what is answered: models, a typed question read for one of them, its loop step by step.

A request names a model by its key (`copy-fast`, `addition-compiled`, `my-run:seed-0`), so no path ever comes from
outside. Whatever may be wrong with a question is reported before anything is computed:

    read_query(addition, "1011+0110")   →   length 4, T(n) = 4, 9 steps

A run is answered by messages; arrays in them are base64 of little-endian numbers, ten times faster to read than lists:

    start   the row that is fed in, the target and where it begins, T(n), how many steps will be run
    step    at every position the likeliest tokens and their probabilities; confidence, entropy, change
    end     at which step each stopping rule would have stopped, and what it would have answered

Shapes: K steps at a time, L positions, W of them from the answer's first on, D width.
"""

from __future__ import annotations

import base64
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

import looped.zoo as zoo
from looped import runs, solve, tasks
from looped.batches import Batch, lay_out
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.rollout import DIVERGED, Rollout, StepGrid, is_done, motion, read, window_start
from looped.explorer.security import LIMITS, Limits
from looped.fast import attention, layer_ops
from looped.fast.stacked import Prepared, StackedTransformer
from looped.methods import largest_steps
from looped.model import hub
from looped.rasp import programs
from looped.rasp.trace import Trace
from looped.solve import COMPILED, Solver
from looped.solve.solver import SPARE_STEPS, fitting_threads, text_of
from looped.tasks.base import Task
from looped.tasks.distributions import UNIFORM

# --- models ------------------------------------------------------------------------------------------------
CardRow = Mapping[str, object]
ROW_KEYS = ("length", "stop", "accuracy", "samples")


@dataclass(frozen=True)
class Model:
    """One model that can be asked."""

    key: str  # how a request names it
    label: str  # how people read it
    solver: Solver
    rows: tuple[CardRow, ...] = ()  # accuracy by length and stopping rule
    source: str = ""  # where the rows come from, in words

    def __post_init__(self) -> None:
        method = self.solver.method
        if method.prediction == "ntp":
            raise InputError(f"{self.label}: {method.name} decodes token by token and has no loop to watch")

    @property
    def compiled(self) -> bool:
        """Whether it is a program in weights, never trained: such a model has no norms."""
        return self.solver.model.config.norm == "none"

    @property
    def trained(self) -> int | None:
        """The longest length it was trained on."""
        return None if self.compiled else self.solver.trained_max_length

    @property
    def trained_steps(self) -> int | None:
        """The most loop steps of its training: T(n) of the longest length, or as many as its rule `loops` gives."""
        if (longest := self.trained) is None:
            return None
        task, loops = self.solver.task, self.solver.loops
        return loops.bounds(task, torch.tensor([1, largest_steps(task, longest)]), longest)[1]

    def longest(self, limits: Limits = LIMITS) -> int:
        """The longest question that may be asked of it here."""
        most = self.most_positions(limits)

        def too_long(length: int) -> bool:
            return self.row_size(length) > most or largest_steps(self.solver.task, length) > limits.steps

        return max(1, bisect_left(range(1, limits.length + 1), True, key=too_long))

    def most_positions(self, limits: Limits = LIMITS) -> int:
        """The longest row: that of the limits, or of the model's table of positions."""
        config = self.solver.model.config
        table = config.positions in ("learned", "randomised")
        return min(limits.row, config.max_positions) if table else limits.row

    def row_size(self, length: int) -> int:
        """Positions of a row for questions of this length, pause tokens included."""
        return self.solver.task.row_size(length) + self.solver.method.pause

    def describe(self) -> dict[str, object]:
        """What the page shows of it."""
        config, method, task = self.solver.model.config, self.solver.method, self.solver.task
        trained = self.trained
        return {
            "key": self.key, "label": self.label, "task": task.name,
            "method": "compiled" if self.compiled else method.name, "adaptive": method.adaptive,
            "rule": self.solver.rule, "recipe": self.solver.recipe, "seed": self.solver.seed,
            "layers": config.layers, "heads": config.heads, "bands": list(config.head_bands),
            "running": config.running, "width": config.width,
            "parameters": int(sum(tensor.numel() for tensor in self.solver.weights.tensors())),
            "trained": trained, "trained_steps": self.trained_steps,
            "trained_row": None if trained is None else self.row_size(trained), "longest": self.longest(),
            "rows": [dict(row) for row in self.rows], "source": self.source,
        }  # fmt: skip


def describe_task(task: Task) -> dict[str, object]:
    """What the page says of a task, with a worked example."""
    solved = task.format_answer(task.solve(task.parse(task.example)))
    return {
        "name": task.name, "summary": task.summary.rstrip("."), "example": task.example, "solved": solved,
        "meaning": task.meaning(solved), "formula": task.steps_formula, "families": list(task.families),
    }  # fmt: skip


class ModelRegistry(dict[str, Model]):
    """All models of a server, by key, in the order in which they are offered."""

    def __init__(self, models: Iterable[Model], problems: Sequence[str] = ()) -> None:
        super().__init__()
        for model in models:
            if model.key in self:
                raise InputError(f"two models are named {model.key!r}: rename one of the files")
            self[model.key] = model
        self.problems = tuple(problems)  # a sentence for each shipped file that could not be used


def all_models(given: Sequence[Path] = (), shipped: Sequence[str] | None = None) -> ModelRegistry:
    """The models given, the shipped ones (all, or those named), every program compiled.

    Of the shipped ones come first those that a task's name stands for in `looped.load`. A shipped file that cannot be
    used is told of and left out.
    """
    own = [_given(path) for path in given]
    ours, problems = [], []
    for name in zoo.names() if shipped is None else shipped:
        try:
            ours.append(_shipped(name))
        except InputError as error:
            problems.append(str(error))
    ours.sort(key=lambda model: zoo.find(model.solver.task.name) != model.key)
    compiled = (named_model(f"{task}{COMPILED}") for task in tasks.TASKS if task in programs.PROGRAMS)
    return ModelRegistry([*own, *ours, *compiled], problems)


def named_model(name: str) -> Model:
    """A shipped model, a task's program compiled (`addition-compiled`), a run's folder or a checkpoint."""
    task = name.removesuffix(COMPILED)
    if task != name and task in tasks.TASKS:
        return Model(name, f"{task}, the program compiled", solve.load(name))
    if (found := zoo.find(name)) is not None:
        return _shipped(found)
    return _given(Path(name))


def _shipped(name: str) -> Model:
    rows = [asdict(row) for row in zoo.card(name).rows]
    return Model(name, name, solve.load(name), _kept(rows), "from the model's card")


def _given(path: Path) -> Model:
    """A checkpoint or a run, with what the run measured while it trained."""
    folder = hub.located(path)
    file = runs.seed_files(folder)[0] if folder.is_dir() else folder
    solver = solve.load(file)
    if not file.stem.startswith("seed-"):
        name = path.name if file.name == hub.WEIGHTS else file.stem
        return Model(name, name, solver)
    folder = file.resolve().parent
    rows = _kept(runs.last_evaluation(folder, solver.seed))
    key, label = f"{folder.name}:{file.stem}", f"{folder.name}, {file.stem}"
    return Model(key, label, solver, rows, "from the run's own measurements")


def _kept(rows: Iterable[CardRow]) -> tuple[CardRow, ...]:
    """The rows of uniform questions, with what a page draws of them."""
    uniform = (row for row in rows if row.get("family", UNIFORM) == UNIFORM)
    return tuple({key: row[key] for key in ROW_KEYS if key in row} for row in uniform)


# --- a question --------------------------------------------------------------------------------------------
STRETCHES = (1.0, 1.25, 1.5, 2.0, 3.0)  # how far to run, in multiples of T(n)
USUAL_STRETCH = 1.25  # far enough to see what an overrun does


@dataclass(frozen=True)
class Query:
    """A question that a model can be asked here: parsed, measured and found small enough."""

    model: Model
    tokens: tuple[str, ...]
    text: str
    length: int
    needed: int  # T(n), or the method's own depth
    steps: int  # that will be run

    def batch(self) -> Batch:
        """The question as the one row the model reads."""
        task, method = self.model.solver.task, self.model.solver.method
        problems = task.problems([list(self.tokens)])
        return lay_out(problems, task.vocab, task.row_size(self.length), method.prediction, method.pause)

    def halts(self, rule: str) -> bool:
        """Whether a stopping rule applies: some ask the model, and not every model says something."""
        solver = self.model.solver
        if not solver.method.adaptive:
            return rule == "oracle"
        if rule == "halt-mode":
            return solver.model.config.halting != "none"
        return rule != "halt" or solver.model.config.says_done


def read_query(model: Model, text: str, stretch: float = USUAL_STRETCH, limits: Limits = LIMITS) -> Query:
    """Read a typed question for a model; raises a sentence where it is no question or too long."""
    if len(text) > limits.text:
        raise InputError(f"the question has {len(text)} characters; at most {limits.text} are read")
    if stretch not in STRETCHES:
        known = ", ".join(f"{each:g}" for each in STRETCHES)
        raise InputError(f"the loop runs for {known} times T(n) steps, not {stretch:g}")
    task, method = model.solver.task, model.solver.method
    tokens = task.parse(text)
    length, _ = task.measure(tokens)
    longest = model.longest(limits)
    if length > longest:
        raise InputError(f"a question of length {length} is too long to watch here: {longest} is the most")
    own, asked = torch.tensor(task.steps_of(tokens)), torch.tensor(len(tokens))
    needed = steps = int(model.solver.subject.steps(own, asked))
    if needed > limits.steps:
        most = f"more than the {limits.steps} that are run here"
        raise InputError(f"this question takes {needed} steps, {most}")
    if method.adaptive and stretch > 1:
        steps = min(limits.steps, math.ceil(stretch * needed) + SPARE_STEPS)
    return Query(model, tuple(tokens), task.format_question(tokens), length, needed, max(steps, needed))


# --- its loop ----------------------------------------------------------------------------------------------
TOP = 4  # tokens per position whose probabilities are sent; the rest are "others"
# Those that look at one question alone, in the order in which they are listed.
RULES = ("oracle", "confidence", "threshold", "converged", "settled", "halt", "halt-mode")

State = Float[Tensor, "L D"]
Keep = Callable[[int, State], None]  # told of every step and the state after it
# What stopping rules ask about a step (the fields of `StepGrid`), here of one at which none of them would stop.
NEVER = {
    "correct": False, "surprise": math.inf, "changed": True, "done": False, "halting": -math.inf, "motion": math.inf,
}  # fmt: skip


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

    def __init__(self, asked: Query, keep: Keep = lambda *_: None, stops: Sequence[str] = ()) -> None:
        solver, self._rules = asked.model.solver, (*RULES, *stops)
        self.asked, self._keep = asked, keep
        self.model, self.weights, self.task = solver.model, solver.weights, solver.task
        self.batch = asked.batch()
        self.start = window_start(self.batch.loss_mask)  # where the answer begins
        self.computed = 0.0  # seconds
        self.state: State | None = None  # after the last step so far
        self._seen: State | None = None  # what was read of it
        self._answer: Int[Tensor, "W"] | None = None  # and decoded
        self._answers: list[str] = []  # of every step
        self._past: dict[str, list[Any]] = {name: [] for name in NEVER}  # empty where the model says nothing
        self._roll = Rollout(self.model, self.weights, self.batch)

    @property
    def expected(self) -> str:
        """The right answer."""
        return self.task.format_answer(self.task.solve(list(self.asked.tokens)))

    @property
    def done(self) -> int:
        """Steps so far."""
        return len(self._answers)

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
                    self._past["halting"].append(float(self._roll.halted))
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
            "steps": asked.steps, "names": list(self.task.vocab.names), "row": self.batch.tokens[0].tolist(),
            "target": self.batch.targets[0].tolist(), "from": self.start, "expected": expected,
            "meaning": self.task.meaning(expected),
        }  # fmt: skip

    def end_message(self) -> dict[str, object]:
        """The last message of a run."""
        return {"kind": "end", "rules": list(self.rules()), "seconds": round(self.computed, 4)}

    def rules(self) -> Iterator[dict[str, object]]:
        """Where each stopping rule would have stopped; `stopped` is false where it never did in these steps."""
        told = {name: [*past, NEVER[name]] for name, past in self._past.items() if past}
        columns = {name: torch.tensor(past)[None, :, None] for name, past in told.items()}  # [S=1, T, N=1]
        grid = StepGrid(needed=torch.tensor([self.asked.needed]), **columns)
        for rule in map(stopping.get, filter(self.asked.halts, self._rules)):
            chosen = int(rule.steps(grid)[0, 0])
            at = min(chosen, self.done)
            answer, correct = self._answers[at - 1], self._past["correct"][at - 1]
            yield {
                "name": rule.name, "step": at, "stopped": chosen <= self.done, "answer": answer,
                "meaning": self.task.meaning(answer), "correct": correct,
            }  # fmt: skip

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
        decoded = answers[:1] - 1 if self._answer is None else self._answer[None]  # every first token is new
        rewritten = (answers != torch.cat([decoded, answers[:-1]])).sum(-1)
        moved = motion(self._before(h[0])[None], h)[0]
        if self._seen is None:
            moved[0] = math.inf  # nothing was there to move from
        for k in (moved == 0).nonzero()[:, 0].tolist():  # stands still: as sure as before, not as K rounds it
            surprise[k] = surprise[k - 1] if k else self._past["surprise"][-1]
        distance = torch.linalg.vector_norm(window - self._before(window), dim=(1, 2))
        change = distance / torch.linalg.vector_norm(window, dim=(1, 2)).clamp(min=1e-12)
        done = is_done(self.model.config, h)
        seen = {"surprise": surprise, "correct": correct, "changed": rewritten > 0, "motion": moved}
        for name, values in (seen if done is None else seen | {"done": done[0]}).items():
            self._past[name] += values.tolist()
        texts = [text_of(self.task, ids) for ids in answers.tolist()]
        self._answers += texts
        self._seen, self._answer = h[0, -1], answers[-1]
        # [K, L, top] → [K, top, L]: a page paints the likeliest tokens of a whole row first
        numbers = tokens.mT.numpy().astype(np.uint16), (shares.mT * 65535).round().numpy().astype(np.uint16)
        columns = (surprise.neg().exp(), entropy, change, rewritten, correct)
        meanings = map(self.task.meaning, texts)
        rows = zip(*numbers, *(column.tolist() for column in columns), texts, meanings, strict=True)
        return [LoopStep(first + i, *row) for i, row in enumerate(rows)]

    def _before(self, states: Float[Tensor, "K P D"]) -> Float[Tensor, "K P D"]:
        """The state before each, at the same last positions; zeros before the first."""
        size = states.shape[1]
        first = torch.zeros_like(states[:1]) if self._seen is None else self._seen[None, -size:]
        return torch.cat([first, states[:-1]])


@torch.inference_mode()
def attention_map(asked: Query, before: State | None, layer: int, head: int) -> Float[Tensor, "L L"]:
    """How much position i (row) takes from position j in the step that follows the state `before`, None at first."""
    solver = asked.model.solver
    model, config, stacked = solver.model, solver.model.config, solver.weights
    if not isinstance(model, StackedTransformer) or not isinstance(stacked, Prepared):
        raise InputError("a block of the user's own has no attention maps to show")
    x = model.embed(stacked, asked.batch().tokens[None])
    h = model.inject(None if before is None else before[None, None], x)
    seen: list[Tensor] = []

    def attend(qkv: Tensor) -> Tensor:
        seen.append(qkv)
        return attention.attend(config, qkv)

    for weights in stacked.layers[: layer + 1]:
        h = layer_ops.apply_layer(weights, h, attend, model.linear, model.normalise, model.activate)
    found = attention.weights(config, seen[layer])[0, head].float()
    if not bool(found.isfinite().all()):
        raise InputError(f"{asked.model.label} {DIVERGED}")
    return found


# --- messages ----------------------------------------------------------------------------------------------
OUTPUT = "output"  # the name of what a program would put out, beside its variables


def _sent(value: object) -> object:
    if isinstance(value, np.ndarray):
        return packed(value)
    return round(value, 6) if isinstance(value, float) else value


def packed(array: np.ndarray) -> str:
    """An array's numbers as base64, little-endian."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode("ascii")


def program_message(run: Trace) -> dict[str, object]:
    """A program's run, its output first; values are int16 [steps + 1, L], -1 for no token. Row 0 is the preparation."""
    tokens, variables = (OUTPUT, *run.program.tokens), []
    for name in (OUTPUT, *run.variables):
        rows = run.outputs if name == OUTPUT else [e.values for e in run.entries if e.name == name]
        # A value that is the same everywhere stands at every position.
        values = np.stack([np.broadcast_to(row, rows[0].shape) for row in rows]).astype(np.int16)
        variables.append({"name": name, "tokens": name in tokens, "values": packed(values)})
    return {"steps": run.steps, "names": list(run.program.vocab.names), "variables": variables}
