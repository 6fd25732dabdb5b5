"""The recipes: functions that make a training run for a task and a method. docs/training.md says what each is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from looped import methods, registry, tasks
from looped.errors import InputError
from looped.methods import Method
from looped.model.config import ModelConfig
from looped.model.weights import Layout
from looped.serial import override
from looped.tasks.base import Long, Task
from looped.tasks.distributions import UNIFORM
from looped.tasks.suites.chomsky import ChomskyTask
from looped.training.config import TrainConfig, parse_start

if TYPE_CHECKING:
    from looped.compiler.compiled import Compiled


def block_for(task: Task, method: Method, **changes: object) -> ModelConfig:
    """A model of the paper's depth and heads for a task under a method, started as GPT-2 is."""
    layers, heads = task.paper.layers * method.depth, task.paper.heads
    base = ModelConfig(vocab=len(task.vocab), layers=layers, heads=heads, injection=method.injection)
    if method.universal:  # waves of size 1 are added to the embedding, which has to be heard beside them
        base = replace(base, kind="universal", halting=method.halting, embedding_std=1.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def paper(task: Task, method: Method, seeds: tuple[int, ...]) -> TrainConfig:
    """The paper's training, to the letter.

    Where text and released code differ, or the text is silent, this follows the code, except for the average of the
    weights, which the text names and no released configuration has. In the code the learning rate starts to fall one
    interval after the last length has had its own, and an average, where there is one, starts at that step too. The
    model starts as the code's does, whose vocabulary has the authors' size, though a task uses fewer ids: torch's
    default start depends on it.
    """
    begun: dict[str, Any] = {}  # the Universal Transformer is not in the authors' code
    if not method.universal:
        kind = "embedding" if task.paper.embedding else "linear"
        begun = {"vocab": max(task.paper.vocab, len(task.vocab)), "initialisation": kind}
    return TrainConfig(
        task=registry.register(task),
        method=registry.register(method),
        recipe="paper",
        model=block_for(task, method, **begun),
        seeds=seeds,
        max_length=task.paper.max_length,
        steps=100_000,
        interval=task.paper.interval,
        hold=task.paper.interval,
        lr=(1e-4,),
        ema=task.paper.ema,
        late_ema=task.paper.ema > 0,
    )


# What `fast` does otherwise for tasks that forget at length 10 what they knew, and learn it again, or not.
CALM: dict[str, Any] = {"lr": (3e-4,), "growth_clip": 2.0, "ema": 0.999}
CALMER: dict[str, dict[str, Any]] = {
    "copy": {**CALM, "lr": (2e-4,), "interval": 150, "noise": 0.3},
    "addition": {**CALM, "lr": (4e-4,), "stage_steps": (200, 800, 1000, 1000, 600, 400), "interval": 100, "noise": 0.1},
    "multiplication": {**CALM, "interval": 300, "noise": 0.3},
    "unique_set": {**CALM, "interval": 150, "noise": 0.3},
}  # fmt: skip


def fast(task: Task, method: Method, seeds: tuple[int, ...]) -> TrainConfig:
    """A twelfth of the paper's steps: a larger learning rate, shorter stages, stratified lengths, a disturbed state.

    A row ends where its own problem does: the paper pads all to the longest of the batch and asks for every `#` there.
    Rate and noise were chosen for all six tasks together, by lengths of the training range that were left out
    (docs/log.md). Four tasks have their own (`CALMER`): no problem's gradient may grow more than twofold on its way
    back, the weights are averaged, and the rate is lower. Addition stays longer at sums of two to four digits: hurried
    past them, one seed in five found it. Models without weight tying have no loop to disturb and keep the paper's rate.
    """
    steps, looped = 8_000, method.depth == 1
    disturbed = looped and not method.universal
    config = replace(
        paper(task, method, seeds),
        recipe="fast",
        steps=steps,
        interval=steps * 2 // 5 // task.paper.max_length,
        hold=0,
        lr=(4e-4 if looped else 1e-4,),
        noise=0.2 if disturbed else 0.0,
        warmup=200,
        betas=(0.9, 0.98),
        lengths="stratified",
        padding_loss="batch" if method.universal else "own",
        ema=0.999 if task.paper.ema else 0.0,
        late_ema=False,
    )
    return replace(config, **CALMER.get(task.name, {})) if disturbed else config


def quick(task: Task, method: Method, seeds: tuple[int, ...]) -> TrainConfig:
    """Under a minute on one CPU core: one narrow layer whose heads see one position back, short lengths.

    Noise on the state makes the step forgive its own small errors, and so hold for many more steps than it was
    trained for: copy without it was exact at ten times the training length for one seed in four; with it copy and
    parity are for three of three. It was chosen by looking at those lengths.
    """
    bands = () if method.universal else (2, 2, 2, 2)
    model = block_for(task, method, layers=method.depth, width=32, heads=4, bands=bands, init_std=0.2)
    return TrainConfig(
        task=registry.register(task),
        method=registry.register(method),
        recipe="quick",
        model=model,
        seeds=seeds,
        max_length=min(10, task.paper.max_length),
        steps=1_000,
        interval=50,
        lr=(4e-3,),
        warmup=50,
        betas=(0.9, 0.98),
        batch=32,
        lengths="stratified",
        noise=0.0 if method.universal else 0.1,
    )


def long(task: Task, method: Method, seeds: tuple[int, ...]) -> TrainConfig:
    """A small block that is exact far past its training lengths and says itself when it is done.

    Heads see one position back, and where a task needs it, half of them everything, sharpened. A problem gets a step
    for every token of its question: an addition of n digits needs that many, whatever the paper's T(n) says, before its
    numbers can meet. What each part is for, and what was measured, is in docs/length.md.
    """
    if not method.adaptive or method.prediction != "fop":
        raise InputError(f"long is for methods that loop as often as a problem needs, not for {method.name}")
    return _long(task, method, seeds, task.long)


def _long(task: Task, method: Method, seeds: tuple[int, ...], block: Long) -> TrainConfig:
    """A block of local and global heads that holds far past its training lengths and says when it is done."""
    model = block_for(
        task, method, layers=block.layers, heads=block.heads, width=block.width, bands=block.bands,
        sharpen=len(block.bands) < block.heads, positions="start", halting="eoq", init_std=6.4 / block.width,
    )  # fmt: skip
    return replace(
        paper(task, method, seeds),
        recipe="long",
        model=model,
        steps=block.steps,
        interval=block.interval,
        hold=0,
        stage_steps=block.stage_steps,
        max_length=block.max_length or task.paper.max_length,
        lr=(block.lr,),
        warmup=50,
        betas=(0.9, 0.98),
        batch=block.batch,
        lengths="stratified",
        padding_loss=block.padding_loss,
        family="mixed" if "mixed" in task.families else UNIFORM,
        loops=block.loops,
        noise=0.2,
        halt_cost=0.1,
        growth_clip=block.growth_clip,
        ema=block.ema,
        late_ema=False,
    )


# One for fifteen tasks; docs/chomsky.md has the reasons.
SUITE_BLOCK = Long(
    layers=2, width=128, heads=8, bands=(2, 2, 3, 3), loops="q", lr=5e-4, steps=20_000, interval=250
)


def chomsky(task: Task, method: Method, seeds: tuple[int, ...]) -> TrainConfig:
    """One block and schedule for the tasks of the Chomsky suite: a first proposal, not tuned yet.

    A task that a small local block was seen to learn brings that one (`ChomskyTask.block`).

    The programs of the suite look one or two positions back, or at a place that they know by its content: so half of
    the heads are local, half see everything, sharpened. One step for every token of the question is as many as all
    programs need, if the carries of a product are decided by attention. Half of the questions are rare ones. Methods
    without a loop get the same width, steps and questions, and 20 layers.
    """
    rare = next((name for name in ("mixed", "deep") if name in task.families), "")
    if method.adaptive and method.prediction == "fop":
        own = task.block if isinstance(task, ChomskyTask) else None
        config = _long(task, method, seeds, own or SUITE_BLOCK)
    else:
        block = SUITE_BLOCK
        model = block_for(task, method, layers=method.depth, width=block.width, heads=block.heads)
        config = replace(
            fast(task, method, seeds), model=model, steps=block.steps, interval=block.interval, batch=32
        )
    return replace(config, recipe="chomsky", family=f"{UNIFORM}+{rare}" if rare else UNIFORM)


Recipe = Callable[[Task, Method, tuple[int, ...]], TrainConfig]
RECIPES: dict[str, Recipe] = {"paper": paper, "fast": fast, "quick": quick, "long": long, "chomsky": chomsky}


registry.declare(
    "recipe", "looped.recipes", "--recipe", "a function of task, method and seeds that returns a TrainConfig",
    lambda found: found if callable(found) and not isinstance(found, type) else None, RECIPES,
)  # fmt: skip


def make(task: str, method: str, recipe: str, seeds: tuple[int, ...]) -> TrainConfig:
    """The configuration a recipe gives for a task and a method, by the names that a run records."""
    known, way = tasks.get(task), methods.get(method)
    config = registry.find("recipe", recipe)(known, way, seeds)
    if not isinstance(config, TrainConfig):
        raise InputError(f"the recipe {recipe} must return a TrainConfig, not {type(config).__name__}")
    return replace(config, task=registry.register(known), method=registry.register(way), recipe=recipe)


def asked(task: str, method: str, recipe: str) -> TrainConfig:
    """The same of seed 0 from what a person types, where each may be `FILE.py:Name`."""
    known = registry.resolve("task", task), registry.resolve("method", method)
    return make(*known, registry.resolve("recipe", recipe), (0,))


def with_fields(
    config: TrainConfig, assignments: Sequence[str], own: Sequence[str] = ("task", "method", "recipe")
) -> TrainConfig:
    """The configuration with single fields set, as `serial.override` has them, but not those the rest follows from."""
    for assignment in assignments:
        field = assignment.partition("=")[0].strip()
        if field in own:
            raise InputError(f"{field!r} is a field of the run itself and cannot be set beside it")
    return override(config, assignments)


# --- weights that start from a compiled program: imported here, since most runs need neither program nor compiler ----


@cache
def _compiled(task: str) -> Compiled:
    from looped.compiler.compiled import compile_program
    from looped.rasp import programs

    return compile_program(programs.get(task))


def architecture(task: str) -> ModelConfig:
    """The model that a task's program is compiled into."""
    return _compiled(task).config


def program_loops(task: str) -> str:
    """Loop steps that are enough for a task's program, as a rule of `methods.Loops`: T(n), or one more for addition."""
    from looped.rasp import programs

    program = programs.get(task)
    question = program.example.split()
    more = program.total(program.sizes(program.row(question).tolist())) - tasks.get(task).steps_of(question)
    return f"T+{more}" if more > 0 else "T"


def from_program(config: TrainConfig, init: str) -> TrainConfig:
    """The same run started as `init` says; from a compiled program, in that program's own architecture.

    The state of a compiled model is made of integers and thresholds between them, and it never learned to stand noise;
    nor would weights that no training length uses stand to shrink. Both are off unless they are set again, and so is
    what holds gradients back: what is asked of such a run is what plain training does to a program.
    """
    if not parse_start(init).compiled:
        return replace(config, init=init)
    if config.method not in ("fop-loop-adaptive", "fop-loop-adaptive-wo"):
        raise InputError(f"a compiled program is a model of fop-loop-adaptive-wo, not of {config.method}")
    return replace(
        config, init=init, method="fop-loop-adaptive-wo", model=architecture(config.task),
        loops=program_loops(config.task), noise=0.0, growth_clip=0.0, weight_decay=0.0, padding_loss="batch",
    )  # fmt: skip


def check_start(config: TrainConfig) -> None:
    """Raise if the model cannot start from what the configuration names."""
    if not parse_start(config.init).compiled:
        return
    own = architecture(config.task)
    if Layout(config.model).slots != Layout(own).slots:
        raise InputError(
            f"init={config.init} needs the shape of the compiled {config.task}: width {own.width}, "
            f"{own.heads} heads; leave the model as `--init compiled` sets it"
        )


def first_weights(config: TrainConfig) -> Float[Tensor, "S P"]:
    """The first weights of every seed, drawn on the CPU so that a seed means the same on every device."""
    start = parse_start(config.init)
    if not start.compiled:
        return Layout(config.model).initialise(list(config.seeds))
    check_start(config)
    rows = _compiled(config.task).row.repeat(len(config.seeds), 1)
    for row, seed in zip(rows, config.seeds, strict=True) if start.noise else ():
        drawn = torch.randn(row.shape, generator=torch.Generator().manual_seed(seed))
        row.mul_(1 + start.noise * drawn)
    return rows
