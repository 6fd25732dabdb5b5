"""Any block, fast: the seeds of ordinary modules stacked by `torch.func`, on CUDA in one graph per curriculum stage.

Where the fused engine cannot compute a block, the plain engine calls its module for one seed after the other. This
engine calls it once for all seeds (`torch.vmap` over stacked weights), and on CUDA it records the whole gradient step,
so that launching costs nothing. The module is called as it is. What a vmap cannot carry (randomness, values that decide
the control flow) is found by a trial, which compares loss and gradient with the plain engine's.

Shapes: S seeds, B rows, L positions, D width, P numbers of a seed's trained weights.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from looped.batches import Batch
from looped.errors import InputError
from looped.fast import kernels
from looped.fast.engine import apart, few_seeds, record
from looped.fast.supports import drawing
from looped.model import halting
from looped.model.looped import BlockMaker, LoopedTransformer
from looped.training import curriculum
from looped.training.config import TrainConfig
from looped.training.curriculum import Stage
from looped.training.plain import GrowthLimit, PlainEngine, answer_loss, exact
from looped.training.progress import Readings
from looped.training.world import World

ROWS = 4  # of a trial


class ModuleEngine(PlainEngine):
    """Trains S seeds at once, whatever their block is."""

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        *,
        block: BlockMaker | None = None,
        world: World | None = None,
        recorded: bool | None = None,
    ) -> None:
        super().__init__(config, device, block=block, world=world)
        cuda = self.device.type == "cuda"
        # A graph holds neither noise, drawn for a number of positions that only the data tells, nor Python's own draws.
        fits = cuda and not config.noise and drawing(config, cuda) is None
        self.recorded = fits if recorded is None else recorded
        if cuda and kernels.available():
            self.adamw = kernels.adamw
        self._module = Part(copy.deepcopy(self.nets[0]).train())
        self._constant = {  # what a seed has beside its trained weights
            name: torch.stack([dict(_all(net))[name.removeprefix("net.")].detach() for net in self.nets])
            for name, value in _all(self._module)
            if not value.requires_grad
        }
        self._graph: torch.cuda.CUDAGraph | None = None
        self._readings: Readings | None = None

    def _carry_out(self, stage: Stage) -> Readings:
        """One gradient step of every seed, recorded at the first of a stage."""
        if not self.recorded:
            return super()._carry_out(stage)
        if self._graph is None:
            changing = [self.weights, *self.moments.tensors().values()]
            self._graph, self._readings = record(
                lambda: super(ModuleEngine, self)._carry_out(stage), changing, self.generators
            )
        self._graph.replay()
        assert self._readings is not None
        return self._readings

    def stage(self, longest: int) -> Stage:
        """The shapes of a stage, fixed where a graph is captured."""
        self._graph = None  # gives its memory back before the next stage takes its own
        return curriculum.stage(self.config, longest, self.device, fixed=self.recorded)

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
        trained, constant = self._weights()
        weights = {**trained, **constant}
        with self._autocast(), self._attention():
            x = self._call(weights, "embed", batch.tokens, None if at is None else at.expand_as(batch.tokens))
            final, cost = self._states(
                weights, x, batch, plan.active, noise, batch.steps - torch.stack(cut) if cut else None
            )
            logits = self._call(weights, "readout", final)
        loss = answer_loss(logits, batch.targets, batch.loss_mask)
        found = torch.autograd.grad((loss + cost).sum(), list(trained.values()), allow_unused=True)
        pairs = zip(trained.values(), found, strict=True)
        grad = [(torch.zeros_like(weight) if own is None else own).flatten(1) for weight, own in pairs]
        right = exact(logits.detach(), batch.targets, batch.loss_mask)
        return loss.detach(), torch.cat(grad, dim=1), right.float(), longest

    def _states(
        self,
        weights: dict[str, Tensor],
        x: Float[Tensor, "S B L D"],
        batch: Batch,
        active: tuple[int, ...],
        noise: list[Tensor],
        cut: Int[Tensor, "S B"] | None,
    ) -> tuple[Float[Tensor, "S B L D"], Float[Tensor, "S"]]:
        """Every row's state at its own T, and what halting costs.

        Rows are sorted by T, and those that are surely done leave the loop. No gradient flows through step `cut`.
        """
        ceiling = GrowthLimit(self.config.steady)
        cost = x.new_zeros(len(x))
        h: Tensor | None = None
        kept = x  # a row's state at T, once it is there
        ended: list[Tensor] = []
        for t, count in enumerate(active, 1):
            steps = batch.steps[:, :count]
            u = self._call(weights, "inject", None if h is None else h[:, :count], x[:, :count])
            if noise:
                u = u + noise[t - 1][:, :count]
            ceiling.watch(u, slice(count))
            h = self._call(weights, "step", u)
            if self.config.model.halting == "mark":
                cost = cost + self._halting_cost(weights, h, batch, t)
            kept = torch.where((steps == t)[..., None, None], h, kept.to(h.dtype))
            stays = active[t] if t < len(active) else 0
            ended.append(kept[:, stays:])
            kept = kept[:, :stays]
            if cut is not None:
                h = torch.where((cut[:, :count] >= t)[..., None, None], h.detach(), h)
        final = torch.cat(ended[::-1], dim=1)
        ceiling.end(final)
        return final, cost

    def _halting_cost(
        self, weights: dict[str, Tensor], h: Float[Tensor, "S b L D"], batch: Batch, step: int
    ) -> Float[Tensor, "S"]:
        """What the end-of-question halting head costs after a step."""
        count = h.shape[1]
        mark = halting.mark_of(batch.loss_mask[:, :count])[..., None, None].expand(
            *h.shape[:2], 1, h.shape[-1]
        )
        wants = self._call(weights, "halting_head", h.gather(2, mark)[:, :, 0])[..., 0]
        own = batch.steps[:, :count]
        each = halting.mark_cost(wants, own == step, own >= step)
        return each.sum(1) * (self.config.halt_cost / self.config.batch)

    def _call(self, weights: dict[str, Tensor], name: str, *given: Tensor | None) -> Tensor:
        """What a method of every seed's model makes of that seed's own part of what is given."""

        def of_one_seed(own: dict[str, Tensor], *values: Tensor | None) -> Any:
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

    def _weights(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights of all seeds by name [S, …]: those that are trained, as leaves, and what is not trained."""
        trained, at = {}, 0
        for name, weight in self._module.named_parameters():
            if weight.requires_grad:
                rows = self.weights[:, at : at + weight.numel()]
                trained[name] = rows.view(-1, *weight.shape).detach().requires_grad_()
                at += weight.numel()
        return trained, self._constant


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
