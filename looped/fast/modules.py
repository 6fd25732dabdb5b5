"""Any block, fast: the seeds of ordinary modules stacked by `torch.func`, on CUDA in one graph per curriculum stage.

Where the fused engine cannot compute a block, the plain engine calls its module for one seed after the other. This
engine calls it once for all seeds (`torch.vmap` over stacked weights), and on CUDA it records the whole gradient step,
so that launching costs nothing. The module is called as it is. What a vmap cannot carry (randomness, values that decide
the control flow) is found by a trial, which compares loss and gradient with the plain engine's.

Shapes: S seeds, B rows, L positions, D width, P numbers of a seed's trained weights.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from looped.batches import Batch
from looped.errors import InputError
from looped.fast import kernels, onednn
from looped.fast.engine import Recording, apart, few_seeds
from looped.fast.folding import Calls, Products
from looped.fast.supports import drawing
from looped.model import halting
from looped.model.looped import BlockMaker, LoopedTransformer
from looped.training import curriculum
from looped.training.config import TrainConfig
from looped.training.curriculum import Plan, Stage
from looped.training.engine import World
from looped.training.optimizer import GrowthLimit
from looped.training.plain import PlainEngine, answer_loss, exact

ROWS = 4  # of a trial
WIDE = 128  # width from which `onednn` makes up for what `Products` costs


class ModuleEngine(Recording, PlainEngine):
    """Trains S seeds at once, whatever their block is."""

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        *,
        block: BlockMaker | None = None,
        world: World | None = None,
        graphs: bool | None = None,
    ) -> None:
        super().__init__(config, device, block=block, world=world)
        cuda = self.device.type == "cuda"
        # A graph holds neither noise, drawn for a number of positions that only the data tells, nor Python's own draws.
        fits = cuda and not config.noise and drawing(config, cuda) is None
        self.graphs = fits if graphs is None else graphs
        if cuda and kernels.available():
            self.adamw = kernels.adamw
        self._module = Part(copy.deepcopy(self.nets[0]).train())
        # In fp32 on a CPU nothing is cast and launches cost little: torch's own way is faster there for narrow blocks.
        wide = config.model.width >= WIDE and onednn.available()
        self.products = cuda or self.precision.itemsize < 4 or wide
        self._trained = {name: p.shape for name, p in self._module.named_parameters() if p.requires_grad}
        self._constant = {  # what a seed has beside its trained weights
            name: torch.stack([dict(_all(net))[name.removeprefix("net.")].detach() for net in self.nets])
            for name, _ in _all(self._module)
            if name not in self._trained
        }

    def gradients(self, stage: Stage) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [S], gradient [S, P], rows answered exactly [S, B], rows of the maximum length [S, B]."""
        batch, longest = self.draw(stage)
        levels = [self._rand(g) if self.config.noise else None for g in self.generators]
        at = self._places(batch.tokens.shape[-1])
        cut = [depth for depth in map(self._depth, self.generators) if depth is not None]
        plan = stage.plan or curriculum.plan(batch.steps.amin(0).tolist(), batch.steps.amax(0).tolist())
        of_seeds = zip(levels, self.generators, strict=True)
        drawn = [self._noise(stage, level, generator, len(plan.active)) for level, generator in of_seeds]
        noise = [torch.stack(of_step) for of_step in zip(*drawn, strict=True)]
        trained = self._leaves()
        weights, leaves = {**trained, **self._constant}, list(trained.values())
        self._products = Products(self.precision)
        with self._autocast(), self._attention():
            x = self._call(weights, "embed", batch.tokens, None if at is None else at.expand_as(batch.tokens))
            # A leaf for each step, so that what flows back into x is added up in one place.
            inputs = [x.detach()[:, :count].requires_grad_() for count in plan.active]
            final, cost = self._states(
                weights, inputs, batch, plan, noise, batch.steps - torch.stack(cut) if cut else None
            )
            logits = self._call(weights, "readout", final)
        loss = answer_loss(logits, batch.targets, batch.loss_mask)
        reached = [*leaves, *inputs, *self._products.inputs()]
        found = torch.autograd.grad((loss + cost).sum(), reached, allow_unused=True)
        parts = [found[: len(leaves)], self._embedding(x, leaves, found[len(leaves) :][: len(inputs)])]
        parts.append(self._products.gradients(leaves))
        grad = [_sum(each, leaf).flatten(1) for leaf, *each in zip(leaves, *parts, strict=True)]
        right = exact(logits.detach(), batch.targets, batch.loss_mask)
        return loss.detach(), torch.cat(grad, dim=1), right.float(), longest

    def _embedding(
        self, x: Float[Tensor, "S B L D"], leaves: list[Tensor], grads: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """What the gradients of the steps' inputs, [S, b, L, D], are to the weights that x was made of."""
        if not x.requires_grad:
            return [None] * len(leaves)
        total = torch.zeros_like(x)
        for grad in grads:
            if grad is not None:
                total[:, : grad.shape[1]] += grad
        reached = [*leaves, *self._products.inputs()]
        return torch.autograd.grad(x, reached, total, allow_unused=True)[: len(leaves)]

    def _states(
        self,
        weights: dict[str, Tensor],
        inputs: list[Tensor],
        batch: Batch,
        plan: Plan,
        noise: list[Tensor],
        cut: Int[Tensor, "S B"] | None,
    ) -> tuple[Float[Tensor, "S B L D"], Float[Tensor, "S"]]:
        """Every row's state at its own T, and what halting costs.

        Rows are sorted by T: at step t those from `low` on may be done, and those from `stays` on are and leave the
        loop. No gradient flows through step `cut`.
        """
        ceiling = GrowthLimit(self.config.growth_clip)
        cost = inputs[0].new_zeros(len(inputs[0]))
        h: Tensor | None = None
        kept = inputs[0][:, :0]  # the states at T, where rows are there, of those that may have been before
        ended: list[Tensor] = []
        for t, (x, low) in enumerate(zip(inputs, plan.leaving, strict=True), 1):
            count = x.shape[1]
            steps = batch.steps[:, :count]
            u = self._call(weights, "inject", h, x)
            if noise:
                u = u + noise[t - 1][:, :count]
            ceiling.watch(u, slice(count))
            h = self._call(weights, "step", u)
            if self.config.model.halting == "eoq":
                cost = cost + self._halting_cost(weights, h, batch, t)
            stays = plan.active[t] if t < len(inputs) else 0
            h, last = Leaving.apply(h, stays, low)  # type: ignore[no-untyped-call]
            earlier = last.shape[1] - kept.shape[1]
            now = (steps[:, low + earlier :] == t)[..., None, None]
            kept = torch.cat([last[:, :earlier], torch.where(now, last[:, earlier:], kept.to(last.dtype))], 1)
            ended.append(kept[:, stays - low :])
            kept = kept[:, : stays - low]
            if cut is not None:
                h = torch.where((cut[:, :stays] >= t)[..., None, None], h.detach(), h)
        final = torch.cat(ended[::-1], dim=1)
        ceiling.end(final)
        return final, cost

    def _halting_cost(
        self, weights: dict[str, Tensor], h: Float[Tensor, "S b L D"], batch: Batch, step: int
    ) -> Float[Tensor, "S"]:
        """What the end-of-question halting head costs after a step."""
        count = h.shape[1]
        wants = self._call(weights, "halting_head", halting.at_eoq(h, batch.loss_mask[:, :count]))[..., 0]
        own = batch.steps[:, :count]
        each = halting.eoq_cost(wants, own == step, own >= step)
        return each.sum(1) * (self.config.halt_cost / self.config.batch)

    def _call(self, weights: dict[str, Tensor], name: str, *given: Tensor | None) -> Tensor:
        """What a method of every seed's model makes of that seed's own part of what is given."""

        def of_one_seed(own: dict[str, Tensor], *values: Tensor | None) -> Any:
            trained = [own[name] for name in self._trained]
            with Calls(self._products, trained) if self.products else nullcontext():
                return functional_call(self._module, own, (name, *values))

        dims = tuple(None if value is None else 0 for value in given)
        found: Tensor = torch.vmap(of_one_seed, in_dims=(0, *dims))(weights, *given)
        return found

    def _autocast(self) -> torch.autocast:
        lower = self.precision == torch.bfloat16
        return torch.autocast(self.device.type, torch.bfloat16, enabled=lower, cache_enabled=False)

    def _attention(self) -> AbstractContextManager[None]:
        """Torch's attention kernels that can be stacked.

        The others take their inputs under `vmap` for ones without a gradient and do not keep what the backward pass
        needs, or (the CPU's own) have no rule for stacked calls and are called seed by seed.
        """
        on_cuda = [SDPBackend.FLASH_ATTENTION] if self.device.type == "cuda" else []
        return sdpa_kernel([*on_cuda, SDPBackend.MATH])

    def _leaves(self) -> dict[str, Tensor]:
        """The trained weights of all seeds by name [S, …], as leaves."""
        parts = torch.split(self.weights.detach(), [shape.numel() for shape in self._trained.values()], dim=1)
        named = zip(self._trained.items(), parts, strict=True)
        return {name: part.view(-1, *shape).requires_grad_() for (name, shape), part in named}


class Leaving(torch.autograd.Function):
    """The states of the rows that go on, and of those that may be done: the first `stays`, and those from `low` on."""

    @staticmethod
    def forward(
        ctx: Any, h: Float[Tensor, "S b L D"], stays: int, low: int
    ) -> tuple[Float[Tensor, "S k L D"], Float[Tensor, "S e L D"]]:
        """Both as views."""
        ctx.split, ctx.shape = (stays, low), h.shape
        return h[:, :stays], h[:, low:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """One tensor for both."""
        (on, last), (stays, low) = grads, ctx.split
        out = on.new_empty(ctx.shape)
        out[:, :stays] = on
        out[:, stays:] = 0
        out[:, low:] += last
        return out, None, None


def trial(
    config: TrainConfig, device: torch.device | str = "cpu", block: BlockMaker | None = None
) -> str | None:
    """Why the seeds of a block cannot be stacked; None if they can and a trial gives the plain engine's gradient.

    The trial has two seeds, a few rows and the longest training problems.
    """
    if config.checkpointing:
        return "it does not know checkpointing"
    few = replace(few_seeds(config), batch=min(config.batch, ROWS))
    slow, stacked = PlainEngine(few, device, block=block), ModuleEngine(few, device, block=block)
    stage = curriculum.stage(few, few.max_length, slow.device)
    before = {name: buffer.clone() for name, buffer in slow.buffers().items()}
    expected, plain_grad, *_ = slow.gradients(stage)
    if any(not torch.equal(before[name], buffer) for name, buffer in slow.buffers().items()):
        return "the block changes its buffers"
    try:
        loss, grad, *_ = stacked.gradients(stage)
    except InputError:
        raise
    except Exception as error:  # whatever a user's module does when it is stacked
        return f"stacked, the block fails: {(str(error).splitlines() or [type(error).__name__])[0][:120]}"
    return apart(expected, plain_grad, loss, grad, slow.precision)


def _sum(parts: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """The sum of the gradients that there are."""
    there = [part for part in parts if part is not None]
    return sum(there[1:], start=there[0]) if there else torch.zeros_like(like)


def _all(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


class Part(nn.Module):
    """A model of which any method can be called with other weights."""

    def __init__(self, net: LoopedTransformer) -> None:
        super().__init__()
        self.net = net

    def forward(self, name: str, *given: Tensor | None) -> Any:
        """The named method's result."""
        return getattr(self.net, name)(*given)
