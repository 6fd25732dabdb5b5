"""What the fast engine handles: every field is classified, and anything unknown is refused and trained plainly."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
import torch
from torch import nn

from looped.errors import InputError
from looped.fast.engine import Engine
from looped.fast.supports import MODEL_FIELDS, TRAIN_FIELDS, VALUES, supports
from looped.model import Block, LoopedTransformer, ModelConfig
from looped.model.attention import CausalAttention
from looped.model.block import FeedForward
from looped.model.config import CHOICES
from looped.training import recipes
from looped.training.config import TrainConfig
from looped.training.plain import PlainEngine
from looped.training.trainer import make_engine


def test_every_field_is_classified() -> None:
    assert {field.name for field in fields(TrainConfig)} == set(TRAIN_FIELDS)
    assert {field.name for field in fields(ModelConfig)} == set(MODEL_FIELDS)


def test_every_value_of_a_word_is_classified() -> None:
    for name, values in CHOICES.items():
        known = VALUES[name]
        assert known is not None
        assert set(known) == set(values)


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_recipes_are_handled(recipe: str) -> None:
    config = recipes.make("copy", "fop-loop-adaptive", recipe, (0,))
    assert supports(None, config) is None
    assert supports(Block, config) is None
    assert supports(LoopedTransformer(config.model), config) is None
    assert supports(Block(config.model), config) is None


@dataclass(frozen=True)
class NormedConfig(ModelConfig):
    """A configuration with an option that nobody but its own block knows."""

    qk_norm: bool = True


@dataclass(frozen=True)
class SameFields(ModelConfig):
    """A subclass that may mean anything by the same fields."""


class NormedAttention(CausalAttention):
    """Attention with normalised queries and keys."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return super().attend(nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1), v)


class NormedBlock(Block):
    """The stock block with such attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        for layer in self.layers:
            layer.attention = NormedAttention(config)


def test_unknown_fields_and_subclasses_are_refused(tiny) -> None:
    config = tiny()
    normed = replace(config, model=NormedConfig(**vars(config.model)))
    assert supports(None, normed) == "it does not know the field qk_norm of NormedConfig"
    same = replace(config, model=SameFields(**vars(config.model)))
    assert supports(None, same) == "it knows ModelConfig, not its subclass SameFields"


def test_foreign_parts_are_refused_with_a_reason(tiny) -> None:
    config = tiny()
    assert supports(NormedBlock, config) == "it computes the stock block, not NormedBlock"
    assert supports(NormedBlock(config.model), config) == "the module itself is a NormedBlock, not a Block"
    net = LoopedTransformer(config.model)
    net.block.layers[0].attention = NormedAttention(config.model)
    assert "block.layers.0.attention is a NormedAttention" in str(supports(net, config))
    net = LoopedTransformer(config.model)
    net.block.layers[0].mlp.activation = nn.SiLU()
    assert "activation is a SiLU, not a GELU" in str(supports(net, config))
    net = LoopedTransformer(config.model)
    net.norm = nn.LayerNorm(config.model.width, eps=1e-3)
    assert "eps=0.001" in str(supports(net, config))
    net = LoopedTransformer(config.model)
    net.block.register_forward_hook(lambda module, given, out: out * 2)
    assert "hook" in str(supports(net, config))
    net = LoopedTransformer(config.model)
    net.block.layers.append(FeedForward(config.model))
    assert "no part of the stock model" in str(supports(net, config))


@pytest.mark.parametrize("size", [20, 100])
def test_an_unknown_option_is_trained_plainly_and_counts(tiny, size: int, capsys) -> None:
    """Rows of 20 and of 100 positions, which the fast engine would compute in different ways."""
    length = size // 2 - 2
    base = tiny(max_length=length, start_length=length, batch=4, seeds=(0,), steps=2)
    assert PlainEngine(base).task.row_size(length) == size
    config = replace(base, model=NormedConfig(**vars(base.model)))
    chosen = make_engine(config, block=NormedBlock)
    assert isinstance(chosen, PlainEngine)
    assert "does not know the field qk_norm" in capsys.readouterr().err
    with pytest.raises(InputError, match="qk_norm"):
        make_engine(config, backend="fast", block=NormedBlock)
    plain = make_engine(base, backend="plain", block=NormedBlock)
    stock = make_engine(base)
    assert isinstance(stock, Engine)
    ours, theirs, other = chosen.step(), plain.step(), stock.step()
    assert torch.equal(ours.loss, theirs.loss)
    assert torch.equal(chosen.weights, plain.weights)
    assert not torch.allclose(ours.loss, other.loss.float(), atol=1e-6)  # the option is not ignored


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [20, 100])
def test_an_unknown_option_counts_on_cuda(tiny, size: int) -> None:
    length = size // 2 - 2
    config = tiny(max_length=length, start_length=length, batch=4, seeds=(0,), steps=2, products="fp32")
    on_cuda = make_engine(config, "cuda", block=NormedBlock)
    assert isinstance(on_cuda, PlainEngine)
    assert torch.isfinite(on_cuda.step().loss).all()


def test_an_unknown_backend_is_refused(tiny) -> None:
    with pytest.raises(InputError, match="unknown backend 'quickest'"):
        make_engine(tiny(), backend="quickest")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no engine can train this"):
        make_engine(tiny(supervision="best"), block=NormedBlock)
