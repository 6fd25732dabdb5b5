"""Before a run, one batch: does a faster way give the plain engine's loss and gradient? If not, the run is plain.

Shapes: S seeds, P numbers of a seed's trained weights.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor

from looped.errors import InputError
from looped.fast.engine import Engine
from looped.fast.modules import ModuleEngine
from looped.model.looped import BlockMaker, checkpoint_weights
from looped.model.weights import Layout
from looped.training import curriculum, plain
from looped.training.config import TrainConfig
from looped.training.plain import PlainEngine, point_into

SEEDS = 2  # that are compared
ROWS = 4  # of a trial of stacked modules
TOLERANCE = {
    torch.float32: 1e-3,
    torch.bfloat16: 5e-2,
}  # how far gradients may be apart, relative to their size


def of_fast(engine: Engine) -> str | None:
    """Why the fast engine is not to train a run, by the run's first batch; None if it gives what the plain one gives.

    A configuration that the plain engine does not know is not tried. The engine is as before afterwards.
    """
    config = engine.config
    if engine.world.size > 1 or config.model.precision != "float32" or plain.refuses(config) is not None:
        return None
    stage = engine.stage(curriculum.max_length(config, 0))
    slow = PlainEngine(_few_seeds(config), engine.device)
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
    return _apart(expected.cpu(), torch.stack(rows), loss, grad, engine.precision)


def of_modules(
    config: TrainConfig, device: torch.device | str = "cpu", block: BlockMaker | None = None
) -> str | None:
    """Why the seeds of a block cannot be stacked; None if they can and a trial gives the plain engine's gradient.

    The trial has two seeds, a few rows and the longest training problems.
    """
    if config.checkpointing:
        return "it does not know checkpointing"
    few = replace(_few_seeds(config), batch=min(config.batch, ROWS))
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
    return _apart(expected, plain_grad, loss, grad, slow.precision)


def _few_seeds(config: TrainConfig) -> TrainConfig:
    return replace(config, seeds=config.seeds[:SEEDS], lr=config.lr[:SEEDS])


def _apart(
    loss: Tensor, grad: Tensor, other_loss: Tensor, other: Tensor, precision: torch.dtype
) -> str | None:
    """Why two losses [S] and gradients [S, P] are not the same up to rounding."""
    tiny = torch.finfo(torch.float32).tiny
    apart = (grad - other).norm(dim=1) / grad.norm(dim=1).clamp_min(tiny)
    off = float(torch.maximum(apart, (loss - other_loss).abs() / loss.abs().clamp_min(tiny)).max())
    if off <= TOLERANCE[precision]:
        return None
    return f"its gradient is not the plain engine's (off by {off:.2g} of its size on a trial batch)"
