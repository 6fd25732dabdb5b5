"""What the fast engine handles, as a list: anything that is not on it is trained by the plain engine.

The engine computes the stock block with its own kernels and never calls the module. So a field that it does not know, a
value that it has not met, a subclass, a replaced part or a hook would have no effect: `supports` names the reason.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import nn

from looped import methods, tasks
from looped.methods import Method
from looped.model.block import Block
from looped.model.config import ModelConfig
from looped.model.looped import LoopedTransformer
from looped.tasks import Task
from looped.training.config import TrainConfig

# Every field that the engine handles. Those of `VALUES` with these values alone, the others with every value that the
# configuration itself accepts.
# fmt: off
MODEL_FIELDS = (
    "vocab", "layers", "heads", "width", "expansion", "injection", "bands", "sharpen", "positions", "max_positions",
    "embedding_std", "init_std", "initialisation", "norm", "activation", "precision", "running", "before",
    "before_bands", "before_running", "relay", "halt", "kind", "halting", "halt_bias",
)
TRAIN_FIELDS = (
    "task", "method", "recipe", "model", "seeds", "max_length", "steps", "interval", "lr", "start_length",
    "stage_steps", "batch", "lengths", "padding_loss", "family", "late_family", "extra", "noise", "hold", "warmup",
    "cooling", "betas", "weight_decay", "clip", "growth_clip", "ema", "late_ema", "backprop", "window", "products",
    "checkpointing", "loops", "supervision", "halt_cost", "halt_prior", "init", "keep_zeros", "block", "replicas",
    "hold_out", "refine", "stack",
)
# fmt: on
VALUES: dict[str, tuple[Any, ...]] = {
    "positions": ("none", "start", "rotary", "alibi", "learned", "randomised"),
    "initialisation": ("gpt2", "linear", "embedding"),
    "norm": ("layer", "none"),
    "activation": ("gelu", "relu"),
    "precision": ("float32", "float64"),
    "kind": ("decoder", "universal"),
    "halting": ("none", "act", "ponder", "eoq"),
    "lengths": ("stratified", "iid"),
    "padding_loss": ("batch", "own"),
    "window": ("last", "random"),
    "products": ("auto", "fp32", "tf32", "bf16"),
    "supervision": ("last", "best", "expected"),
    "block": ("",),
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # of a module


def supports(model_or_block: object, config: TrainConfig, cuda: bool = False) -> str | None:
    """Why the fast engine cannot train this, on the CPU or on CUDA; None if it can.

    `model_or_block` is None for the stock block, or a model, a block, or what makes a block (a class, a function).
    """
    reason = _fields(config, TrainConfig, TRAIN_FIELDS) or _fields(config.model, ModelConfig, MODEL_FIELDS)
    reason = reason or drawing(config, cuda)
    if reason or model_or_block is None or model_or_block is Block:
        return reason
    if not isinstance(model_or_block, nn.Module):
        return f"it computes the stock block, not {getattr(model_or_block, '__name__', model_or_block)}"
    if config.model.kind != "decoder":
        return f"it cannot tell what the parts of a module of model.kind={config.model.kind} are"
    stock: nn.Module = LoopedTransformer(config.model).to("meta")
    if not isinstance(model_or_block, LoopedTransformer):
        stock = stock.block  # type: ignore[assignment]
    return _parts(model_or_block, stock)


def drawing(config: TrainConfig, cuda: bool) -> str | None:
    """Why problems cannot be drawn in the engine's graph: it holds what is computed on the device alone."""
    task, method = tasks.get(config.task), methods.get(config.method)
    if type(method) is not Method:
        return f"it knows methods as data, not {type(method).__name__}"
    if cuda and type(task).sample is Task.sample:
        return f"the task {task.name} draws its problems in Python: give it a `sample`"
    return None


def _fields(config: object, kind: type, handled: tuple[str, ...]) -> str | None:
    """Why a configuration is not one that the engine knows."""
    for field in fields(config):  # type: ignore[arg-type]
        name, value = field.name, getattr(config, field.name)
        if name not in handled:
            return f"it does not know the field {name} of {type(config).__name__}"
        if name in VALUES and value not in VALUES[name]:
            return f"it does not know {name}={value!r}"
    if type(config) is not kind:
        return f"it knows {kind.__name__}, not its subclass {type(config).__name__}"
    return None


def _parts(module: nn.Module, stock: nn.Module) -> str | None:
    """Why a module is not the stock one: another part, another setting of a part, or a hook."""
    own, expected = dict(module.named_modules()), dict(stock.named_modules())
    for name in [*own, *(name for name in expected if name not in own)]:
        at = name or "the module itself"
        if name not in own or name not in expected:
            return f"{at} is {'missing' if name in expected else 'no part of the stock model'}"
        part, other = own[name], expected[name]
        if type(part) is not type(other):
            return f"{at} is a {type(part).__name__}, not a {type(other).__name__}"
        if part.extra_repr() != other.extra_repr():
            return f"{at} is ({part.extra_repr()}), not ({other.extra_repr()})"
        strange = sorted(vars(part).keys() - vars(other).keys())
        if strange or any(getattr(part, name, None) for name in HOOKS):
            return f"{at} has {f'an own {strange[0]}' if strange else 'a hook'}, which it would not call"
    return None
