"""The plain engine: ordinary autograd over the modules of the seeds, one after the other.

This is what training means; the fast engine computes the same for the stock block (a test holds them equal). Any
module can stand in the place of the block. A gradient step, for each seed:

    draw a batch → embed → loop, each row for its own T → read out → cross entropy → backward → clipped AdamW

`gradients` and `_loop` are all of it but the update (`optimizer.update`). Parameters are views into `weights` [S, P],
so that optimiser, average and checkpoints are the same for every block.

Shapes: S seeds, B rows, L positions, D width, V vocabulary, P numbers of a seed's trained weights;
R rows still in the loop.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils import vector_to_parameters
from torch.utils.checkpoint import checkpoint

from looped.batches import Batch
from looped.errors import InputError
from looped.model import halting
from looped.model.looped import BlockMaker, LoopedTransformer, checkpoint_weights, load_checkpoint_weights
from looped.model.seeds import ModuleStack, ModuleWeights
from looped.training.config import TrainConfig, parse_start
from looped.training.curriculum import Stage
from looped.training.engine import TrainingEngine, World
from looped.training.optimizer import GrowthLimit, Moments


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
        super().__init__(config, device, world=world)
        self.stock = block is None  # checkpoints of the stock block have a layout of their own
        make = LoopedTransformer.from_seed
        self.nets = [make(config.model, seed, block).to(self.device) for seed in config.seeds]
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
        config, steps = self.config, batch.steps.cpu()
        ceiling = GrowthLimit(config.growth_clip)
        x: Tensor = net.embed(batch.tokens, at)
        h: Tensor | None = None
        rows = torch.arange(len(steps))  # those still in the loop
        ended: list[tuple[Tensor, Tensor]] = []  # rows and their last states
        cost: Tensor | float = 0.0
        for t in range(1, int(steps.max()) + 1):
            u = net.inject(h, x).view_as(x)  # at step 1 not the input itself, whose gradient is of all steps
            if noise:
                u = u + noise[t - 1][rows]
            ceiling.watch(u, rows)
            h = checkpoint(net.step, u, use_reentrant=False) if config.checkpointing else net.step(u)
            assert h is not None
            if config.model.halting == "eoq":
                cost = cost + self._eoq_cost(net, h, batch.rows(rows), t)
            done = steps[rows] == t
            if bool(done.any()):
                ended.append((rows[done], h[done]))
                rows, h, x = rows[~done], h[~done], x[~done]
            if depth is not None:  # the gradient of a row stops so many steps before its end
                far = (batch.steps - depth)[rows] >= t
                h = torch.where(far[:, None, None], h.detach(), h)
        order = torch.cat([some for some, _ in ended]).argsort()
        final = torch.cat([states for _, states in ended])[order]
        ceiling.end(final)
        return final, cost

    def _eoq_cost(
        self, net: LoopedTransformer, h: Float[Tensor, "R L D"], batch: Batch, step: int
    ) -> Float[Tensor, ""]:
        """What the end-of-question halting head costs after a step."""
        assert net.halting_head is not None
        at_eoq = h[torch.arange(len(h), device=h.device), halting.eoq_of(batch.loss_mask)]
        wants = net.halting_head(at_eoq)[:, 0]
        each = halting.eoq_cost(wants, batch.steps == step, batch.steps >= step)
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
                raise InputError(f"the block's {name} is not trained and differs from the start's")
        net.load_state_dict(dict(weights))

    def buffers(self) -> dict[str, Tensor]:
        """The modules' buffers, which a block may change as it trains."""
        return {f"buffer.{i}.{name}": b for i, net in enumerate(self.nets) for name, b in net.named_buffers()}


def refuses(config: TrainConfig, world: World | None = None) -> str | None:
    """Why the plain engine cannot train a configuration; None if it can."""
    model = config.model
    for refused, reason in (
        (model.kind != "decoder", f"it trains decoders, not model.kind={model.kind}"),
        (model.halting in ("act", "ponder"), f"it knows no loss for model.halting={model.halting}"),
        (config.supervision != "last", f"it knows no loss for supervision={config.supervision}"),
        (model.precision != "float32", f"it keeps weights in float32, not model.precision={model.precision}"),
        (parse_start(config.init).compiled, f"it starts from random weights, not init={config.init}"),
        (config.growth_clip and model.relay, "growth_clip is not defined here for a model.relay"),
        (world and world.size > 1, f"it runs in one process, not in {world.size if world else 1}"),
    ):
        if refused:
            return reason
    return None


def _trained(net: LoopedTransformer) -> list[torch.nn.Parameter]:
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def _flat(net: LoopedTransformer) -> Float[Tensor, "P"]:
    """A copy of everything that is trained, in one row."""
    return torch.cat([parameter.detach().float().flatten() for parameter in _trained(net)])


def point_into(net: LoopedTransformer, row: Float[Tensor, "P"]) -> None:
    """Make the trained parameters views into a row."""
    vector_to_parameters(row, _trained(net))


def _take_gradient(net: LoopedTransformer) -> Float[Tensor, "P"]:
    """The gradient in the order of `_flat`; the parameters have none afterwards."""
    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in _trained(net)]
    net.zero_grad()
    return torch.cat([grad.detach().flatten() for grad in grads])


# --- the loss: cross entropy over the answer's positions, each problem at its own last step ------------------


Logits = Float[Tensor, "S B L V"]
Targets = Int[Tensor, "S B L"]
Mask = Bool[Tensor, "S B L"]  # what counts: the answer, and the `#` after it


def answer_loss(
    logits: Logits, targets: Targets, loss_mask: Mask, counted: Int[Tensor, "S"] | None = None
) -> Float[Tensor, "S"]:
    """Mean cross entropy of each seed over every position that counts.

    `counted` is how many count in the whole batch, where these rows are a part of it.
    """
    each = _cross_entropy(logits, targets)
    return (each * loss_mask).sum((1, 2)) / (loss_mask.sum((1, 2)) if counted is None else counted)


def example_loss(logits: Logits, targets: Targets, loss_mask: Mask) -> Float[Tensor, "S B"]:
    """Mean cross entropy of each row over its own positions that count."""
    return (_cross_entropy(logits, targets) * loss_mask).sum(-1) / loss_mask.sum(-1)


def _cross_entropy(logits: Logits, targets: Targets) -> Float[Tensor, "S B L"]:
    each = F.cross_entropy(logits.float().flatten(0, 2), targets.flatten(), reduction="none")
    return each.view(targets.shape)


def exact(logits: Logits, targets: Targets, loss_mask: Mask) -> Bool[Tensor, "S B"]:
    """Which rows are right at every position that counts."""
    return ((logits.argmax(-1) == targets) | ~loss_mask).all(-1)
