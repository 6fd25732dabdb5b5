"""What a training run is, as one frozen dataclass. `recipes` makes one."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from looped import methods, registry, tasks
from looped.errors import InputError
from looped.methods import Method
from looped.model.config import ModelConfig, check_bounds, refuse
from looped.registry import NotKnown
from looped.tasks.base import LARGEST_SEED, Task
from looped.tasks.distributions import UNIFORM

Lengths = Literal["stratified", "iid"]
Window = Literal["last", "random"]
PaddingLoss = Literal["batch", "own"]
Products = Literal["auto", "fp32", "tf32", "bf16"]
Supervision = Literal["last", "best", "expected"]
MOST_SEEDS = 1024  # of one run
LARGEST_LR = 1000
# The least and the most that a field may be; larger values are typing errors.
BOUNDS = {
    **dict.fromkeys(("max_length", "steps", "interval", "start_length"), (1, 10**12)),
    **dict.fromkeys(("warmup", "hold"), (0, 10**12)),
    **dict.fromkeys(("backprop", "extra"), (0, 1_000_000)),  # loop steps
    **dict.fromkeys(("weight_decay", "noise", "cooling", "growth_clip", "halt_cost"), (0, math.inf)),
    **dict.fromkeys(("hold_out", "stack"), (0, math.inf)),
    "batch": (1, 1 << 20),
    "replicas": (1, MOST_SEEDS),
}
RANDOM, COMPILED = "random", "compiled"


class Start(NamedTuple):
    """Where a run's weights start.

    random           each seed its own draw
    compiled         the weights of the task's compiled program, the same for every seed
    compiled:1e-3    each of them times 1 + 1e-3·ε, with a normal ε of the seed's own; what is 0 stays 0
    """

    compiled: bool = False
    noise: float = 0.0  # of each weight, as a share of it


def parse_start(text: str) -> Start:
    """The start that a text names; raises a sentence for any other."""
    name, colon, level = text.partition(":")
    if name == RANDOM and not colon:
        return Start()
    try:
        noise = float(level) if colon else 0.0
    except ValueError:
        noise = math.nan
    if name != COMPILED or not 0 <= noise < math.inf:
        raise InputError(f"weights start from random, compiled or compiled:NOISE, not from {text[:40]!r}")
    return Start(True, noise)


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a run's result, saved beside it."""

    OLD_NAMES = (("dwell", "stage_steps"), ("trailing", "padding_loss"), ("steady", "growth_clip"))

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
    stage_steps: tuple[int, ...] = ()  # gradient steps at the first maximum lengths, in place of `interval`
    batch: int = 64  # problems per gradient step
    lengths: Lengths = "iid"  # independent draws, or one draw from each of `batch` equal parts of the range
    padding_loss: PaddingLoss = "batch"  # `#` that count after an answer: as the longest row has, or its own
    family: str = UNIFORM  # how questions are drawn: evenly as in the paper, or by another of `families`
    late_family: str = ""  # drawn instead once every length has had its interval; empty: `family` to the end
    extra: int = 0  # up to so many loop steps past T, drawn for each problem: the answer has to be held
    noise: float = 0.0  # added to the state before every step; its deviation is drawn per problem, up to this
    hold: int = 0  # gradient steps at the peak learning rate after the last length has had its interval
    warmup: int = 0  # gradient steps from 0 to the peak learning rate
    cooling: float = 0.0  # the learning rate falls as (maximum length)^-cooling while that grows; 0: held
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW's
    weight_decay: float = 0.01  # AdamW's
    clip: float = 1.0  # largest gradient norm of a seed
    growth_clip: float = 0.0  # how many times a problem's gradient may grow on its way back; 0: any
    ema: float = 0.0  # decay of the average of the weights that is evaluated; 0: the weights themselves
    late_ema: bool = False  # the average starts when the learning rate begins to fall, not at the first step
    backprop: int = 0  # loop steps the gradient flows through, per problem; 0: all
    window: Window = "last"  # so many last ones, or each problem's own number of them, drawn from 1 up to it
    products: Products = "auto"  # precision of matrix products; auto: bf16 on CUDA, fp32 on the CPU
    checkpointing: bool = False  # keep each step's state and recompute the rest: memory hardly grows with T
    loops: str = "T"  # loop steps of a problem: T(n), or another rule of methods.Loops (T+1, 2T, 16, q..2q)
    supervision: Supervision = "last"  # the answer is asked for then, from the best step on, or on halting
    halt_cost: float = 0.01  # weight of a halting head's steps (act), distance from the prior or error (mark)
    halt_prior: float = 0.1  # chance to halt at a step in PonderNet's geometric prior: 1 / the mean step
    init: str = RANDOM  # where the weights start: random, compiled or compiled:NOISE
    keep_zeros: bool = False  # of a compiled program, train only the weights that are not 0
    block: str = ""  # a block of the user's, as `looped.registry` names it; empty: the stock block
    replicas: int = 1  # models of each seed, of which the best is chosen (`training.population`)
    hold_out: int = 0  # so many of the longest training lengths choose among replicas that do not see them
    refine: float = 0.25  # share of the steps in which the chosen one trains on all lengths; 0: as chosen
    stack: int = 0  # replicas of all seeds that are trained as one computation, at most; 0: all

    def __post_init__(self) -> None:
        check_bounds(self, BOUNDS)
        self._check_numbers()
        try:
            task, method = tasks.get(self.task), methods.get(self.method)
        except NotKnown:
            return  # other people's, not known here: the run can be shown, and using it says what to pass
        task.check_length(self.max_length)
        task.check_family(self.family)
        task.check_family(self.late_family or self.family)
        self._check_fit(task, method)

    def _check_numbers(self) -> None:
        seeds, count, room = set(self.seeds), len(self.seeds), self.max_length - self.start_length
        refuse(
            (len(self.lr) not in (1, count),
             f"give one learning rate or one for each of the {count} seeds, not {len(self.lr)}"),
            (count > MOST_SEEDS, f"a run trains at most {MOST_SEEDS:,} seeds, not {count:,}"),
            (not seeds or len(seeds) != count or min(seeds) < 0 or max(seeds) > LARGEST_SEED,
             f"seeds must be distinct whole numbers from 0 to {LARGEST_SEED}, not {str(self.seeds)[:60]}"),
            (min(self.stage_steps, default=1) < 1,
             f"`stage_steps` must be at least 1 gradient step at each length, not {self.stage_steps}"),
            (not all(0 <= beta < 1 for beta in self.betas), f"AdamW's betas must be in [0, 1), not {self.betas}"),
            (not 0 <= self.ema < 1, f"the weight average's decay must be in [0, 1), not {self.ema}"),
            (min(self.lr, default=1) <= 0 or self.clip <= 0, "lr and clip must be positive"),
            (max(self.lr, default=1) > LARGEST_LR, f"lr must be at most {LARGEST_LR}"),
            (not 0 < self.halt_prior < 1, f"halt_prior must be between 0 and 1, not {self.halt_prior}"),
            (not 0 <= self.refine < 1, f"refine must be from 0 to below 1, not {self.refine}"),
            (self.replicas * count > MOST_SEEDS, f"a run trains at most {MOST_SEEDS:,} replicas of all seeds"),
        )  # fmt: skip
        if self.replicas > 1:
            refuse(
                (not 1 <= self.hold_out <= room,
                 f"replicas are chosen by held-out lengths: hold_out must be from 1 to {room}, not {self.hold_out}"),
                (self.selected_at < 1,
                 f"refine={self.refine:g} of {self.steps} gradient steps leaves none for the replicas"),
            )  # fmt: skip

    def _check_fit(self, task: Task, method: Method) -> None:
        """Refuse what the task or the method cannot have."""
        halting, loops = self.model.halting, method.adaptive and method.prediction == "fop"
        compiled, law = parse_start(self.init).compiled, methods.parse_loops(self.loops)
        refuse(
            (self.lengths == "stratified" and self.batch < task.variants,
             f"{task.name} has {task.variants} kinds of problem: with stratified lengths the batch must be at least "
             f"{task.variants}, not {self.batch}"),
            (self.padding_loss == "own" and (self.lengths != "stratified" or method.universal),
             "padding_loss=own is for lengths=stratified and models without an encoder"),
            (self.extra and not method.adaptive,
             f"{self.method} has a fixed depth: there are no extra loop steps to draw"),
            (not law.plain and not method.adaptive,
             f"{self.method} has a fixed depth: loops={self.loops} cannot be had"),
            ((self.whole or halting != "none") and self.backprop,
             "backprop cuts the gradient of the last step; halting and supervision=best look at all of them"),
            (self.supervision == "best" and (halting != "none" or not method.adaptive),
             "supervision=best is for adaptive methods without a halting head"),
            (self.supervision == "expected" and halting != "eoq",
             f"supervision=expected is for halting=eoq, not for {halting}"),
            (halting == "eoq" and not loops, "halting=eoq is for adaptive methods that predict the full output"),
            ((self.model.kind == "universal") != method.universal,
             f"the method {method.name} and a {self.model.kind} model do not go together"),
            (method.universal and (self.noise or self.supervision != "last"),
             f"{method.name} takes neither noise on its state nor another supervision"),
            (compiled and not loops, f"init={self.init} is for fop-loop-adaptive, with or without injection"),
            (self.replicas > 1 and not loops,
             f"replicas are for adaptive methods that predict the full output, not {method.name}"),
            (self.keep_zeros and not compiled, "keep_zeros is for init=compiled, where nearly all weights are 0"),
            (self.model.vocab < len(task.vocab),
             f"a model of {task.name} has at least {len(task.vocab)} tokens, not {self.model.vocab}"),
        )  # fmt: skip

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
        return f"{own}-{COMPILED}" if parse_start(self.init).compiled else own

    @property
    def curriculum_end(self) -> int:
        """The gradient step from which the learning rate falls: the last length has had its interval, and `hold`."""
        if self.replicas > 1:  # all lengths from the choice on
            return min(self.selected_at + self.warmup, self.steps)
        return min(self.stage_end(max(self.max_length, self.start_length)) + self.hold, self.steps)

    def stage_end(self, longest: int) -> int:
        """The gradient step from which problems longer than `longest` are seen, if there are any."""
        stages = max(longest - self.start_length + 1, 0)
        own = self.stage_steps[:stages]
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
