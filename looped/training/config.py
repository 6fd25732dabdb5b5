"""What a training run is, as one frozen dataclass. `recipes` makes one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal

import torch

from looped import methods, registry, tasks
from looped.errors import InputError
from looped.methods import Method
from looped.model.config import ModelConfig
from looped.registry import NotKnown
from looped.tasks.base import LARGEST_SEED, Task
from looped.tasks.families import UNIFORM
from looped.training import start

Lengths = Literal["stratified", "iid"]
Window = Literal["last", "random"]
Trailing = Literal["batch", "own"]
Products = Literal["auto", "fp32", "tf32", "bf16"]
Supervision = Literal["last", "best", "expected"]
MOST_SEEDS = 1024  # of one run
MOST_LOOPS = 1_000_000  # loop steps
MOST_STEPS = 10**12  # gradient steps
LARGEST_BATCH = 1 << 20  # problems; larger values are typing errors
LARGEST_LR = 1000


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run's result, saved beside it."""

    task: str  # which problem
    method: str  # which row of looped.methods
    recipe: str  # which function made this
    model: ModelConfig  # the network
    seeds: tuple[int, ...]  # trained side by side, as one computation
    max_length: int  # longest training length
    steps: int  # gradient steps
    interval: int  # gradient steps between two increases of the length
    lr: tuple[float, ...]  # peak learning rate, one for all seeds or one each
    start_length: int = 1  # the curriculum's first maximum length
    dwell: tuple[int, ...] = ()  # gradient steps at the first maximum lengths, in the place of `interval`
    batch: int = 64  # problems per gradient step
    lengths: Lengths = "iid"  # independent draws, or one draw from each of `batch` equal parts of the range
    trailing: Trailing = "batch"  # how many trailing # count: as the longest row has, or the row itself
    family: str = (
        UNIFORM  # how questions are drawn: evenly as in the paper, or by another of the task's families
    )
    late_family: str = ""  # drawn instead once every length has had its interval; empty: `family` to the end
    extra: int = 0  # up to so many loop steps past T, drawn for each problem: the answer has to be held
    noise: float = 0.0  # added to the state before every step; its deviation is drawn per problem, up to this
    hold: int = 0  # gradient steps at the peak learning rate after the last length has had its interval
    warmup: int = 0  # gradient steps from 0 to the peak learning rate
    cooling: float = 0.0  # the learning rate falls as (maximum length)^-cooling while that grows; 0: held
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW's
    weight_decay: float = 0.01  # AdamW's
    clip: float = 1.0  # largest gradient norm of a seed
    steady: float = 0.0  # how many times a problem's gradient may grow on its way back; 0: any
    ema: float = 0.0  # decay of the average of the weights that is evaluated; 0: the weights themselves
    late_ema: bool = False  # the average starts when the learning rate begins to fall, not at the first step
    backprop: int = 0  # loop steps the gradient flows through, per problem; 0: all
    window: Window = "last"  # so many last ones, or each problem's own number of them, drawn from 1 up to it
    products: Products = "auto"  # precision of matrix products; auto: bf16 on CUDA, fp32 on the CPU
    checkpointing: bool = (
        False  # keep only each step's state and recompute the rest: memory hardly grows with T
    )
    loops: str = (
        "T"  # loop steps of a problem: T(n), or another rule of methods.Loops (T+1, 2T, 16, q..2q, …)
    )
    supervision: Supervision = (
        "last"  # when the answer is asked for: then, from the best step on, when it halts
    )
    halt_cost: float = 0.01  # weight of a halting head's steps (act), distance from the prior or error (mark)
    halt_prior: float = 0.1  # chance to halt at a step in PonderNet's geometric prior: 1 / the mean step
    init: str = start.RANDOM  # where the weights start: random, compiled or compiled:NOISE
    keep_zeros: bool = False  # of a compiled program, train only the weights that are not 0
    block: str = ""  # a block of the user's, as `looped.registry` names it; empty: the stock block
    replicas: int = 1  # models of each seed, of which the best is chosen (`training.population`)
    hold_out: int = (
        0  # so many of the longest training lengths choose among the replicas, which do not see them
    )
    refine: float = (
        0.25  # share of the steps in which the chosen one trains on all lengths; 0: kept as chosen
    )
    stack: int = 0  # replicas of all seeds that are trained as one computation, at most; 0: all

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_replicas()
        try:
            task, method = tasks.get(self.task), methods.get(self.method)
        except NotKnown:
            return  # other people's, not known here: the run can be shown, and using it says what to pass
        self._check_fit(task, method)

    def _check_numbers(self) -> None:
        if len(self.lr) not in (1, len(self.seeds)):
            raise InputError(
                f"give one learning rate or one for each of the {len(self.seeds)} seeds, not {len(self.lr)}"
            )
        if len(self.seeds) > MOST_SEEDS:
            raise InputError(f"a run trains at most {MOST_SEEDS:,} seeds, not {len(self.seeds):,}")
        seeds = set(self.seeds)
        if not seeds or len(seeds) != len(self.seeds) or min(seeds) < 0 or max(seeds) > LARGEST_SEED:
            raise InputError(
                f"seeds must be distinct whole numbers from 0 to {LARGEST_SEED}, not {str(self.seeds)[:60]}"
            )
        for name in ("max_length", "steps", "interval", "start_length", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.batch > LARGEST_BATCH:
            raise InputError(f"batch must be at most {LARGEST_BATCH:,}, not {self.batch:,}")
        for name in ("backprop", "extra"):
            if getattr(self, name) > MOST_LOOPS:
                raise InputError(
                    f"{name} must be at most {MOST_LOOPS:,} loop steps, not {getattr(self, name):,}"
                )
        for name in ("steps", "interval", "start_length", "max_length", "warmup", "hold"):
            if getattr(self, name) > MOST_STEPS:
                raise InputError(f"{name} must be at most {MOST_STEPS:,}, not {getattr(self, name):,}")
        if min(self.dwell, default=1) < 1:
            raise InputError(f"`dwell` must be at least 1 gradient step at each length, not {self.dwell}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"AdamW's betas must be in [0, 1), not {self.betas}")
        if not 0 <= self.ema < 1:
            raise InputError(f"the weight average's decay must be in [0, 1), not {self.ema}")
        for name in ("weight_decay", "warmup", "hold", "backprop", "extra", "noise", "cooling", "steady"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, but is {getattr(self, name)}")
        if min(self.lr) <= 0 or self.clip <= 0:
            raise InputError("lr and clip must be positive")
        if max(self.lr) > LARGEST_LR:
            raise InputError(f"lr must be at most {LARGEST_LR}, not {max(self.lr):g}")

    def _check_fit(self, task: Task, method: Method) -> None:
        """Refuse what the task or the method cannot have."""
        task.check_length(self.max_length)
        task.check_family(self.family)
        task.check_family(self.late_family or self.family)
        if self.lengths == "stratified" and self.batch < task.variants:
            raise InputError(
                f"{task.name} has {task.variants} kinds of problem: with stratified lengths the batch must be at least "
                f"{task.variants}, not {self.batch}"
            )
        if self.trailing == "own" and (self.lengths != "stratified" or method.universal):
            raise InputError("trailing=own is for lengths=stratified and models without an encoder")
        if self.extra and not method.adaptive:
            raise InputError(f"{self.method} has a fixed depth: there are no extra loop steps to draw")
        if not methods.parse_loops(self.loops).plain and not method.adaptive:
            raise InputError(f"{self.method} has a fixed depth: loops={self.loops} cannot be had")
        if (self.whole or self.model.halting != "none") and self.backprop:
            raise InputError(
                "backprop cuts the gradient of the last step; halting and supervision=best look at all of them"
            )
        if self.supervision == "best" and (self.model.halting != "none" or not method.adaptive):
            raise InputError("supervision=best is for adaptive methods without a halting head")
        if self.supervision == "expected" and self.model.halting != "mark":
            raise InputError(f"supervision=expected is for halting=mark, not for {self.model.halting}")
        if self.model.halting == "mark" and not (method.adaptive and method.prediction == "fop"):
            raise InputError("halting=mark is for adaptive methods that predict the full output")
        if self.halt_cost < 0 or not 0 < self.halt_prior < 1:
            raise InputError("halt_cost must not be negative, and halt_prior must be between 0 and 1")
        if (self.model.kind == "universal") != method.universal:
            raise InputError(f"the method {method.name} and a {self.model.kind} model do not go together")
        if method.universal and (self.noise or self.supervision != "last"):
            raise InputError(f"{method.name} takes neither noise on its state nor another supervision")
        if start.parse(self.init).compiled and not (method.adaptive and method.prediction == "fop"):
            raise InputError(f"init={self.init} is for fop-loop-adaptive, with or without injection")
        if self.replicas > 1 and not (method.adaptive and method.prediction == "fop"):
            raise InputError(
                f"replicas are for adaptive methods that predict the full output, not {method.name}"
            )
        if self.keep_zeros and not start.parse(self.init).compiled:
            raise InputError("keep_zeros is for init=compiled, where nearly all weights are 0")
        if self.model.vocab < len(task.vocab):
            raise InputError(
                f"a model of {task.name} has at least {len(task.vocab)} tokens, not {self.model.vocab}"
            )

    def _check_replicas(self) -> None:
        if self.replicas < 1 or min(self.hold_out, self.stack) < 0 or not 0 <= self.refine < 1:
            raise InputError(
                "replicas must be at least 1, hold_out and stack at least 0, refine from 0 to below 1"
            )
        if self.replicas * len(self.seeds) > MOST_SEEDS:
            raise InputError(f"a run trains at most {MOST_SEEDS:,} replicas of all seeds")
        if self.replicas > 1 and not 1 <= self.hold_out <= self.max_length - self.start_length:
            raise InputError(
                f"replicas are chosen by held-out lengths: hold_out must be from 1 to "
                f"{self.max_length - self.start_length}, not {self.hold_out}"
            )
        if self.replicas > 1 and self.selected_at < 1:
            raise InputError(
                f"refine={self.refine:g} of {self.steps} gradient steps leaves none for the replicas"
            )

    @property
    def selected_at(self) -> int:
        """The gradient step at which the best replica is chosen and training goes on; 0 for a run without replicas."""
        return self.steps - round(self.refine * self.steps) if self.replicas > 1 else 0

    @property
    def name(self) -> str:
        """The default name of the run's folder."""
        parts = (self.task, self.method, self.recipe, self.block)
        own = "-".join(registry.label(part) for part in parts if part)
        own += f"-best-of-{self.replicas}" if self.replicas > 1 else ""
        return f"{own}-{start.COMPILED}" if start.parse(self.init).compiled else own

    @property
    def curriculum_end(self) -> int:
        """The gradient step from which the learning rate falls: the last length has had its interval, and `hold`."""
        if self.replicas > 1:  # all lengths from the choice on
            return min(self.selected_at + self.warmup, self.steps)
        return min(self.stage_end(max(self.max_length, self.start_length)) + self.hold, self.steps)

    def stage_end(self, longest: int) -> int:
        """The gradient step from which problems longer than `longest` are seen, if there are any."""
        stages = max(longest - self.start_length + 1, 0)
        own = self.dwell[:stages]
        return sum(own) + (stages - len(own)) * self.interval

    @property
    def whole(self) -> bool:
        """Whether the loss looks at the whole trajectory, not only at its last state."""
        return self.model.halting in ("act", "ponder") or self.supervision != "last"

    @property
    def packs(self) -> bool:
        """Whether a row may be computed up to its own end only: where nothing looks at rows as a whole."""
        return not (self.whole or self.model.relay or self.model.before)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stopping rule for models of this kind: their own, or as many steps as training first asked after."""
        return ("oracle",) if self.model.halting == "none" else ("halt",)

    @property
    def seed_lrs(self) -> tuple[float, ...]:
        """The peak learning rate of each seed."""
        return self.lr if len(self.lr) > 1 else self.lr * len(self.seeds)


def replica_seed(seed: int, replica: int) -> int:
    """The seed of a replica, which no run with small seeds has: of its weights and of its data."""
    return int.from_bytes(hashlib.sha256(f"replica {replica} of {seed}".encode()).digest()[:4], "big")


def replica_runs(config: TrainConfig) -> list[TrainConfig]:
    """The runs that train the replicas of all seeds, at most `stack` in each, on all but the held-out lengths."""
    each = [
        (replica_seed(seed, replica), lr)
        for replica in range(config.replicas)
        for seed, lr in zip(config.seeds, config.seed_lrs, strict=True)
    ]
    size = config.stack or len(each)
    return [
        replace(
            config, seeds=tuple(seed for seed, _ in part),
            lr=tuple(lr for _, lr in part) if len(config.lr) > 1 else config.lr,
            max_length=config.max_length - config.hold_out, steps=config.selected_at, replicas=1, stack=0,
        )
        for part in (each[first : first + size] for first in range(0, len(each), size))
    ]  # fmt: skip


def product_dtype(config: TrainConfig, cuda: bool) -> torch.dtype:
    """What products run in: as configured, or else what the model asks for, and bf16 on CUDA if that is fp32."""
    if config.products == "tf32" and not cuda:
        raise InputError("products=tf32 needs a GPU: choose fp32, bf16 or auto on a CPU")
    if config.products != "auto":
        return torch.bfloat16 if config.products == "bf16" else torch.float32
    own: torch.dtype = getattr(torch, config.model.precision)
    return torch.bfloat16 if cuda and own == torch.float32 else own
