"""When to stop looping: each rule has a name and answers one question, "which step?", from a step grid.

| rule               | stops an example                                                | on the fly |
|--------------------|-----------------------------------------------------------------|------------|
| `oracle`           | at its T(n)                                                     | yes        |
| `confidence`       | where its NLL of the argmax is lowest (eq. 2 of the paper, B = 1)| no         |
| `confidence-batch` | where the mean NLL of all examples is lowest (eq. 2, B = N)     | no         |
| `threshold=ε`      | at the first step with an NLL below ε, else at the last         | yes        |
| `converged=k`      | once its answer has stood for k steps, else at the last         | yes        |
| `settled=ε`        | at the first step that moves no position's state by more than ε | yes        |
| `halt=p`           | where the model itself says that it is done, else at the last   | yes        |
| `halt-mode`        | at the step at which its halting head most probably halts       | no         |

`confidence=.25` leaves out the first quarter of the steps, and so does `confidence-batch=.25`: the paper looks at part
of them, and after one step many a model writes a token and is sure that nothing follows. Where two steps are equally
sure, the earlier one is taken. `converged` names the step at which it knows; the answer has stood since k steps before.
docs/stopping.md says what the numbers are unless given.

A rule that decides on the fly is stated once, as a question about the present step (`OnlineRule.stops`); its answer on
a grid follows, and `decode.run_adaptive` uses the same question to let finished rows leave. A further rule is a class
and a line in `RULES`; one that looks at more than `Present` holds adds a field there.

Shapes: S seeds, T loop steps, N examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped import registry
from looped.errors import InputError
from looped.evaluation.rollout import Present, StepGrid

DEFAULT_THRESHOLD = 0.01
LONGEST_PATIENCE = 10**9  # steps
DEFAULT_PATIENCE = 3
DEFAULT_HALT = 0.5
DEFAULT_MOTION = 0.1
NOT_SAID = "the rule halt is for models that say when they are done; this one does not"


class Rule(ABC):
    """A way to choose a step."""

    name: str  # as `get` reads it, parameter included; the class's own unless given
    needs_answer = True  # whether it looks at what is read from the state, not only where an example stands
    needs_motion = False  # whether it looks at how far states move, which is computed only where asked for

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    @abstractmethod
    def steps(self, grid: StepGrid) -> Int[Tensor, "S N"]:
        """The step (from 1) at which each example stops."""


class OnlineRule(Rule):
    """A rule that can tell after each step whether to go on."""

    @abstractmethod
    def stops(self, now: Present) -> Bool[Tensor, "S N"]:
        """Which examples stop after this step, if they have not yet."""

    def stopped(self, now: Present) -> Bool[Tensor, "S N"]:
        """What `stops` returns; raises where a rule of a user's own returns anything else."""
        found: object = self.stops(now)
        if not isinstance(found, Tensor) or found.dtype != torch.bool:
            said = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise InputError(f"the stopping rule {self.name}: stops must return a boolean tensor, not {said}")
        return found

    def steps(self, grid: StepGrid) -> Int[Tensor, "S N"]:
        """The first step after which the rule stops an example; the grid's last if there is none."""
        seeds, last, examples = grid.correct.shape
        needed = grid.needed.expand(seeds, examples)
        chosen = torch.full_like(needed, last)
        unchanged = torch.zeros_like(chosen)
        running = torch.ones_like(chosen, dtype=torch.bool)
        for t in range(last):
            unchanged = torch.where(grid.changed[:, t], 0, unchanged + 1)
            said = (None if each is None else each[:, t] for each in (grid.done, grid.halting, grid.motion))
            now = Present(t + 1, grid.surprise[:, t], unchanged, needed, *said)
            stops = running & self.stopped(now)
            chosen = torch.where(stops, t + 1, chosen)
            running &= ~stops
        return chosen


class Oracle(OnlineRule):
    """Stops where the task says the answer is due."""

    needs_answer = False

    def stops(self, now: Present) -> Bool[Tensor, "S N"]:
        """At T."""
        return now.needed == now.step

    def steps(self, grid: StepGrid) -> Int[Tensor, "S N"]:
        """T itself; raises if the grid ends before."""
        if int(grid.needed.max()) > grid.max_steps:
            last = int(grid.needed.max())
            raise InputError(f"the oracle stops at step {last}, but the loop ran only {grid.max_steps}")
        return grid.needed.expand(grid.correct.shape[0], -1)


class Confidence(Rule):
    """Stops each example where it is surest."""

    base = "confidence"

    def __init__(self, after: float = 0.0) -> None:
        if not 0 <= after < 1:
            raise InputError(f"confidence can leave out a share of the steps from 0 to below 1, not {after}")
        self.after = after
        self.name = f"{self.base}={after:g}" if after else self.base

    def steps(self, grid: StepGrid) -> Int[Tensor, "S N"]:
        """The step of the lowest NLL of the argmax, for each example."""
        first = self.first(grid)
        return grid.surprise[:, first:].argmin(1) + first + 1

    def first(self, grid: StepGrid) -> int:
        """How many of the grid's steps are left out."""
        return int(self.after * grid.max_steps)


class ConfidenceBatch(Confidence):
    """Stops all examples together, where they are surest on average."""

    base = "confidence-batch"

    def steps(self, grid: StepGrid) -> Int[Tensor, "S N"]:
        """One step per seed, for all its examples."""
        first = self.first(grid)
        best = grid.surprise[:, first:].double().mean(2).argmin(1) + first + 1
        return best[:, None].expand(-1, grid.correct.shape[2])


