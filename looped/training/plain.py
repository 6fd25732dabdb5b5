"""The plain engine: ordinary autograd over the modules of the seeds, one after the other.

This is what training means; the fast engine computes the same for the stock block (a test holds them equal). Any
module can stand in the place of the block. A gradient step, for each seed:

    draw a batch → embed → loop, each row for its own T → read out → cross entropy → backward → clipped AdamW

Parameters are views into `weights` [S, P], so that optimiser, average and checkpoints are the same for every block.

Shapes: S seeds, B rows, L positions, D width, V vocabulary, P numbers of a seed's trained weights;
R rows still in the loop.
"""

from __future__ import annotations

import contextlib
import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from looped import methods, tasks
from looped.batches import Batch
from looped.errors import InputError
from looped.model import halting, positions
from looped.model.looped import BlockMaker, LoopedTransformer, checkpoint_weights, load_checkpoint_weights
from looped.model.seeds import ModuleStack, ModuleWeights, SeedModel, SeedWeights
from looped.training import curriculum, optimizer, start
from looped.training.config import TrainConfig, product_dtype
from looped.training.curriculum import Stage
from looped.training.optimizer import AdamW, Moments
from looped.training.progress import Readings
from looped.training.world import World


def refuses(config: TrainConfig, world: World | None = None) -> str | None:
    """Why the plain engine cannot train a configuration; None if it can."""
    model = config.model
    if model.kind != "decoder":
        return f"it trains decoders, not model.kind={model.kind}"
    if model.halting in ("act", "ponder"):
        return f"it knows no loss for model.halting={model.halting}"
    if config.supervision != "last":
        return f"it knows no loss for supervision={config.supervision}"
    if model.precision != "float32":
        return f"it keeps weights in float32, not model.precision={model.precision}"
    if start.parse(config.init).compiled:
        return f"it starts from random weights, not init={config.init}"
    if config.steady and model.relay:
        return "steady is not defined here for a model.relay"
    if world is not None and world.size > 1:
        return f"it runs in one process, not in {world.size}"
    return None


class TrainingEngine(ABC):
    """Trains S seeds, a gradient step at a time: what all engines share, and what the trainer asks of them.

    A subclass sets `weights` [S, P], which change in place, and `moments`.
    """

    weights: Float[Tensor, "S P"]
    moments: Moments
    adamw: AdamW = staticmethod(optimizer.adamw)

    def __init__(
        self, config: TrainConfig, device: torch.device | str, precision: torch.dtype | None = None
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        cuda = self.device.type == "cuda"
        self.precision = precision or product_dtype(config, cuda)
        if cuda:  # for the whole process, as torch has it
            torch.backends.cuda.matmul.allow_tf32 = config.products == "tf32"
        self.task, self.method = tasks.get(config.task), methods.get(config.method)
        self.law = methods.parse_loops(config.loops)
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in config.seeds]
        self.done = 0  # gradient steps taken
        self._hyper: Float[Tensor, "S 3"] = torch.zeros(len(config.seeds), 3, device=self.device)
        self._stage: Stage | None = None

    def step(self) -> Readings:
        """Take one gradient step of every seed. The readings live on the device and may change with the next step."""
        config = self.config
        longest, family = curriculum.max_length(config, self.done), curriculum.family(config, self.done)
        if self._stage is None or (self._stage.longest, self._stage.family) != (longest, family):
            self._stage = replace(self.stage(longest), family=family)
        if self.moments.average is not None and self.done == self._average_from:
            self.moments.average.copy_(self.weights)
        share = curriculum.lr_share(config, self.done)
        self._hyper.copy_(torch.tensor(optimizer.hyper(config, share, self.done)))
        readings = self._carry_out(self._stage)
        self.done += 1
        return readings

    def stage(self, longest: int) -> Stage:
        """The shapes of the stage whose maximum length is `longest`."""
        return curriculum.stage(self.config, longest, self.device)

    def _carry_out(self, stage: Stage) -> Readings:
        """Gradients and update, with the rates in `_hyper`."""
        loss, grad, right, longest = self.gradients(stage)
        norm = optimizer.update(self.config, self.weights, grad, self.moments, self._hyper, self.adamw)
        accuracy_longest = (right * longest).sum(1) / longest.sum(1)
        return Readings(loss, norm, right.mean(1), accuracy_longest)

    @abstractmethod
    def gradients(self, stage: Stage) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [S], gradient [S, P], rows answered exactly [S, B], rows of the maximum length [S, B]."""

    # --- what is drawn -------------------------------------------------------------------------------------
    def draw(self, stage: Stage) -> tuple[Batch, Bool[Tensor, "S B"]]:
        """A fresh batch for every seed, rows sorted by T, and which rows have the maximum length."""
        return curriculum.draw(self.config, stage, self.generators)

    def _places(self, size: int) -> Int[Tensor, "B L"] | None:
        """Randomised positions, where the model has them; shared by the seeds."""
        if self.config.model.positions != "randomised":
            return None
        return positions.places(self.config.model, self.config.batch, size, self.device, self.generators[0])

    def _depth(self, generator: torch.Generator) -> Int[Tensor, "B"] | None:
        """How many steps back each row's gradient flows, if it is cut."""
        most, size = self.config.backprop, (self.config.batch,)
        if not most:
            return None
        if self.config.window == "last":
            return torch.full(size, most, device=self.device)
        return torch.randint(1, most + 1, size, device=self.device, generator=generator)

    # --- weights that count --------------------------------------------------------------------------------
    @property
    def evaluated_weights(self) -> Float[Tensor, "S P"]:
        """The weights that count: their average where the run keeps one and it has begun."""
        if self.moments.average is None or self.done <= self._average_from:
            return self.weights
        return self.moments.average

    @property
    def _average_from(self) -> int:
        """The gradient step at which the average starts from the weights."""
        return self.config.curriculum_end if self.config.late_ema else 0

    @abstractmethod
    def evaluated(self) -> tuple[SeedModel, SeedWeights]:
        """The model with the weights that count, to be measured."""

    @abstractmethod
    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """The weights that count of the i-th seed, as its checkpoint holds them."""

    @abstractmethod
    def take_weights(self, i: int, weights: Mapping[str, Tensor]) -> None:
        """Put such weights, as `seed_weights` gives them, in the place of the i-th seed's."""

    def buffers(self) -> dict[str, Tensor]:
        """What a checkpoint has to hold beside weights and moments: changed in place."""
        return {}


