"""What is measured of a run: lengths, samples, stopping rules, input families. Knows no run and no file.

A plan is data: two equal plans give equal numbers, so a result is known by its run and its plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from looped import methods, tasks
from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.loading import LARGEST_SEED, Precision
from looped.evaluation.measure import ORACLE, check_words, usual_stops
from looped.experiments.spec import RunSpec, short_hash
from looped.serial import to_json
from looped.tasks.base import LONGEST
from looped.tasks.families import UNIFORM
from looped.training import start
from looped.training.config import TrainConfig
from looped.training.curriculum import max_length

Kind = Literal["accuracy", "steps", "halting"]
SAMPLES = 6400  # the paper's


@dataclass(frozen=True)
class Plan:
    """One measurement."""

    lengths: tuple[int, ...]
    kind: Kind = "accuracy"  # by length and rule; after every loop step; accuracy and what was discovered
    samples: int = SAMPLES  # a length
    stops: tuple[str, ...] = (ORACLE,)  # stopping rules; `steps` takes none
    families: tuple[str, ...] = (UNIFORM,)
    seed: int = 0  # of the test problems
    precision: Precision = "fp32"  # of products; `trained`: as training has them on that device

    def __post_init__(self) -> None:
        if not self.lengths or len(set(self.lengths)) != len(self.lengths):
            raise InputError(f"a measurement needs lengths, each once, not {list(self.lengths)[:8]}")
        if not 1 <= min(self.lengths) <= max(self.lengths) <= LONGEST:
            raise InputError(
                f"a length must be between 1 and {LONGEST}, not {min(self.lengths)} or {max(self.lengths)}"
            )
        if self.samples < 1:
            raise InputError(f"the number of samples must be at least 1, not {self.samples}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"the seed of a measurement must be from 0 to {LARGEST_SEED}, not {self.seed}")
        if not self.stops or not self.families:
            raise InputError("name at least one stopping rule and one input family to measure")
        for stop in self.stops:
            stopping.get(stop)

    @property
    def name(self) -> str:
        """For file names: `accuracy-4608dde8`; a field added later renames no plan that leaves it alone."""
        plain = to_json(Plan((1,)))
        changed = {field: value for field, value in to_json(self).items() if value != plain[field]}
        return f"{self.kind}-{short_hash(changed)}"

    def fit(self, run: RunSpec) -> Plan:
        """The same for one run: a method of fixed depth has no steps to choose from, and is right or not.

        Raises for a run that cannot be trained, or not be measured so once it is.
        """
        task, method, model = tasks.get(run.task), methods.get(run.method), trainable(run).model
        if self.kind == "steps" and not method.adaptive:
            raise InputError(f"{method.name} has a fixed depth: there are no steps to measure it after")
        if self.kind == "steps" and method.prediction == "ntp":
            raise InputError(f"{method.name} decodes token by token: there are no steps to measure it after")
        own = method.universal or not method.adaptive  # it decides itself, or has nothing to decide
        fitted = replace(self, stops=usual_stops(method)) if own else self
        for family in self.families:
            check_words(task, method, model, self.lengths, stops=fitted.stops, family=family)
        return fitted


def trainable(run: RunSpec) -> TrainConfig:
    """What a run trains; raises where training itself would, at its start, at a later length or in an evaluation."""
    config = run.config
    start.check(config.init, config.task, config.model)
    task, method, longest = tasks.get(run.task), methods.get(run.method), max_length(config, config.steps - 1)
    check_words(task, method, config.model, [longest], stops=config.stops, family=config.family)
    return config
