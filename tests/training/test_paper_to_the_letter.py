"""Recipe `paper` against an independent model of the authors' code, built here from transformers' GPT-2.

The paper and its released code: one-hot tokens through a Linear with a bias (unique set: an Embedding), GPT-2's
pre-norm block without positions, its final norm at the end of every loop, the state 0 at first and the input added
before every loop, a Linear read-out; cross entropy over every position from the end-of-question token on, each row at
its own T; gradient norm clipped at 1; AdamW of torch with lr 1e-4.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from looped import tasks
from looped.batches import Batch
from looped.fast.engine import Engine
from looped.model.weights import Layout
from looped.training import curriculum
from looped.training.recipes import make

transformers = pytest.importorskip("transformers")
METHODS = ("fop-loop-adaptive", "fop-loop-adaptive-wo")
NAMES = {
    "norm1.scale": "ln_1.weight", "norm1.shift": "ln_1.bias", "qkv": "attn.c_attn", "out": "attn.c_proj",
    "norm2.scale": "ln_2.weight", "norm2.shift": "ln_2.bias", "up": "mlp.c_fc", "down": "mlp.c_proj",
}  # fmt: skip


class Authors(nn.Module):
    """The described model, all steps for all rows; nothing of ours but the sizes."""

    def __init__(self, vocab: int, layers: int, heads: int, embedding: bool, injection: bool) -> None:
        super().__init__()
        self.vocab, self.injection = vocab, injection
        self.read_in: nn.Module = nn.Embedding(vocab, 256) if embedding else nn.Linear(vocab, 256)
        shape = transformers.GPT2Config(
            vocab_size=1, n_positions=256, n_embd=256, n_layer=layers, n_head=heads, use_cache=False,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        self.block = transformers.GPT2Model(shape)
        self.block.wpe.weight.data.zero_()
        self.block.wpe.weight.requires_grad_(False)
        self.block.wte.weight.requires_grad_(False)
        self.read_out = nn.Linear(256, vocab)

    def forward(self, tokens: Tensor, steps: int) -> list[Tensor]:
        """The scores after every step."""
        table = isinstance(self.read_in, nn.Embedding)
        x = self.read_in(tokens if table else F.one_hot(tokens, self.vocab).float())
        h, scores = torch.zeros_like(x), []
        for step in range(steps):
            u = h + x if self.injection or step == 0 else h
            h = self.block(inputs_embeds=u).last_hidden_state
            scores.append(self.read_out(h))
        return scores

    def take(self, weights: dict[str, Tensor]) -> None:
        """The weights of one of our seeds; every one of them, and no other is left as it was."""
        own = {name: p for name, p in self.named_parameters() if p.requires_grad}
        for name, value in weights.items():
            target = own.pop(their_name(name, isinstance(self.read_in, nn.Embedding)))
            target.data.copy_(value if target.shape == value.shape else value.T)
        assert not own

    def seen(self, name: str) -> Tensor:
        """A gradient or weight holder by our name."""
        return dict(self.named_parameters())[their_name(name, isinstance(self.read_in, nn.Embedding))]


def their_name(name: str, table: bool) -> str:
    """`layers.0.qkv.weight` is `block.h.0.attn.c_attn.weight` there."""
    single = {
        "embed": "read_in.weight", "embed.bias": "read_in.bias", "norm.scale": "block.ln_f.weight",
        "norm.shift": "block.ln_f.bias", "readout.weight": "read_out.weight", "readout.bias": "read_out.bias",
    }  # fmt: skip
    if name in single:
        return single[name]
    _, i, rest = name.split(".", 2)
    if rest in NAMES:
        return f"block.h.{i}.{NAMES[rest]}"
    matrix, kind = rest.split(".")
    return f"block.h.{i}.{NAMES[matrix]}.{kind}"


def given(task: str, method: str) -> tuple[Engine, Authors, Batch]:
    """The recipe at a stage of four symbols, eight rows, and both models with the same weights."""
    config = replace(make(task, method, "paper", (3,)), batch=8, max_length=4, start_length=4)
    engine = Engine(config)
    batch, _ = engine.draw(engine.stage(4))
    engine.generators[0].manual_seed(3)  # the same rows again for the step itself
    paper = tasks.get(task).paper
    theirs = Authors(config.model.vocab, paper.layers, paper.heads, paper.embedding, config.model.injection)
    theirs.take(engine.model.layout.to_dict(engine.weights[0]))
    return engine, theirs, batch


def their_loss(model: Authors, batch: Batch) -> Tensor:
    """Every position that counts, of each row after its own T steps."""
    tokens, targets, mask, steps = batch.tokens[0], batch.targets[0], batch.loss_mask[0], batch.steps[0]
    scores = model(tokens, int(steps.max()))
    each = [F.cross_entropy(scores[t - 1][i][mask[i]], targets[i][mask[i]], reduction="sum")
            for i, t in enumerate(steps.tolist())]  # fmt: skip
    return torch.stack(each).sum() / mask.sum()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_scores_after_every_step(task: str, method: str) -> None:
    engine, theirs, batch = given(task, method)
    weights = engine.model.prepare(engine.weights)
    states = engine.model.unroll(weights, batch.tokens, 5)
    with torch.no_grad():
        for ours, right in zip(states, theirs(batch.tokens[0], 5), strict=True):
            torch.testing.assert_close(engine.model.readout(weights, ours)[0], right, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", tasks.TASKS)
def test_loss_gradient_and_update(task: str, method: str) -> None:
    engine, theirs, batch = given(task, method)
    loss = their_loss(theirs, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [p for p in theirs.parameters() if p.requires_grad]
    norm = torch.nn.utils.clip_grad_norm_(trained, 1.0)
    before = engine.weights.clone()
    torch.optim.AdamW(trained, lr=1e-4).step()
    readings = engine.step()
    assert readings.loss[0].item() == pytest.approx(loss.item(), rel=1e-5)
    assert readings.norm[0].item() == pytest.approx(
        norm.item(), rel=5e-4
    )  # up to 28: fp32 through 8 steps of 4 layers
    # AdamW's first moment after one step is a tenth of the clipped gradient.
    layout = engine.model.layout
    moments, after = layout.to_dict(engine.moments.mean[0]), layout.to_dict(engine.weights[0])
    start = layout.to_dict(before[0])
    for name in layout.slots:
        right = theirs.seen(name)
        assert right.grad is not None
        grad = right.grad if right.grad.shape == moments[name].shape else right.grad.T
        assert (10 * moments[name] - grad).norm() <= 1e-3 * grad.norm() + 1e-7
        value = right.data if right.shape == after[name].shape else right.data.T
        # The first update has size lr whatever the gradient, so its sign is all that rounding can change.
        sure = grad.abs() > 1e-3 * grad.abs().max()
        torch.testing.assert_close(after[name][sure], value[sure], rtol=0, atol=2e-6)
        assert (after[name] - start[name]).abs().max() <= 1.1e-4


@pytest.mark.parametrize("method", ["fop-loop-adaptive", "ntp", "fop", "fop-pause", "ntp-loop"])
@pytest.mark.parametrize("recipe", ["paper", "fast"])
@pytest.mark.parametrize("task", ["copy", "unique_set"])
def test_how_weights_start(task: str, recipe: str, method: str) -> None:
    config = make(task, method, recipe, (0, 1, 2))
    layout = Layout(config.model)
    one = [layout.to_dict(row) for row in layout.initialise([0, 1, 2])]
    assert not torch.equal(one[0]["readout.bias"], one[1]["readout.bias"])

    def spread(name: str) -> Tensor:
        return torch.cat([weights[name].flatten() for weights in one])

    def uniform(name: str, bound: float) -> None:
        values = spread(name)
        assert values.abs().max() <= bound * (1 + 1e-6)
        assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.2)

    embedded = spread("embed")
    if task == "unique_set":
        assert config.model.vocab == 60
        assert "embed.bias" not in one[0]
        assert embedded.std().item() == pytest.approx(1.0, rel=0.02)
        assert embedded.abs().max() > 2  # normal, not uniform
    else:
        assert config.model.vocab == 6
        uniform("embed", 1 / math.sqrt(6))
        uniform("embed.bias", 1 / math.sqrt(6))
        tokens = one[0]["embed"] + one[0]["embed.bias"]
        assert tokens.std().item() == pytest.approx(0.33, abs=0.02)
    uniform("readout.weight", 1 / 16)
    uniform("readout.bias", 1 / 16)
    assert spread("layers.0.qkv.weight").std().item() == pytest.approx(0.02, rel=0.02)
    residual = 0.02 / math.sqrt(2 * config.model.layers)
    assert spread("layers.0.down.weight").std().item() == pytest.approx(residual, rel=0.02)
    for name in ("layers.0.qkv.bias", "layers.0.out.bias", "norm.shift"):
        assert not spread(name).any()
    assert bool((spread("norm.scale") == 1).all())


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_learning_rate_falls_one_interval_after_the_curriculum(task: str) -> None:
    config, paper = make(task, "fop-loop-adaptive", "paper", (0,)), tasks.get(task).paper
    falls = (paper.max_length + 1) * paper.interval
    assert curriculum.max_length(config, falls - paper.interval - 1) == paper.max_length
    assert curriculum.lr_share(config, falls) == 1.0
    assert curriculum.lr_share(config, falls + 1) < 1.0
    assert curriculum.lr_share(config, config.steps - 1) < 1e-6


def test_an_average_starts_when_the_learning_rate_falls() -> None:
    config = make("parity", "fop-loop-adaptive", "paper", (0, 1))
    assert (config.ema, config.late_ema) == (0.9999, True)
    small: dict[str, Any] = {"max_length": 2, "interval": 2, "hold": 1, "steps": 9, "batch": 4, "ema": 0.5}
    engine = Engine(replace(config, **small, model=replace(config.model, width=64, heads=4)))
    expected: Tensor | None = None
    for step in range(9):
        if step == 5:  # 2 lengths of 2 steps, and 1 more
            expected = engine.weights.clone()
        engine.step()
        if expected is None:
            assert torch.equal(engine.evaluated_weights, engine.weights)
        else:
            expected = expected.lerp(engine.weights, 0.5)
            torch.testing.assert_close(engine.evaluated_weights, expected)
    assert not torch.equal(engine.evaluated_weights, engine.weights)