class PlainEngine(TrainingEngine):
    """Trains S seeds one after the other, a gradient step at a time."""

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        *,
        block: BlockMaker | None = None,
        world: World | None = None,
    ) -> None:
        reason = refuses(config, world)
        if reason is not None:
            raise InputError(f"the plain engine cannot train this: {reason}")
        super().__init__(config, device)
        self.stock = block is None  # checkpoints of the stock block have a layout of their own
        self.nets = [
            LoopedTransformer.from_seed(config.model, seed, block).to(self.device) for seed in config.seeds
        ]
        self.weights = torch.stack([_flat(net) for net in self.nets])
        for net, row in zip(self.nets, self.weights, strict=True):
            point_into(net, row)
        self.moments = Moments.of(self.weights, config.ema)

    def gradients(self, stage: Stage) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [S], gradient [S, P], rows answered exactly [S, B], rows of the maximum length [S, B]."""
        batch, longest = self.draw(stage)
        # Everything random is drawn in the order in which the fast engine draws it.
        levels = [self._rand(g) if self.config.noise else None for g in self.generators]
        at = self._places(batch.tokens.shape[-1])
        depths = [self._depth(g) for g in self.generators]
        most = int(batch.steps.max()) if stage.strata is None else stage.strata.upper[0]
        found = []
        for i, (seed, net) in enumerate(zip(self.config.seeds, self.nets, strict=True)):
            own = Batch(batch.tokens[i], batch.targets[i], batch.loss_mask[i], batch.steps[i])
            targets, mask = own.targets[None], own.loss_mask[None]
            noise = self._noise(stage, levels[i], self.generators[i], most)
            with self._own_randomness(seed), self._autocast():
                final, cost = self._loop(net.train(), own, at, depths[i], noise)
                logits = net.readout(final)[None]
                loss = answer_loss(logits, targets, mask)[0]
            (loss + cost).backward()  # type: ignore[no-untyped-call]
            right = exact(logits.detach(), targets, mask)[0]
            found.append((loss.detach(), _take_gradient(net), right.float()))
        loss, grad, right = (torch.stack(parts) for parts in zip(*found, strict=True))
        return loss, grad, right, longest

    def _loop(
        self,
        net: LoopedTransformer,
        batch: Batch,
        at: Int[Tensor, "B L"] | None,
        depth: Int[Tensor, "B"] | None,
        noise: list[Tensor],
    ) -> tuple[Float[Tensor, "B L D"], Tensor | float]:
        """Every row's state at its own T, and what halting costs; a row that is done leaves the loop."""
        config, steps = self.config, batch.steps.tolist()
        x: Tensor = net.embed(batch.tokens, at)
        ceiling = GrowthLimit(config.steady)
        rows = list(range(len(steps)))  # those still in the loop
        h: Tensor | None = None
        ended: list[tuple[list[int], Tensor]] = []
        cost: Tensor | float = 0.0
        for t in range(1, max(steps) + 1):
            u = net.inject(h, x).view_as(x)  # at step 1 not the input itself, whose gradient is of all steps
            if noise:
                u = u + noise[t - 1][rows]
            ceiling.watch(u, rows)
            h = checkpoint(net.step, u, use_reentrant=False) if config.checkpointing else net.step(u)
            assert h is not None
            if config.model.halting == "mark":
                cost = cost + self._mark_cost(net, h, batch, rows, t)
            ends = [i for i, row in enumerate(rows) if steps[row] == t]
            if ends:
                stays = [i for i, row in enumerate(rows) if steps[row] > t]
                ended.append(([rows[i] for i in ends], h[ends]))
                rows, h, x = [rows[i] for i in stays], h[stays], x[stays]
            if depth is not None:  # the gradient of a row stops so many steps before its end
                far = (batch.steps - depth)[rows] >= t
                h = torch.where(far[:, None, None], h.detach(), h)
        order = torch.tensor([row for some, _ in ended for row in some], device=self.device).argsort()
        final = torch.cat([states for _, states in ended])[order]
        ceiling.end(final)
        return final, cost

    def _mark_cost(
        self, net: LoopedTransformer, h: Float[Tensor, "R L D"], batch: Batch, rows: list[int], step: int
    ) -> Float[Tensor, ""]:
        """What the end-of-question halting head costs after a step."""
        assert net.halting_head is not None
        mark = halting.mark_of(batch.loss_mask[rows])
        wants = net.halting_head(h[torch.arange(len(rows), device=h.device), mark])[:, 0]
        own = batch.steps[rows]
        each = halting.mark_cost(wants, own == step, own >= step)
        return each.sum() * (self.config.halt_cost / self.config.batch)

    # --- what is drawn -------------------------------------------------------------------------------------
    def _rand(self, generator: torch.Generator) -> Float[Tensor, "B"]:
        return torch.rand(self.config.batch, device=self.device, generator=generator)

    def _noise(
        self, stage: Stage, level: Tensor | None, generator: torch.Generator, most: int
    ) -> list[Float[Tensor, "B L D"]]:
        """What is added to the state before each of `most` steps: normal, at each row's own level."""
        if level is None:
            return []
        shape = (len(level), max(stage.computed), self.config.model.width)
        scale = (self.config.noise * level)[stage.cells // shape[1], None]
        drawn = []
        for _ in range(most):  # without a boolean index, so that a graph can hold it
            flat = torch.empty(len(scale), shape[2], device=self.device).normal_(generator=generator)
            padded = torch.zeros(shape[0] * shape[1], shape[2], device=self.device)
            drawn.append(padded.index_copy_(0, stage.cells, flat * scale).view(shape))
        return drawn

    @contextlib.contextmanager
    def _own_randomness(self, seed: int) -> Iterator[None]:
        """What a block draws itself, such as dropout, follows from seed and step, so that a resumed run is equal."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed * 1_000_003 + self.done)
            yield

    def _autocast(self) -> torch.autocast:
        lower = self.precision == torch.bfloat16
        return torch.autocast(self.device.type, torch.bfloat16, enabled=lower)

    def evaluated_net(self, i: int) -> LoopedTransformer:
        """A copy of the i-th seed's module with the weights that count."""
        net = copy.deepcopy(self.nets[i])
        point_into(net, self.evaluated_weights[i].clone())
        return net

    def evaluated(self) -> tuple[ModuleStack, ModuleWeights]:
        """The model with the weights that count, to be measured."""
        nets = [self.evaluated_net(i) for i in range(len(self.nets))]
        return ModuleStack(self.config.model), ModuleWeights(nets)

    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """A seed's weights as its checkpoint holds them: the stock block's layout, or the module's own names."""
        net = self.evaluated_net(i)
        return checkpoint_weights(net) if self.stock else dict(net.state_dict())

    def take_weights(self, i: int, weights: Mapping[str, Tensor]) -> None:
        """Put such weights in the place of a seed's; what is not trained has to be the same in both."""
        net, trained = self.nets[i], {name for name, p in self.nets[i].named_parameters() if p.requires_grad}
        if self.stock:
            load_checkpoint_weights(net, weights)
            return
        for name, value in net.state_dict().items():
            if name not in trained and not torch.equal(value.cpu(), weights[name].cpu()):
                raise InputError(
                    f"the block's {name} is not trained and differs: it cannot start from other weights"
                )
        net.load_state_dict(dict(weights))

    def buffers(self) -> dict[str, Tensor]:
        """The modules' buffers, which a block may change as it trains."""
        return {f"buffer.{i}.{name}": b for i, net in enumerate(self.nets) for name, b in net.named_buffers()}


class GrowthLimit:
    """Limits how many times a row's gradient may grow on its way back (`steady`); 0 sets no limit.

    Backward reaches the states at the rows' ends first; their gradients' norms set the limit for every step before.
    """

    def __init__(self, steady: float) -> None:
        self.steady = steady
        self.highest: Tensor | None = None  # [B], or [S, B] of stacked seeds

    def end(self, final: Float[Tensor, "*S B L D"]) -> None:
        """Remember the norms of the gradients that come in."""

        def note(grad: Tensor) -> None:
            self.highest = self.steady * _row_norms(grad)

        if self.steady and final.requires_grad:
            final.register_hook(note)  # type: ignore[no-untyped-call]

    def watch(self, u: Float[Tensor, "*S R L D"], rows: list[int] | slice) -> None:
        """Scale down what is larger; `rows` says which rows these are."""

        def hold(grad: Tensor) -> Tensor:
            assert self.highest is not None
            norm = _row_norms(grad).clamp_min(torch.finfo(torch.float32).tiny)
            return grad * (self.highest[..., rows] / norm).clamp_max(1)[..., None, None].to(grad.dtype)

        if self.steady and u.requires_grad:
            u.register_hook(hold)  # type: ignore[no-untyped-call]


def _row_norms(grad: Float[Tensor, "*S R L D"]) -> Float[Tensor, "*S R"]:
    return grad.float().square().sum((-2, -1)).sqrt()


def _trained(net: LoopedTransformer) -> list[torch.nn.Parameter]:
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def _flat(net: LoopedTransformer) -> Float[Tensor, "P"]:
    """A copy of everything that is trained, in one row."""
    return torch.cat([parameter.detach().float().flatten() for parameter in _trained(net)])


def point_into(net: LoopedTransformer, row: Float[Tensor, "P"]) -> None:
    """Make the trained parameters views into a row."""
    at = 0
    for parameter in _trained(net):
        parameter.data = row[at : at + parameter.numel()].view(parameter.shape)
        at += parameter.numel()


def _take_gradient(net: LoopedTransformer) -> Float[Tensor, "P"]:
    """The gradient in the order of `_flat`; the parameters have none afterwards."""
    parts = []
    for parameter in _trained(net):
        grad = parameter.grad
        parts.append((torch.zeros_like(parameter) if grad is None else grad).detach().flatten())
        parameter.grad = None
    return torch.cat(parts)


# --- the loss: cross entropy over the answer's positions, each problem at its own last step ------------------


def answer_loss(
    logits: Float[Tensor, "S B L V"],
    targets: Int[Tensor, "S B L"],
    loss_mask: Bool[Tensor, "S B L"],
    counted: Int[Tensor, "S"] | None = None,
) -> Float[Tensor, "S"]:
    """Mean cross entropy of each seed over every position that counts, the `#` after the answer included.

    `counted` is how many count in the whole batch, where these rows are a part of it.
    """
    each = _cross_entropy(logits, targets)
    return (each * loss_mask).sum((1, 2)) / (loss_mask.sum((1, 2)) if counted is None else counted)


def example_loss(
    logits: Float[Tensor, "S B L V"], targets: Int[Tensor, "S B L"], loss_mask: Bool[Tensor, "S B L"]
) -> Float[Tensor, "S B"]:
    """Mean cross entropy of each row over its own positions that count."""
    return (_cross_entropy(logits, targets) * loss_mask).sum(-1) / loss_mask.sum(-1)


def _cross_entropy(logits: Float[Tensor, "S B L V"], targets: Int[Tensor, "S B L"]) -> Float[Tensor, "S B L"]:
    each = F.cross_entropy(logits.float().flatten(0, 2), targets.flatten(), reduction="none")
    return each.view(targets.shape)


def exact(
    logits: Float[Tensor, "S B L V"], targets: Int[Tensor, "S B L"], loss_mask: Bool[Tensor, "S B L"]
) -> Bool[Tensor, "S B"]:
    """Which rows are right at every position that counts."""
    return ((logits.argmax(-1) == targets) | ~loss_mask).all(-1)
