"""The fast engine: a gradient step of the stock block for all seeds at once, held to the plain engine by a trial.

On the CPU it is carried out eagerly, in fp32, or with products in bf16 if asked to. On CUDA products are in bf16, and
with stratified lengths the whole step (data included) is captured in one CUDA graph per curriculum stage.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from looped.batches import Batch
from looped.errors import InputError
from looped.fast import build, folding, fused, kernels
from looped.fast.backprop import Noise, Outcome, backpropagate
from looped.fast.folding import GradientStore
from looped.fast.fused import FusedLoop
from looped.fast.packing import Packing
from looped.fast.stacked import Prepared, StackedTransformer
from looped.fast.trajectory import Trajectory
from looped.model.looped import checkpoint_weights
from looped.model.weights import Layout
from looped.training import curriculum, plain, recipes
from looped.training.config import TrainConfig
from looped.training.curriculum import Plan, Stage
from looped.training.engine import TrainingEngine, World
from looped.training.optimizer import Moments
from looped.training.plain import PlainEngine, point_into
from looped.training.progress import Readings

SEEDS = 2  # that a trial compares
# how far gradients may be apart in a trial, relative to their size
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class Recording(TrainingEngine):
    """An engine whose gradient step can be captured in a CUDA graph, at the first of a stage, and replayed."""

    _graph: torch.cuda.CUDAGraph | None = None
    _readings: Readings  # of the captured step, filled by each replay

    def stage(self, longest: int) -> Stage:
        """The shapes of the stage whose maximum length is `longest`."""
        self._graph = None  # gives its memory back before the next stage takes its own
        return super().stage(longest)

    def _carry_out(self, stage: Stage) -> Readings:
        """One gradient step, recorded at the first of a stage where that can be done."""
        if not (self.graphs and stage.plan is not None):
            return super()._carry_out(stage)
        if self._graph is None:
            self._record(stage)
        assert self._graph is not None
        self._graph.replay()
        return self._readings

    def _record(self, stage: Stage) -> None:
        """Capture the step; nothing has changed when this returns."""
        changing = [self.weights, *self.moments.tensors().values()]
        kept = [tensor.clone() for tensor in changing]
        states = [generator.get_state() for generator in self.generators]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            super()._carry_out(stage)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, old in zip(changing, kept, strict=True):
            tensor.copy_(old)
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            self._readings = super()._carry_out(stage)
        self._graph = graph


class Engine(Recording):
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
        super().__init__(config, device, precision, world)
        if config.batch < self.world.size:
            raise InputError(f"{self.world.size} processes cannot share a batch of {config.batch}")
        cuda = self.device.type == "cuda"
        self.graphs = cuda and self.world.size == 1 if graphs is None else graphs
        self.fused = fused  # where it can be taken; never is for comparing with it
        self.store = GradientStore(accumulate=self.precision.itemsize < 4)
        self.model = build(config.model, self.store.linear)
        self.weights = recipes.first_weights(config).to(self.device)
        self._free = (self.weights != 0).float() if config.keep_zeros else None  # 0: a weight may not move
        self.moments = Moments.of(self.weights, config.ema)
        if self.weights.is_cuda and kernels.available():
            self.adamw = kernels.adamw
        self._fused: FusedLoop | None = None

    def stage(self, longest: int) -> Stage:
        """The shapes of the stage whose maximum length is `longest`."""
        self._fused = None  # as the graph
        return super().stage(longest)

    def evaluated(self) -> tuple[StackedTransformer, Prepared]:
        """The model with the weights that count, to be measured."""
        model = build(self.config.model)  # not the engine's own, which gathers gradients
        with torch.no_grad():
            return model, model.prepare(self.evaluated_weights, self.precision)

    def seed_weights(self, i: int) -> dict[str, Tensor]:
        """A seed's weights that count, as its checkpoint holds them."""
        return self.model.layout.to_dict(self.evaluated_weights[i])

    def take_weights(self, i: int, weights: Mapping[str, Tensor]) -> None:
        """Put such weights in the place of a seed's."""
        self.weights[i].copy_(self.model.layout.from_dict(weights))

    # --- the body of a step --------------------------------------------------------------------------------
    def gradients(self, stage: Stage) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Loss [S], gradient [S, P], rows answered exactly [S, B], rows of the maximum length [S, B]."""
        batch, longest = self.draw(stage)
        plan = stage.plan
        if plan is None:
            steps = batch.steps[:, self.world.rows]
            plan = curriculum.plan(steps.amin(0).tolist(), steps.amax(0).tolist())
        folded, back = folding.fold(self.model, self.weights, self.precision)
        noise = self._noise(Packing(stage.computed))
        outcome, grads = self._folded_gradients(folded, batch, plan, stage, noise)
        self._keep_pace(stage, batch, plan, noise)
        grad, loss = self.world.sum(back(grads)), self.world.sum(outcome.loss)
        grad = grad if self._free is None else grad * self._free
        return loss, grad, self.world.join(outcome.exact, self.config.batch).float(), longest

    def _folded_gradients(
        self, folded: Prepared, batch: Batch, plan: Plan, stage: Stage, noise: Noise | None
    ) -> tuple[Outcome, list[Tensor]]:
        """The loss and the gradients of the folded weights, the fused way where it can be taken."""
        weights = self.store.open(folded, self.precision)
        size = batch.tokens.shape[-1]
        at = self._places(size)
        at = None if at is None else at[self.world.rows]
        mine, counted = batch.part(self.world.rows), batch.loss_mask.sum((1, 2))
        halt_cost = self.config.halt_cost / self.config.batch  # of one row
        if self.config.whole:
            rows = Trajectory(
                self.config, self.model, weights, mine, stage.most, at=at, noise=noise, counted=counted
            )
            return rows.backpropagate(), self.store.close(weights)
        packing = Packing(stage.computed[self.world.rows])
        if self.fused and fused.suits(self.config, plan, size, self.device):
            if self._fused is None or self._fused.plan != plan:
                self._fused = FusedLoop(
                    self.model, len(self.config.seeds), plan, packing, weights.layers[0].qkv
                )
            return self._fused.backpropagate(
                weights, mine, at, noise, self.config.growth_clip, halt_cost, counted
            )
        cut = [depth for depth in map(self._depth, self.generators) if depth is not None]
        depth, most = torch.stack(cut)[:, self.world.rows] if cut else None, self.config.backprop
        outcome = backpropagate(
            self.model, weights, mine, plan, packing,
            at=at, depth=depth, most=most, checkpointing=self.config.checkpointing, noise=noise,
            growth_clip=self.config.growth_clip, halt_cost=halt_cost, counted=counted,
        )  # fmt: skip
        return outcome, self.store.close(weights)

    def _noise(self, packing: Packing) -> Noise | None:
        """What is added to the states, where the run asks for it: drawn for all rows, from each seed's own source.

        Each row has its own level, between none and the configured one: a step that has only ever seen noisy states is
        lost on a clean one.
        """
        if not self.config.noise:
            return None
        rows = [torch.rand(self.config.batch, device=self.device, generator=g) for g in self.generators]
        level = self.config.noise * packing.spread(torch.stack(rows))[..., None]
        drawn = level.new_empty(*level.shape[:2], self.config.model.width)  # for each step anew
        mine = None if self.world.size == 1 else packing.of_rows(self.world.rows, self.device)

        def draw(count: int) -> Tensor:
            for of_seed, generator in zip(drawn, self.generators, strict=True):
                of_seed.normal_(generator=generator)
            here = slice(count) if mine is None else mine[:count]
            return drawn[:, here] * level[:, here]

        return draw

    def _keep_pace(self, stage: Stage, batch: Batch, plan: Plan, noise: Noise | None) -> None:
        """Draws what other processes draw whose rows loop more often, so that all generators stay together."""
        if noise is None or self.world.size == 1 or self.config.whole:
            return
        most = stage.strata.upper[0] if stage.strata is not None else int(batch.steps.max())
        for _ in range(most - len(plan.active)):
            noise(0)


# --- before a run, one batch: does a faster way give the plain engine's loss and gradient? --------------------


def trial(engine: Engine) -> str | None:
    """Why the fast engine is not to train a run, by the run's first batch; None if it gives what the plain one gives.

    A configuration that the plain engine does not know is not tried. The engine is as before afterwards.
    """
    config = engine.config
    if engine.world.size > 1 or config.model.precision != "float32" or plain.refuses(config) is not None:
        return None
    stage = engine.stage(curriculum.max_length(config, 0))
    slow = PlainEngine(few_seeds(config), engine.device)
    expected, plain_grad, *_ = slow.gradients(stage)
    layout = Layout(config.model)
    rows = []
    for net, own in zip(slow.nets, plain_grad, strict=True):
        holder = copy.deepcopy(net)
        point_into(holder, own)
        rows.append(layout.from_dict(checkpoint_weights(holder)))
    states = [generator.get_state() for generator in engine.generators]
    loss, grad, *_ = engine.gradients(stage)
    for generator, state in zip(engine.generators, states, strict=True):
        generator.set_state(state)
    loss, grad = loss[:SEEDS].float().cpu(), grad[:SEEDS].float().cpu()
    return apart(expected.cpu(), torch.stack(rows), loss, grad, engine.precision)


def few_seeds(config: TrainConfig) -> TrainConfig:
    """The run of a trial."""
    return replace(config, seeds=config.seeds[:SEEDS], lr=config.lr[:SEEDS])


def apart(
    loss: Tensor, grad: Tensor, other_loss: Tensor, other: Tensor, precision: torch.dtype
) -> str | None:
    """Why two losses [S] and gradients [S, P] are not the same up to rounding."""
    tiny = torch.finfo(torch.float32).tiny
    apart = (grad - other).norm(dim=1) / grad.norm(dim=1).clamp_min(tiny)
    off = float(torch.maximum(apart, (loss - other_loss).abs() / loss.abs().clamp_min(tiny)).max())
    if off <= TOLERANCE[precision]:
        return None
    return f"its gradient is not the plain engine's (off by {off:.2g} of its size on a trial batch)"
