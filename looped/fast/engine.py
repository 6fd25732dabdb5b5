"""One gradient step: data, loss, gradient, update, for all seeds at once.

The engine owns what changes (weights, moments, generators) and hides how a step is carried out:

- on the CPU, eagerly, in fp32, or with products in bf16 if asked to;
- on CUDA, matrix products in bf16, and with stratified lengths the whole step (data included) captured in one CUDA
  graph per curriculum stage and replayed.

Both give the same numbers up to rounding. The engine knows nothing of files, displays or evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped import loops, methods, tasks
from looped.batches import Batch
from looped.errors import InputError
from looped.fast import build, folding, fused, graphs, kernels, reference, trajectory
from looped.fast.backprop import Noise, Outcome, backpropagate
from looped.fast.folding import GradientStore
from looped.fast.fused import FusedLoop
from looped.fast.packing import Packing
from looped.fast.stacked import Prepared, StackedTransformer
from looped.model import positions
from looped.training import curriculum, optimizer, start
from looped.training.config import TrainConfig, product_dtype
from looped.training.curriculum import Plan, Stage
from looped.training.optimizer import Moments
from looped.training.progress import Readings
from looped.training.world import World


@dataclass(frozen=True)
class PackedStage(Stage):
    """A stage, and which positions of its rows are computed."""

    packing: Packing


class Engine:
    """Trains S seeds side by side, a gradient step at a time."""

    def __init__(
        self,
        config: TrainConfig,
        device: torch.device | str = "cpu",
        *,
        precision: torch.dtype | None = None,
        graphs: bool | None = None,
        fused: bool = True,
        world: World | None = None,
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self.world = world or World()
        if config.batch < self.world.size:
            raise InputError(f"{self.world.size} processes cannot share a batch of {config.batch}")
        cuda = self.device.type == "cuda"
        self.precision = precision or product_dtype(config, cuda)
        if cuda:  # for the whole process, as torch has it
            torch.backends.cuda.matmul.allow_tf32 = config.products == "tf32"
        self.graphs = cuda and self.world.size == 1 if graphs is None else graphs
        self.fused = fused  # where it can be taken; never is for comparing with it
        self.task, self.method = tasks.get(config.task), methods.get(config.method)
        self.law = loops.parse(config.loops)
        self.store = GradientStore(accumulate=self.precision.itemsize < 4)
        self.model = build(config.model, self.store.linear)
        self.weights: Float[Tensor, "S P"] = start.weights(
            config.init, config.task, config.model, list(config.seeds), self.device
        )
        self._free = (
            (self.weights != 0).float() if config.keep_zeros else None
        )  # 0 where a weight may not move
        self.moments = Moments.of(self.weights, config.ema)
        self.generators = [torch.Generator(self.device).manual_seed(seed) for seed in config.seeds]
        self.done = 0  # gradient steps taken
        self._hyper: Float[Tensor, "S 3"] = torch.zeros(len(config.seeds), 3, device=self.device)
        self._stage: PackedStage | None = None
        self._fused: FusedLoop | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._readings: Readings | None = None

    # --- the public step -----------------------------------------------------------------------------------
    def step(self) -> Readings:
        """Takes one gradient step. The readings live on the device and change with the next step."""
        longest = curriculum.max_length(self.config, self.done)
        if self._stage is None or self._stage.longest != longest:
            self._graph = self._fused = None  # gives their memory back before the next stage takes its own
            self._stage = self.stage(longest)
        if self.moments.average is not None and self.done == self._average_from:
            self.moments.average.copy_(self.weights)
        share = curriculum.lr_share(self.config, self.done)
        self._hyper.copy_(torch.tensor(optimizer.hyper(self.config, share, self.done)))
        if self.graphs and self._stage.plan is not None:
            if self._graph is None:
                stage, changing = self._stage, [self.weights, *self.moments.tensors().values()]
                self._graph, self._readings = graphs.record(
                    lambda: self._body(stage), changing, self.generators
                )
            self._graph.replay()
        else:
            self._readings = self._body(self._stage)
        self.done += 1
        assert self._readings is not None
        return self._readings

    @property
    def evaluated_weights(self) -> Float[Tensor, "S P"]:
        """The weights that count: their average where the run keeps one and it has begun."""
        if self.moments.average is None or self.done <= self._average_from:
            return self.weights
        return self.moments.average

    def evaluated(self) -> tuple[StackedTransformer, Prepared]:
        """The model with the weights that count, to be measured."""
        model = build(self.config.model)  # not the engine's own, which gathers gradients
        with torch.no_grad():
            return model, model.prepare(self.evaluated_weights, self.precision)

    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """A seed's weights that count, as its checkpoint holds them."""
        return self.model.layout.to_dict(self.evaluated_weights[i])

    def buffers(self) -> dict[str, Tensor]:
        """Nothing changes beside weights and moments."""
        return {}

    @property
    def _average_from(self) -> int:
        """The gradient step at which the average starts from the weights."""
        return self.config.curriculum_end if self.config.late_ema else 0

    # --- one stage -----------------------------------------------------------------------------------------
    def stage(self, longest: int) -> PackedStage:
        """The shapes of the stage whose maximum length is `longest`."""
        stage = curriculum.stage(self.config, longest, self.device, self.world.rows, self.graphs)
        return PackedStage(**vars(stage), packing=Packing(curriculum.computed_sizes(self.config, longest)))

    def draw(self, stage: Stage) -> tuple[Batch, Bool[Tensor, "S B"]]:
        """A fresh batch for every seed, rows sorted by T, and which rows have the maximum length."""
        return curriculum.draw(self.config, stage, self.generators)

    # --- the body of a step --------------------------------------------------------------------------------
    def _body(self, stage: PackedStage) -> Readings:
        loss, grad, right, longest = self.gradients(stage)
        ops: Any = kernels if self.weights.is_cuda and kernels.available() else reference
        norm = optimizer.update(self.config, self.weights, grad, self.moments, self._hyper, ops.adamw)
        accuracy_longest = (right * longest).sum(1) / longest.sum(1)
        return Readings(loss, norm, right.mean(1), accuracy_longest)

    def gradients(self, stage: PackedStage) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [S], gradient [S, P], rows answered exactly [S, B], rows of the maximum length [S, B]."""
        batch, longest = self.draw(stage)
        plan = stage.plan
        if plan is None:
            steps = batch.steps[:, self.world.rows]
            plan = curriculum.plan(steps.amin(0).tolist(), steps.amax(0).tolist())
        folded, back = folding.fold(self.model, self.weights, self.precision)
        noise = self._noise(stage.packing)
        outcome, grads = self._folded_gradients(folded, batch, plan, stage, noise)
        self._keep_pace(stage, batch, plan, noise)
        grad, loss = self.world.sum(back(grads)), self.world.sum(outcome.loss)
        grad = grad if self._free is None else grad * self._free
        return loss, grad, self.world.join(outcome.exact, self.config.batch).float(), longest

    def _folded_gradients(
        self, folded: Prepared, batch: Batch, plan: Plan, stage: PackedStage, noise: Noise | None
    ) -> tuple[Outcome, list[Tensor]]:
        """The loss and the gradients of the folded weights, the fused way where it can be taken."""
        weights = self.store.open(folded, self.precision)
        size = batch.tokens.shape[-1]
        at = self._places(size)
        mine, counted = batch.part(self.world.rows), batch.loss_mask.sum((1, 2))
        halt_cost = self.config.halt_cost / self.config.batch  # of one row
        if self.config.whole:
            outcome = trajectory.backpropagate(
                self.config, self.model, weights, mine, stage.most, at=at, noise=noise, counted=counted
            )
            return outcome, self.store.close(weights)
        packing = Packing(stage.packing.sizes[self.world.rows])
        if self.fused and fused.suits(self.config, plan, size, self.device):
            if self._fused is None or self._fused.plan != plan:
                self._fused = FusedLoop(
                    self.model, len(self.config.seeds), plan, packing, weights.layers[0].qkv
                )
            return self._fused.backpropagate(weights, mine, at, noise, self.config.steady, halt_cost, counted)
        depth, most = self._depth(batch.steps), self.config.backprop
        outcome = backpropagate(
            self.model, weights, mine, plan, packing,
            at=at, depth=depth, most=most, checkpointing=self.config.checkpointing, noise=noise,
            steady=self.config.steady, halt_cost=halt_cost, counted=counted,
        )  # fmt: skip
        return outcome, self.store.close(weights)

    def _depth(self, steps: Int[Tensor, "S B"]) -> Int[Tensor, "S B"] | None:
        """How many steps back each row's gradient flows, if it is cut."""
        if not self.config.backprop:
            return None
        if self.config.window == "last":
            return torch.full_like(steps[:, self.world.rows], self.config.backprop)
        size = steps.shape[1:]
        rows = [
            torch.randint(1, self.config.backprop + 1, size, device=self.device, generator=g)
            for g in self.generators
        ]
        return torch.stack(rows)[:, self.world.rows]

    def _noise(self, packing: Packing) -> Noise | None:
        """What is added to the states, where the run asks for it: drawn for all rows, from each seed's own source.

        Each row has its own level, between none and the configured one: a step that has only ever seen noisy states is
        lost on a clean one.
        """
        if not self.config.noise:
            return None
        rows = [torch.rand(self.config.batch, device=self.device, generator=g) for g in self.generators]
        level = self.config.noise * packing.spread(torch.stack(rows))[..., None]
        drawn = torch.empty(
            *level.shape[:2], self.config.model.width, device=self.device
        )  # for each step anew
        mine = None if self.world.size == 1 else packing.of_rows(self.world.rows, self.device)

        def draw(count: int) -> Tensor:
            for of_seed, generator in zip(drawn, self.generators, strict=True):
                of_seed.normal_(generator=generator)
            here = slice(count) if mine is None else mine[:count]
            return drawn[:, here] * level[:, here]

        return draw

    def _keep_pace(self, stage: PackedStage, batch: Batch, plan: Plan, noise: Noise | None) -> None:
        """Draws what other processes draw whose rows loop more often, so that all generators stay together."""
        if noise is None or self.world.size == 1 or self.config.whole:
            return
        most = stage.strata.upper[0] if stage.strata is not None else int(batch.steps.max())
        for _ in range(most - len(plan.active)):
            noise(0)

    def _places(self, size: int) -> Int[Tensor, "B L"] | None:
        """Randomised positions, where the model has them; shared by the seeds."""
        if self.config.model.positions != "randomised":
            return None
        at = positions.places(self.config.model, self.config.batch, size, self.device, self.generators[0])
        return at[self.world.rows]
