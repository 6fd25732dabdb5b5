"""The loop's forward and backward pass in fused kernels: sixteen launches for each layer and step.

The same mathematics as `backprop.py`, which is the definition; a test holds the two equal. What is different:

- what a backward needs is written, by the kernel that makes it, straight into one long buffer per quantity, layer after
  layer and in each step after step. The gradients of all layers' matrices of a kind are then one batched product over
  all steps, and those of their biases one sum;
- biases, norms and residual sums ride along in the kernel before or after them;
- the state between steps is the final norm's output before scale and shift, which join the injection: u ← n·γ + β + x.

Shapes: S seeds, B rows, D width; N positions of all rows, R = Σ over steps of active rows' positions, the length of
a layer's buffer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.batches import Batch
from looped.fast import kernels
from looped.fast.backprop import Noise, Outcome, ceiling, embed, read
from looped.fast.layer_ops import Layer
from looped.fast.packing import Packing
from looped.fast.stacked import Activations, Prepared, StackedTransformer, fused_block
from looped.model import halting
from looped.training.config import TrainConfig
from looped.training.curriculum import Plan


@dataclass(frozen=True)
class LayerTape(Activations):
    """What a layer's backward needs, all steps one after the other: what it computed, and the gradients that came back.

    A stack's has all layers one after the other before the seeds: [layers, S, R, …].
    """

    d_qkv: Tensor  # gradients of the four products' outputs
    d_out: Tensor
    d_pre: Tensor
    d_down: Tensor

    def computed(self, rows: slice) -> Activations:
        """Of one step."""
        return Activations(*(getattr(self, f.name)[:, rows] for f in fields(Activations)))


def suits(config: TrainConfig, plan: Plan | None, size: int, device: torch.device) -> bool:
    """Whether a stage can run this way: on CUDA, all gradients, rows that fit the attention kernel."""
    fits = size <= kernels.LONGEST and config.model.precision != "float64"
    whole = plan is not None and not (config.checkpointing or config.backprop or config.whole)
    return device.type == "cuda" and kernels.knows(config.model) and fits and whole


class FusedLoop:
    """One stage's buffers, and the pass that uses them."""

    ops: Any = kernels  # a test puts in what they mean

    def __init__(
        self, model: StackedTransformer, seeds: int, plan: Plan, packing: Packing, like: Tensor
    ) -> None:
        self.model, self.plan, self.packing = model, plan, packing
        self.rows = [packing.part(0, active) for active in plan.active]  # of each step
        counts = [packing.ends[active] for active in plan.active]
        self.ends = list(accumulate(counts))
        self.starts = [end - count for end, count in zip(self.ends, counts, strict=True)]
        d, inner, rows = model.config.width, model.config.width * model.config.expansion, self.ends[-1]

        def buffer(width: int) -> Tensor:
            return like.new_empty(model.config.layers, seeds, rows, width)

        def column() -> Tensor:
            return torch.empty(model.config.layers, seeds, rows, device=like.device, dtype=torch.float32)

        self.tape = LayerTape(
            buffer(d), column(), buffer(3 * d), buffer(d), buffer(d), column(), buffer(inner), buffer(inner),
            buffer(3 * d), buffer(d), buffer(inner), buffer(d),
        )  # fmt: skip
        stacks = [getattr(self.tape, f.name) for f in fields(LayerTape)]
        self.tapes = [LayerTape(*(stack[i] for stack in stacks)) for i in range(model.config.layers)]
        # The state after every step, before scale and shift: in fp32, like all that the residual stream carries.
        self.normal = torch.empty(seeds, rows, d, device=like.device, dtype=torch.float32)
        self.normal_rstd = torch.empty(seeds, rows, device=like.device, dtype=torch.float32)
        self.at = torch.tensor(self.starts, device=like.device)

    # --- the pass ------------------------------------------------------------------------------------------
    def backpropagate(
        self,
        weights: Prepared,
        batch: Batch,
        at: Int[Tensor, "B L"] | None = None,
        noise: Noise | None = None,
        growth_clip: float = 0.0,
        halt_cost: float = 0.0,
        counted: Int[Tensor, "S"] | None = None,
    ) -> tuple[Outcome, list[Tensor]]:
        """The loss of every row at its own T, and the fp32 gradients of `weights.tensors()`."""
        x = embed(self.model, weights, batch, self.packing, at)
        steps = self.packing.spread(batch.steps)
        with torch.no_grad():
            self._forward(weights, x.detach().flatten(1, 2), noise)
        final = self._final(steps).requires_grad_()
        state = torch.addcmul(weights.shift[:, 0], final, weights.scale[:, 0])
        state.retain_grad()  # a ceiling is told in gradients of the state itself
        outcome = read(self.model, weights, self.packing.wide(state), batch, self.packing, counted)
        assert final.grad is not None
        assert state.grad is not None
        halts = self._halting(weights, batch, halt_cost) if self.model.config.halting == "eoq" else None
        with torch.no_grad():
            highest = ceiling(state.grad, self.packing, growth_clip)
            into, scale_grad, shift_grad = self._backward(weights, final.grad, steps, highest, halts)
        torch.autograd.backward(x, into.view_as(x).to(x.dtype))
        return outcome, self._gradients(weights, scale_grad, shift_grad)

    def _final(self, steps: Int[Tensor, "S N"]) -> Float[Tensor, "S N D"]:
        """Every row's state at its own T."""
        s, n = steps.shape
        places = self.at[steps - 1] + torch.arange(n, device=steps.device)
        return self.normal[torch.arange(s, device=steps.device)[:, None], places]

    def _halting(self, weights: Prepared, batch: Batch, halt_cost: float) -> list[tuple[Tensor, Tensor]]:
        """For every step, where its rows' end-of-question tokens lie in its part of a buffer, and their gradients."""
        eoq = self.packing.starts(batch.steps.device) + halting.eoq_of(batch.loss_mask)
        at = [eoq[:, :n] for n in self.plan.active]
        places = torch.cat([start + here for start, here in zip(self.starts, at, strict=True)], dim=1)
        normal = self.normal.gather(1, self._wide(places)).requires_grad_()
        state = torch.addcmul(weights.shift[:, 0], normal, weights.scale[:, 0])
        step = torch.cat([torch.full_like(here[0], t) for t, here in enumerate(at, 1)])
        steps = torch.cat([batch.steps[:, :n] for n in self.plan.active], dim=1)
        cost = halting.eoq_cost(halting.logits(weights.head, state), steps == step, steps >= step)
        torch.autograd.backward(halt_cost * cost.sum())
        assert normal.grad is not None
        return list(zip(at, torch.split(normal.grad, list(self.plan.active), dim=1), strict=True))

    def _wide(self, places: Int[Tensor, "S R"]) -> Int[Tensor, "S R D"]:
        return places[..., None].expand(-1, -1, self.normal.shape[-1])

    # --- forward -------------------------------------------------------------------------------------------
    def _forward(self, weights: Prepared, x: Float[Tensor, "S N D"], noise: Noise | None) -> None:
        state: Tensor | None = None
        for start, end, packing in zip(self.starts, self.ends, self.rows, strict=True):
            rows = slice(start, end)
            given = x[:, : end - start] if state is None or self.model.config.injection else None
            if noise is not None:
                added = noise(end - start)
                given = added if given is None else given + added
            h, each = x.new_empty(x.shape[0], end - start, x.shape[2]), [t.computed(rows) for t in self.tapes]
            self.ops.inject_norm(
                None if state is None else state[:, : end - start], given, weights.scale, weights.shift,
                h, each[0].start, each[0].start_rstd,
            )  # fmt: skip
            state = self.normal[:, rows]
            rstd = self.normal_rstd[:, rows]
            fused_block(self.ops, self.model.config, weights.layers, packing, h, each, state, rstd)

    # --- backward ------------------------------------------------------------------------------------------
    def _backward(
        self,
        weights: Prepared,
        final: Float[Tensor, "S N D"],
        steps: Int[Tensor, "S N"],
        highest: Float[Tensor, "S B"] | None,
        halts: list[tuple[Tensor, Tensor]] | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the embedded input and of the final norm's scale and shift between steps."""
        into = torch.zeros_like(final, dtype=torch.float32)
        scale_sum = torch.zeros_like(into)
        shift_sum = into if self.model.config.injection else torch.zeros_like(into)
        shift_grad = into.new_zeros(into.shape[0], 1, into.shape[2])
        du: Tensor | None = None
        for t in range(len(self.starts), 0, -1):
            rows = slice(self.starts[t - 1], self.ends[t - 1])
            count, packing = rows.stop - rows.start, self.rows[t - 1]
            self.ops.boundary_backward(
                du, final, steps, t, weights.scale, self.normal[:, rows], self.normal_rstd[:, rows],
                scale_sum, self.tapes[-1].d_down[:, rows],
            )  # fmt: skip
            if halts is not None:
                self._add_halting(*halts[t - 1], rows)
            for i in range(len(self.tapes) - 1, 0, -1):
                grad, tape = self._layer_backward(i, weights.layers[i], rows, packing), self.tapes[i]
                out = self.tapes[i - 1].d_down[:, rows]
                self.ops.norm_backward(
                    tape.d_out[:, rows], grad, tape.start[:, rows], tape.start_rstd[:, rows], out
                )
            grad, tape = self._layer_backward(0, weights.layers[0], rows, packing), self.tapes[0]
            if t == 1:
                shift_grad = shift_sum.sum(1, keepdim=True)  # every step but the first starts from the shift
            du = torch.empty_like(grad)
            total = into if t == 1 else shift_sum
            self.ops.input_backward(
                tape.d_out[:, rows], grad, tape.start[:, rows], tape.start_rstd[:, rows], du, total[:, :count]
            )
            if highest is not None:
                self.ops.hold(packing, du, highest[:, : self.plan.active[t - 1]], total[:, :count])
        return into, scale_sum.sum(1, keepdim=True), shift_grad

    def _add_halting(self, places: Int[Tensor, "S R"], grad: Float[Tensor, "S R D"], rows: slice) -> None:
        """Adds what a step's halting loss asks of these states to the gradient before its final norm."""
        wide = self._wide(places)
        normal = self.normal[:, rows].gather(1, wide)
        through = through_norm(grad, normal, self.normal_rstd[:, rows].gather(1, places))
        before = self.tapes[-1].d_down[:, rows]
        before.scatter_add_(1, wide, through.to(before.dtype))

    def _layer_backward(self, i: int, layer: Layer, rows: slice, packing: Packing) -> Tensor:
        """From the gradient of the layer's output (in `d_down`) to that of its first norm's output."""
        tape, ops = self.tapes[i], self.ops
        grad = torch.bmm(tape.d_down[:, rows], layer.down.transpose(1, 2))
        ops.gelu_backward(grad, tape.pre[:, rows], layer.up_bias, tape.d_pre[:, rows])
        grad = torch.bmm(tape.d_pre[:, rows], layer.up.transpose(1, 2))
        ops.norm_backward(
            tape.d_down[:, rows], grad, tape.middle[:, rows], tape.middle_rstd[:, rows], tape.d_out[:, rows]
        )
        grad = torch.bmm(tape.d_out[:, rows], layer.out.transpose(1, 2))
        ops.attention_backward(
            self.model.config, packing, tape.qkv[:, rows], layer.qkv_bias, grad, tape.d_qkv[:, rows]
        )
        return torch.bmm(tape.d_qkv[:, rows], layer.qkv.transpose(1, 2))

    def _gradients(self, weights: Prepared, scale_grad: Tensor, shift_grad: Tensor) -> list[Tensor]:
        """fp32 gradients in the order of `Prepared.tensors`: one product for all layers' matrices of a kind."""
        layers: list[Tensor] = []
        tape = self.tape
        inputs = tape.start, tape.mixed, tape.middle, tape.inner
        outputs = tape.d_qkv, tape.d_out, tape.d_pre, tape.d_down
        for given, grad in zip(inputs, outputs, strict=True):
            product = _product(given.flatten(0, 1), grad.flatten(0, 1))
            matrix = product.view(*grad.shape[:2], *product.shape[1:])
            layers += [matrix, grad.sum(2, keepdim=True, dtype=torch.float32)]
        norm = weights.scale, weights.shift
        single = [_grad(w) for w in (weights.embed, *norm, weights.readout, weights.readout_bias)]
        single[1] += scale_grad.view_as(single[1])
        single[2] += shift_grad.view_as(single[2])
        last = [*weights.head, *([] if weights.table is None else [weights.table])]
        return single + layers + [_grad(w) for w in last]


def through_norm(grad: Tensor, normal: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of a norm's input, given that of its output."""
    g, n = grad.float(), normal.float()
    return (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True)) * rstd[..., None]


def _grad(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad.float()


def _product(given: Float[Tensor, "N R I"], grad: Float[Tensor, "N R O"]) -> Float[Tensor, "N I O"]:
    """Σ over rows of input ⊗ gradient, summed in fp32."""
    if given.dtype == torch.float32:
        return torch.bmm(given.transpose(1, 2), grad)
    if given.is_cuda:
        return torch.bmm(given.transpose(1, 2), grad, out_dtype=torch.float32)
    return torch.bmm(given.transpose(1, 2).float(), grad.float())