class Threshold(OnlineRule):
    """Stops an example as soon as it is sure enough."""

    def __init__(self, below: float = DEFAULT_THRESHOLD) -> None:
        if not 0 < below < float("inf"):
            raise InputError(f"a stopping threshold must be a number above 0, not {below}")
        self.below = below
        self.name = "threshold" if below == DEFAULT_THRESHOLD else f"threshold={below:g}"

    def stops(self, now: Present) -> Bool[Tensor, "S N"]:
        """Where the NLL of the argmax is below the threshold."""
        assert now.surprise is not None
        return now.surprise < self.below


class Converged(OnlineRule):
    """Stops an example once its answer has stood for a while."""

    def __init__(self, patience: int = DEFAULT_PATIENCE) -> None:
        if not 1 <= patience <= LONGEST_PATIENCE:
            bounds = f"1 to {LONGEST_PATIENCE} steps"
            raise InputError(f"an answer must stay unchanged for {bounds}, not {str(patience)[:20]}")
        self.patience = patience
        self.name = "converged" if patience == DEFAULT_PATIENCE else f"converged={patience}"

    def stops(self, now: Present) -> Bool[Tensor, "S N"]:
        """Where the answer is that of `patience` steps ago."""
        return now.unchanged >= self.patience


class Settled(OnlineRule):
    """Stops an example once no position's state moves any more: at a fixed point, nothing can change."""

    needs_motion = True

    def __init__(self, below: float = DEFAULT_MOTION) -> None:
        if not 0 < below < float("inf"):
            raise InputError(f"a state's motion must be compared with a number above 0, not {below}")
        self.below = below
        self.name = "settled" if below == DEFAULT_MOTION else f"settled={below:g}"

    def stops(self, now: Present) -> Bool[Tensor, "S N"]:
        """Where the last step has hardly moved anything."""
        assert now.motion is not None
        return now.motion < self.below


class Halt(OnlineRule):
    """Stops an example when the model says that its answer is there."""

    needs_answer = False

    def __init__(self, chance: float = DEFAULT_HALT) -> None:
        if not 0 < chance <= 1:
            raise InputError(f"the probability of having halted must be above 0 and at most 1, not {chance}")
        self.chance = chance
        self.name = "halt" if chance == DEFAULT_HALT else f"halt={chance:g}"

    def stops(self, now: Present) -> Bool[Tensor, "S N"]:
        """Where the model is done; raises for a model that does not say."""
        if now.done is not None:
            return now.done
        if now.halting is None:
            raise InputError(NOT_SAID)
        return now.halting >= self.chance


class HaltMode(Rule):
    """Stops an example where its halting head most probably does."""

    name = "halt-mode"

    def steps(self, grid: StepGrid) -> Int[Tensor, "S N"]:
        """The step at which the probability of having halted grows most; what the grid does not reach has no step."""
        if grid.halting is None:
            raise InputError(NOT_SAID)
        before = torch.nn.functional.pad(grid.halting[:, :-1], (0, 0, 1, 0))
        return (grid.halting - before).argmax(1) + 1


# name → class, and the type of its parameter where it takes one
RULES: Mapping[str, tuple[Callable[..., Rule], type[int] | type[float] | None]] = {
    "oracle": (Oracle, None),
    "confidence": (Confidence, float),
    "confidence-batch": (ConfidenceBatch, float),
    "threshold": (Threshold, float),
    "converged": (Converged, int),
    "settled": (Settled, float),
    "halt": (Halt, float),
    "halt-mode": (HaltMode, None),
}


def _parameter(kind: type[int] | type[float], text: str) -> int | float:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise InputError(f"{text[:20]!r} is no parameter for a stopping rule: it takes {what}") from None


registry.declare(
    "stopping rule", "looped.stopping", "--stop", "a subclass of looped.evaluation.stopping.Rule",
    lambda found: found if isinstance(found, Rule) or (isinstance(found, type) and issubclass(found, Rule)) else None,
    RULES, words="rules",
)  # fmt: skip


def get(name: str | Rule) -> Rule:
    """The rule of that name, or the rule itself; `threshold=0.001` and `converged=5` set the parameter."""
    if isinstance(name, Rule):
        return _checked(name)
    base, given, value = name.partition("=")
    if base not in RULES:
        return _checked(_own(registry.find("stopping rule", base), base, value if given else None))
    make, kind = RULES[base]
    if not given:
        return make()
    if kind is None:
        raise InputError(f"the stopping rule {base} takes no parameter, not {value[:20]!r}")
    return make(_parameter(kind, value))


def _own(found: Rule | type[Rule], name: str, value: str | None) -> Rule:
    """A rule of another person's; a class may take one number."""
    if isinstance(found, Rule) and value is None:
        return found
    given = () if value is None else (_parameter(int if value.isdecimal() else float, value),)
    try:
        rule: Rule = found(*given)  # type: ignore[operator]
    except TypeError:
        how = "needs" if value is None else "takes no"
        raise InputError(f"the stopping rule {name} {how} a parameter, as in {name}=3") from None
    if value is not None and "name" not in vars(rule):
        rule.name = f"{rule.name}={value}"
    return rule


def _checked(rule: Rule) -> Rule:
    """The rule itself, unless it is another person's under the name of one of ours, which have a meaning elsewhere."""
    if type(rule).__module__ != __name__ and rule.name.partition("=")[0] in RULES:
        called = f"{type(rule).__name__} calls itself {rule.name}"
        raise InputError(f"{called}, which is a rule of ours: name it otherwise")
    return rule


def distinct(names: Sequence[str | Rule]) -> tuple[str | Rule, ...]:
    """The names without those of a rule that another has named before: `converged` and `converged=3` are one."""
    found: dict[str, str | Rule] = {}
    for name in names:
        found.setdefault(get(name).name, name)
    return tuple(found.values())
