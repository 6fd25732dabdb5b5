"""What can be asked: the models of a server, and a typed question read for one of them.

Models are those a person gives, the shipped ones, and every task's program compiled into weights. A request names a
model by its key (`copy-fast`, `addition-compiled`, `my-run:seed-0`), so no path ever comes from outside. Everything
that may be wrong with a question is reported here, before anything is computed:

    read_query(addition, "1011+0110")   →   length 4, T(n) = 4, 9 steps
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import looped.zoo as zoo
from looped import runs, solve, tasks
from looped.batches import Batch, lay_out
from looped.errors import InputError
from looped.explorer.security import LIMITS, Limits
from looped.methods import largest_steps
from looped.model import hub
from looped.rasp import programs
from looped.solve import Solver
from looped.solve.solver import SPARE_STEPS
from looped.solve.sources import COMPILED
from looped.tasks.base import Task

CardRow = Mapping[str, object]
ROW_KEYS = ("length", "stop", "accuracy", "samples")


@dataclass(frozen=True)
class Model:
    """One model that can be asked."""

    key: str  # how a request names it
    label: str  # how people read it
    solver: Solver
    rows: tuple[CardRow, ...]  # accuracy by length and stopping rule
    source: str  # where the rows come from, in words

    @property
    def compiled(self) -> bool:
        """Whether it is a program in weights, never trained: such a model has no norms."""
        return self.solver.model.config.norm == "none"

    @property
    def trained(self) -> int | None:
        """The longest length it was trained on."""
        return None if self.compiled else self.solver.trained_max_length

    def longest(self, limits: Limits = LIMITS) -> int:
        """The longest question that may be asked of it here."""
        table = self.solver.model.config
        most = limits.row
        if table.positions in ("learned", "randomised"):
            most = min(most, table.max_positions)

        def too_long(length: int) -> bool:
            return self.row_size(length) > most or largest_steps(self.solver.task, length) > limits.steps

        return max(1, bisect_left(range(1, limits.length + 1), True, key=too_long))

    def row_size(self, length: int) -> int:
        """Positions of a row for questions of this length, pause tokens included."""
        return self.solver.task.row_size(length) + self.solver.method.pause

    def describe(self, limits: Limits = LIMITS) -> dict[str, object]:
        """What the page shows of it."""
        config, method, task = self.solver.model.config, self.solver.method, self.solver.task
        trained = self.trained
        return {
            "key": self.key,
            "label": self.label,
            "task": task.name,
            "method": "compiled" if self.compiled else method.name,
            "adaptive": method.adaptive,
            "rule": self.solver.rule,
            "layers": config.layers,
            "heads": config.heads,
            "bands": list(config.head_bands),
            "running": config.running,
            "width": config.width,
            "parameters": int(sum(tensor.numel() for tensor in self.solver.weights.tensors())),
            "trained": trained,
            "trained_steps": None if trained is None else largest_steps(task, trained),
            "trained_row": None if trained is None else self.row_size(trained),
            "longest": self.longest(limits),
            "rows": [dict(row) for row in self.rows],
            "source": self.source,
            "recipe": self.solver.recipe,
            "seed": self.solver.seed,
        }


def describe_task(task: Task) -> dict[str, object]:
    """What the page says of a task, with a worked example."""
    solved = task.format_answer(task.solve(task.parse(task.example)))
    return {
        "name": task.name,
        "summary": task.summary.rstrip("."),
        "example": task.example,
        "solved": solved,
        "meaning": task.meaning(solved),
        "formula": task.steps_formula,
        "families": list(task.families),
    }


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
    compiled = (_compiled(task) for task in tasks.TASKS if task in programs.PROGRAMS)
    return ModelRegistry([*own, *ours, *compiled], problems)


def named_model(name: str) -> Model:
    """A shipped model, a task's program compiled (`addition-compiled`), a run's folder or a checkpoint."""
    if name.endswith(COMPILED) and name.removesuffix(COMPILED) in tasks.TASKS:
        return _compiled(name.removesuffix(COMPILED))
    if (found := zoo.find(name)) is not None:
        return _shipped(found)
    return _given(Path(name))


def _shipped(name: str) -> Model:
    rows = [asdict(row) for row in zoo.card(name).rows]
    return _model(name, name, solve.load(name), _kept(rows), "from the model's card")


def _compiled(task: str) -> Model:
    name = f"{task}{COMPILED}"
    return _model(name, f"{task}, the program compiled", solve.load(name), (), "")


def _given(path: Path) -> Model:
    """A checkpoint or a run, with what the run measured while it trained."""
    folder = hub.located(path)
    file = runs.seed_files(folder)[0] if folder.is_dir() else folder
    solver = solve.load(file)
    if file.name == hub.WEIGHTS:
        return _model(path.name, path.name, solver, (), "")
    if not file.stem.startswith("seed-"):
        return _model(file.stem, file.stem, solver, (), "")
    folder = file.resolve().parent
    rows = _kept(runs.last_evaluation(folder, solver.seed))
    key, label = f"{folder.name}:{file.stem}", f"{folder.name}, {file.stem}"
    return _model(key, label, solver, rows, "from the run's own measurements")


def _model(key: str, label: str, solver: Solver, rows: tuple[CardRow, ...], source: str) -> Model:
    if solver.method.prediction == "ntp":
        raise InputError(f"{label}: {solver.method.name} decodes token by token and has no loop to watch")
    return Model(key, label, solver, rows, source)


def _kept(rows: Iterable[CardRow]) -> tuple[CardRow, ...]:
    """The rows of uniform questions, with what a page draws of them."""
    even = (row for row in rows if row.get("family", "uniform") == "uniform")
    return tuple({key: row[key] for key in ROW_KEYS if key in row} for row in even)


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
        raise InputError(
            f"this question takes {needed} steps, more than the {limits.steps} that are run here"
        )
    if method.adaptive and stretch > 1:
        steps = min(limits.steps, math.ceil(stretch * needed) + SPARE_STEPS)
    return Query(model, tuple(tokens), task.format_question(tokens), length, needed, max(steps, needed))
