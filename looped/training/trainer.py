"""The training loop around the engine: reports, evaluation, checkpoints, and every way to end.

`train` makes or opens a run's folder and leaves it in a state from which the same call goes on. On the CPU a
run that was interrupted, even by `kill -9`, ends with an unbroken one's weights and metrics, bit for bit.
Knows nothing of displays and of the command line: it speaks to listeners (`progress.py`).
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from looped import registry
from looped.checkpoints import Metadata, Shapes
from looped.errors import InputError
from looped.evaluation.measure import Row, Subject, measure
from looped.model.looped import BlockMaker
from looped.output import html_facts, html_table
from looped.runs import SELECTION, Run, load_seed, number, read_metrics
from looped.tasks.base import LONGEST
from looped.training import curriculum, plain, population
from looped.training.config import TrainConfig
from looped.training.cost import Clock
from looped.training.engine import TrainingEngine, Watch, World
from looped.training.progress import Listener, Report, SeedReport, Window

Backend = Literal["auto", "plain", "fast"]
Ending = Literal["finished", "interrupted", "time limit", "every seed stopped"]
LOOK_S = 1.0  # seconds between two looks for a request to stop during an evaluation
LARGEST_SHARE = 0.05  # of the time that may go into checkpoints made by the clock


@dataclass(frozen=True)
class Cadence:
    """How often what happens; 0 means a default that follows from the number of steps."""

    report_steps: int = 0  # gradient steps between two reports: a 500th of all, at least 10
    evaluate_steps: int = 0  # between two evaluations: a tenth of all, at least 100
    save_steps: int = 0  # between two checkpoints: by the clock
    save_seconds: float = 60.0  # between two checkpoints by the clock
    samples: int = 256  # problems of an evaluation, per length
    longer: bool = True  # evaluations look past the training length too


@dataclass(frozen=True)
class Summary:
    """How a call of `train` ended."""

    task: str
    method: str
    recipe: str
    folder: str
    ending: Ending
    step: int  # gradient steps taken, of
    steps: int
    seconds: float  # of training, over all sittings
    seeds: list[dict[str, Any]] = field(default_factory=list)  # last report of each, and why it stopped
    evaluation: list[dict[str, Any]] = field(default_factory=list)  # last rows
    files: list[str] = field(default_factory=list)  # one checkpoint per seed

    def _repr_html_(self) -> str:
        facts = {
            "run": f"{self.task}, {self.method}, recipe {self.recipe}",
            "folder": self.folder,
            "ended": f"{self.ending}: {self.step:,} of {self.steps:,} gradient steps, {self.seconds:.0f} s",
        }
        columns = ("seed", "length", "stop", "accuracy", "samples")
        rows = [[row.get(name, "") for name in columns] for row in self.evaluation]
        return html_facts(facts) + html_table(columns, rows, "Last evaluation")


def train(
    config: TrainConfig,
    folder: Path,
    device: torch.device | str = "cpu",
    *,
    listeners: Sequence[Listener] = (),
    cadence: Cadence | None = None,
    stop: Callable[[], bool] = lambda: False,
    time_limit_s: float | None = None,
    world: World | None = None,
    backend: Backend = "auto",
    keep_replicas: bool = False,
) -> Summary:
    """Trains to the end, or until `stop` says so or the time is up; the same call then goes on.

    In a world of several processes each of them makes this call, and the first one keeps the folder. `backend` is the
    engine: auto takes the fast one where it handles the configuration, otherwise the plain one. Of a run of replicas,
    `keep_replicas` keeps the weights of all.
    """
    if time_limit_s is not None and not time_limit_s > 0:
        raise InputError(f"the time limit must be above 0 seconds, not {time_limit_s:g}")
    world = world or World()
    if config.hold_out and config.replicas == 1:
        raise InputError(f"hold_out={config.hold_out} is for choosing among replicas: set replicas too")
    if config.replicas > 1 and world.size > 1:
        raise InputError(f"replicas are trained in one process, not in {world.size}")
    held: list[Run] = []
    world.from_leader(lambda: held.append(Run(folder, config)))
    deadline = None if time_limit_s is None else time.monotonic() + time_limit_s
    cadence, session = cadence or Cadence(), (torch.device(device), listeners, stop, deadline, world, backend)
    with held[0] if held else NoOpRun(folder, config) as run:
        try:
            choose = config.replicas > 1 and not (folder / SELECTION).exists()
            for path, part in population.parts(folder, config) if choose else []:
                with Run(path, part) as own:
                    summary = _Training(part, own, replace(cadence, longer=False), *session).go()
                for listener in listeners:
                    listener.end()
                if summary.ending in ("interrupted", "time limit"):
                    return replace(summary, folder=str(folder), steps=config.steps, files=[])
            return _Training(config, run, cadence, *session).go(keep_replicas)
        finally:
            for listener in listeners:
                listener.end()


def make_engine(
    config: TrainConfig,
    device: torch.device | str = "cpu",
    world: World | None = None,
    backend: Backend = "auto",
    block: BlockMaker | None = None,
) -> TrainingEngine:
    """The engine for a configuration; `block` makes another block than the stock one.

    The reason why auto takes the plain engine goes to stderr.
    """
    if backend not in get_args(Backend):
        raise InputError(f"unknown backend {backend!r}; there are {', '.join(get_args(Backend))}")
    if backend == "plain":
        return plain.PlainEngine(config, device, block=block, world=world)
    from looped.fast import modules, supports  # here: a plain run loads nothing of the fast engine
    from looped.fast.engine import Engine, trial

    on = torch.device(device).type
    reason = supports.supports(block, config, on == "cuda")
    if reason is None:
        engine = Engine(config, device, world=world)
        reason = trial(engine)
        if reason is None:
            return engine
    if backend == "fast":
        raise InputError(f"the fast engine cannot train this: {reason}")
    other = plain.refuses(config, world)
    if other is not None:
        raise InputError(f"no engine can train this: the fast one because {reason}; the plain one: {other}")
    alone = len(config.seeds) == 1 and on == "cpu"
    single = "there is one" if alone else modules.trial(config, device, block)
    how = "with its seeds stacked" if single is None else f"a seed at a time ({single})"
    if world is None or world.rank == 0:
        print(f"looped: trained by the plain engine, {how}: the fast one cannot, {reason}", file=sys.stderr)
    kind = modules.ModuleEngine if single is None else plain.PlainEngine
    return kind(config, device, block=block, world=world)


class NoOpRun(Run):
    """The folder of a run to all but the leader: takes what it is given to keep, and keeps nothing."""

    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config

    def _nothing(self, *args: object, **kwargs: object) -> Any:
        """The leader does."""
        return []

    __exit__ = log = rewind = save_state = save_seed = _nothing  # only the leader reads a state


class _EvaluationStopped(Exception):
    """Raised out of an evaluation that was asked to stop."""


class _Training:
    """One session of a run."""

    def __init__(
        self,
        config: TrainConfig,
        run: Run,
        cadence: Cadence,
        device: torch.device,
        listeners: Sequence[Listener],
        stop: Callable[[], bool],
        deadline: float | None,
        world: World,
        backend: Backend,
    ) -> None:
        self.config, self.run, self.cadence, self.listeners = config, run, cadence, listeners
        self.stop, self.deadline, self.world = stop, deadline, world
        self.files = [run.folder / f"seed-{seed}.safetensors" for seed in config.seeds]
        self.report_steps = cadence.report_steps or max(10, config.steps // 500)
        self.evaluate_steps = cadence.evaluate_steps or max(100, config.steps // 10)
        block = registry.find("block", config.block) if config.block else None
        self.engine = make_engine(config, device, world, backend, block)
        self.window = Window(len(config.seeds), device)
        self.watch = Watch(self.engine)
        self.clock = Clock(config)
        self.owes_evaluation = False  # a request to stop came during the evaluation of the present step
        self.before = 0.0  # seconds of earlier sittings
        self.started = time.monotonic()
        self.reported = (0, self.started)  # step and time of the last report
        self.saved_at, self.save_after = self.started, cadence.save_seconds

    @property
    def seconds(self) -> float:
        """Of training, over all sessions."""
        return self.before + time.monotonic() - self.started

    # --- the loop ------------------------------------------------------------------------------------------
    def go(self, keep_replicas: bool = False) -> Summary:
        """Goes on from the last checkpoint until something ends it."""
        try:
            self._resume(keep_replicas)
        except _EvaluationStopped:  # while replicas were judged
            return self._summary("interrupted")
        engine, steps = self.engine, self.config.steps
        first = engine.done, self.owes_evaluation
        if self.owes_evaluation and not self.stop():
            self._evaluate()
        ending = self._ending()
        while ending is None:
            self.window.add(engine.step())
            last = engine.done == steps
            if engine.done % self.report_steps == 0 or last:
                self._report()
            if engine.done % self.evaluate_steps == 0 or last:
                self._evaluate()
            ending = self._ending()
            if ending is None and self._save_is_due():
                self._save()
        if (engine.done, self.owes_evaluation) != first or not self._seeds_are_there():
            self._save()
            if engine.done < steps or not self.owes_evaluation:  # seeds of the last step say that all is done
                for i, seed in enumerate(self.config.seeds):
                    self.run.save_seed(seed, engine.seed_weights(i), engine.done)
        return self._summary(ending)

    def _ending(self) -> Ending | None:
        def own() -> Ending | None:
            if self.engine.done >= self.config.steps and not self.owes_evaluation:
                return "finished"
            if self.watch.all_stopped:
                return "every seed stopped"
            if self.stop() or self.owes_evaluation:
                return "interrupted"
            late = self.deadline is not None and time.monotonic() >= self.deadline
            return "time limit" if late else None

        return self.world.from_leader(own)

    # --- telling -------------------------------------------------------------------------------------------
    def _report(self) -> None:
        means, alive, steps = self.window.take(self.engine.moments.alive)
        step, now = self.engine.done, time.monotonic()
        fresh = self.watch.look([row[0] for row in means], alive, steps)
        since, then = self.reported
        self.clock.saw(since, step, now - then)
        share = curriculum.lr_share(self.config, step - 1)
        seeds = tuple(
            SeedReport(seed, row[0], row[2], row[3], row[1], lr * share, seed not in self.watch.stopped)
            for seed, row, lr in zip(self.config.seeds, means, self.config.seed_lrs, strict=True)
        )
        longest, rate = curriculum.max_length(self.config, step - 1), (step - since) / max(now - then, 1e-9)
        report = Report(step, longest, self.seconds, rate, self.clock.left(step), seeds)
        self.reported = step, now
        where = {"kind": "training", "step": step, "length": longest}
        self.run.log([{**where, **asdict(each), "seconds": round(report.seconds, 3)} for each in seeds])
        for listener in self.listeners:
            listener.report(report)
        for seed in fresh:
            self.run.log([{"kind": "stopped", "step": step, "seed": seed, "why": self.watch.stopped[seed]}])
            self._note(f"seed {seed} was stopped at step {step}: {self.watch.stopped[seed]}")

    def _evaluate(self) -> None:
        """Measure what the present weights can do; a request to stop ends it, and leaves it for the next session."""
        self.owes_evaluation = True
        try:
            rows = self._measured()
        except _EvaluationStopped:
            return
        self.owes_evaluation = False
        self.run.log([{"kind": "evaluation", "step": self.engine.done, **row.as_dict()} for row in rows])
        for listener in self.listeners:
            listener.evaluation(self.engine.done, rows)
        self.reported = self.engine.done, time.monotonic()  # evaluation is no step's time

    def _measured(self) -> list[Row]:
        config, task = self.config, self.engine.task
        model, prepared = self.engine.evaluated()
        subject = Subject(
            task, self.engine.method, model, prepared, config.seeds, config.max_length, config.recipe,
            self.engine.law, _look(self.stop),
        )  # fmt: skip
        longest = config.max_length
        every = (longest, longest * 3 // 2, longest * 2) if self.cadence.longer else (longest,)
        lengths = [n for n in dict.fromkeys(every) if n <= LONGEST]
        if config.model.positions in ("learned", "randomised"):
            room = config.model.max_positions - self.engine.method.pause
            lengths = [n for n in lengths if task.row_size(n) <= room]
        return measure(subject, lengths, self.cadence.samples, seed=0, stops=config.stops) if lengths else []

    def _note(self, sentence: str) -> None:
        for listener in self.listeners:
            listener.note(sentence)

    def _summary(self, ending: Ending) -> Summary:
        config = self.config
        metrics = read_metrics(self.run.folder)
        last: dict[int, dict[str, Any]] = {seed: {"seed": seed} for seed in config.seeds}
        for row in metrics:
            if row.get("kind") == "training" and row.get("seed") in config.seeds:
                last[row["seed"]] = {key: row[key] for key in row if key not in ("kind", "seconds")}
        for seed, why in self.watch.stopped.items():
            last[seed]["stopped"] = why
        rows = [row for row in metrics if row.get("kind") == "evaluation"]
        newest = [row for row in rows if row["step"] == rows[-1]["step"]]
        return Summary(
            config.task, config.method, config.recipe, str(self.run.folder), ending, self.engine.done,
            config.steps, self.seconds, list(last.values()), newest, list(map(str, self.files)),
        )  # fmt: skip

    # --- checkpoints ---------------------------------------------------------------------------------------
    def _resume(self, keep_replicas: bool) -> None:
        def check(metadata: Metadata, shapes: Shapes) -> None:
            if _standing(metadata)[0] > self.config.steps:
                raise InputError("it does not say where it stands")
            self.engine.check({**self._state(), **self.watch.places(metadata)}, metadata, shapes)

        found, aside = self.world.from_leader(lambda: self.run.load_state(check, self.engine.verify))
        if found is not None:
            metadata, tensors = found
            step, self.before = _standing(metadata)
            self.engine.restore(tensors, step)
            self.window.sums.copy_(tensors["window"])
            self.watch.restore(tensors, metadata)
            self.owes_evaluation = metadata.get("owes") == "evaluation"
        elif self.config.replicas > 1:
            self._choose()
        if self.config.replicas > 1:
            population.tidy(self.run.folder, keep_replicas)
        aside += self.run.rewind(self.engine.done, evaluated=not self.owes_evaluation)
        self.reported = self.engine.done, time.monotonic()
        for listener in self.listeners:
            listener.begin(self.config, self.run.folder, self.engine.done)
        for sentence in aside:
            self._note(sentence)

    def _choose(self) -> None:
        """Choose among the replicas, record it, and start from the best one of each seed."""
        folder, config = self.run.folder, self.config
        self._note(f"choosing among the replicas by lengths up to {config.max_length}")
        population.select(folder, config, self.engine.device, _look(self.stop))
        self.engine.begin_from(population.chosen_weights(folder, config), config.selected_at)
        self.watch.forget()
        self._save()

    def _save_is_due(self) -> bool:
        if self.cadence.save_steps:
            return self.engine.done % self.cadence.save_steps == 0
        return time.monotonic() - self.saved_at >= self.save_after

    def _state(self) -> dict[str, Tensor]:
        return {**self.engine.state(), "window": self.window.sums}

    def _save(self) -> None:
        start = time.monotonic()
        rows, notes = self.watch.state()
        if self.owes_evaluation:
            notes["owes"] = "evaluation"
        stands = {"step": str(self.engine.done), "seconds": repr(self.seconds)}
        self.run.save_state({**self._state(), **rows}, {**stands, "device": self.engine.device.type, **notes})
        self.saved_at = time.monotonic()
        self.save_after = max(self.cadence.save_seconds, (self.saved_at - start) / LARGEST_SHARE)

    def _seeds_are_there(self) -> bool:
        """Whether every seed's file is whole and of this step; a kill may have come between two of them."""
        try:
            return all(load_seed(file).step == self.engine.done for file in self.files)
        except InputError:
            return False


def _look(stop: Callable[[], bool]) -> Callable[[], None]:
    """Raises when `stop` says so; called often, it looks now and then."""
    looked = time.monotonic()

    def check() -> None:
        nonlocal looked
        if time.monotonic() - looked > LOOK_S:
            looked = time.monotonic()
            if stop():
                raise _EvaluationStopped

    return check


def _standing(metadata: Metadata) -> tuple[int, float]:
    """The gradient steps that a checkpoint says it has taken, and in how many seconds."""
    step = number(metadata, "step")
    try:
        seconds = float(metadata.get("seconds", ""))
    except ValueError:
        seconds = math.nan
    if step is None or not 0 <= seconds < math.inf:
        raise InputError("it does not say where it stands")
    return step, seconds
