"""The looped Transformer: against a GPT-2 of torch's own modules, over seeds, causal, injected or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from looped.fast import StackedTransformer, layer_ops

MakeModel = Callable[..., tuple[StackedTransformer, Tensor]]

KINDS = [
    {},
    {"injection": False},
    {"bands": (2,) * 4},
    {"bands": (2, 3)},
    {"positions": "rotary"},
    {"positions": "alibi"},
    {"positions": "learned", "max_positions": 40},
    {"positions": "randomised", "max_positions": 40},
    {"positions": "start"},
]


def some_tokens(model: StackedTransformer, seeds: int, rows: int = 3, size: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, model.config.vocab, (seeds, rows, size), generator=generator)


class Reference(nn.Module):
    """GPT-2's pre-norm decoder as its authors draw it, from torch's own parts; causal, without positions."""

    def __init__(self, model: StackedTransformer, row: Tensor) -> None:
        super().__init__()
        config, given = model.config, model.layout.to_dict(row)
        d = config.width
        self.embed = nn.Embedding(config.vocab, d)
        self.embed.weight.data = given["embed"]
        self.layers = nn.ModuleList()
        for i in range(config.layers):
            attend = nn.MultiheadAttention(d, config.heads, batch_first=True)
            attend.in_proj_weight.data = given[f"layers.{i}.qkv.weight"].T.contiguous()
            attend.in_proj_bias.data = given[f"layers.{i}.qkv.bias"]
            self.fill(attend.out_proj, given, f"layers.{i}.out")
            up, down = nn.Linear(d, config.expansion * d), nn.Linear(config.expansion * d, d)
            self.fill(up, given, f"layers.{i}.up")
            self.fill(down, given, f"layers.{i}.down")
            norms = [self.norm(given, f"layers.{i}.norm{j}") for j in (1, 2)]
            self.layers.append(
                nn.ModuleDict({"attend": attend, "up": up, "down": down, "n1": norms[0], "n2": norms[1]})
            )
        self.final = self.norm(given, "norm")
        self.readout = nn.Linear(d, config.vocab)
        self.fill(self.readout, given, "readout")

    @staticmethod
    def fill(linear: nn.Linear, given: dict[str, Tensor], name: str) -> None:
        linear.weight.data, linear.bias.data = given[f"{name}.weight"].T.contiguous(), given[f"{name}.bias"]

    @staticmethod
    def norm(given: dict[str, Tensor], name: str) -> nn.LayerNorm:
        norm = nn.LayerNorm(len(given[f"{name}.scale"]), eps=1e-5)
        norm.weight.data, norm.bias.data = given[f"{name}.scale"], given[f"{name}.shift"]
        return norm

    def step(self, h: Tensor) -> Tensor:
        later = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
        for layer in self.layers:
            x = layer["n1"](h)
            h = h + layer["attend"](x, x, x, attn_mask=later, need_weights=False)[0]
            h = h + layer["down"](nn.functional.gelu(layer["up"](layer["n2"](h)), approximate="tanh"))
        return self.final(h)

    def states(self, tokens: Tensor, steps: int, injection: bool) -> list[Tensor]:
        x = self.embed(tokens)
        h, out = torch.zeros_like(x), []
        for t in range(steps):
            h = self.step(h + x if injection or t == 0 else h)
            out.append(h)
        return out


@pytest.mark.parametrize("injection", [True, False])
@torch.no_grad()
def test_the_loop_is_gpt2_again_and_again(injection: bool, make_model: MakeModel) -> None:
    model, flat = make_model(seeds=2, injection=injection)
    weights = model.prepare(flat)
    tokens = some_tokens(model, 2)
    ours = list(model.unroll(weights, tokens, 4))
    for s in range(2):
        reference = Reference(model, flat[s])
        for mine, theirs in zip(ours, reference.states(tokens[s], 4, injection), strict=True):
            torch.testing.assert_close(mine[s], theirs, rtol=1e-4, atol=1e-4)
            logits = model.readout(weights, mine)[s]
            torch.testing.assert_close(logits, reference.readout(theirs), rtol=1e-4, atol=1e-4)


def test_injection_matters_from_the_second_step_on(make_model: MakeModel) -> None:
    outs = {}
    for injection in (True, False):
        model, flat = make_model(injection=injection)
        outs[injection] = list(model.unroll(model.prepare(flat), some_tokens(model, 2), 3))
    torch.testing.assert_close(outs[True][0], outs[False][0])
    assert float((outs[True][1] - outs[False][1]).abs().max()) > 0.1


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_seeds_side_by_side_are_seeds_alone(kind: dict[str, object], make_model: MakeModel) -> None:
    model, flat = make_model(seeds=3, **kind)
    tokens = some_tokens(model, 3)
    *_, together = model.unroll(model.prepare(flat), tokens, 3)
    for s in range(3):
        *_, alone = model.unroll(model.prepare(flat[s : s + 1]), tokens[s : s + 1], 3)
        torch.testing.assert_close(together[s], alone[0], rtol=1e-4, atol=1e-4)


def test_seeds_start_alike_whoever_is_beside_them(make_model: MakeModel) -> None:
    model, _ = make_model()
    pair, single = model.layout.initialise([8, 5]), model.layout.initialise([5])
    assert torch.equal(pair[1], single[0])
    assert not torch.equal(pair[0], pair[1])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_nothing_looks_ahead(kind: dict[str, object], make_model: MakeModel) -> None:
    model, flat = make_model(**kind)
    weights, tokens = model.prepare(flat), some_tokens(model, 2)
    changed = tokens.clone()
    changed[..., 6:] = (changed[..., 6:] + 1) % model.config.vocab
    *_, one = model.unroll(weights, tokens, 3)
    *_, two = model.unroll(weights, changed, 3)
    torch.testing.assert_close(one[:, :, :6], two[:, :, :6], rtol=1e-5, atol=1e-5)
    assert float((one[:, :, 6:] - two[:, :, 6:]).abs().amax((0, 1, 3)).min()) > 1e-3


def test_a_band_bounds_how_fast_news_travels(make_model: MakeModel) -> None:
    """With one layer and a band of 2, a token moves one place a step."""
    model, flat = make_model(layers=1, bands=(2,) * 4)
    weights, tokens = model.prepare(flat), some_tokens(model, 2)
    changed = tokens.clone()
    changed[..., 2] = (changed[..., 2] + 1) % model.config.vocab
    pairs = zip(model.unroll(weights, tokens, 4), model.unroll(weights, changed, 4), strict=True)
    for t, (one, two) in enumerate(pairs, 1):
        differs = ((one - two).abs().amax((0, 1, 3)) > 1e-4).nonzero()[:, 0].tolist()
        assert differs == list(range(2, 2 + t + 1))


def test_folding_a_norm_is_the_norm(make_model: MakeModel) -> None:
    model, flat = make_model(seeds=2)
    views = model.layout.views(flat)
    h = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    for i, layer in enumerate(model.prepare(flat).layers):
        pairs = [("norm1", "qkv", layer.qkv, layer.qkv_bias), ("norm2", "up", layer.up, layer.up_bias)]
        for norm, matrix, weight, bias in pairs:
            folded = layer_ops.linear(layer_ops.normalise(h), weight, bias)
            for s in range(2):
                scale, shift = views[f"layers.{i}.{norm}.scale"][s], views[f"layers.{i}.{norm}.shift"][s]
                plain = nn.functional.layer_norm(h[s], (32,), scale, shift, eps=1e-5)
                plain = (
                    plain @ views[f"layers.{i}.{matrix}.weight"][s] + views[f"layers.{i}.{matrix}.bias"][s]
                )
                torch.testing.assert_close(folded[s], plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_prepared_weights_come_apart_and_together(kind: dict[str, object], make_model: MakeModel) -> None:
    model, flat = make_model(**kind)
    weights = model.prepare(flat)
    again = weights.with_tensors(weights.tensors())
    assert all(one is two for one, two in zip(weights.tensors(), again.tensors(), strict=True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_only_products_are_in_low_precision(kind: dict[str, object], make_model: MakeModel) -> None:
    model, flat = make_model(**kind)
    rough = model.prepare(flat, torch.bfloat16)
    assert (
        rough.readout.dtype == rough.layers[0].up.dtype == rough.layers[-1].down_bias.dtype == torch.bfloat16
    )
    assert rough.embed.dtype == rough.scale.dtype == rough.shift.dtype == torch.float32
    tokens = torch.zeros(flat.shape[0], 2, 5, dtype=torch.long)
    for fine, coarse in zip(
        model.unroll(model.prepare(flat), tokens, 3), model.unroll(rough, tokens, 3), strict=True
    ):
        assert coarse.dtype == torch.float32
        torch.testing.assert_close(coarse, fine, rtol=0.1, atol=0.1)
    assert model.readout(rough, coarse).dtype == torch.bfloat16


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_cached_step_is_the_step(kind: dict[str, object], make_model: MakeModel) -> None:
    model, flat = make_model(**kind)
    weights = model.prepare(flat)
    u = model.embed(weights, some_tokens(model, 2))
    caches: list[object] = [None, None]
    parts = [model.step(weights, part, caches) for part in u.split([4, 1, 1, 4], dim=2)]  # type: ignore[arg-type]
    torch.testing.assert_close(torch.cat(parts, dim=2), model.step(weights, u), rtol=1e-4, atol=1e-4)


def test_every_weight_has_a_gradient(make_model: MakeModel) -> None:
    model, flat = make_model(positions="learned", max_positions=10)
    flat.requires_grad_()
    *_, h = model.unroll(model.prepare(flat), some_tokens(model, 2), 2)
    model.readout(model.prepare(flat), h).square().sum().backward()
    assert flat.grad is not None
    for name, grad in model.layout.views(flat.grad).items():
        if name.endswith("qkv.bias"):  # a bias of the keys shifts all scores alike
            grad = grad.view(2, 3, -1)[:, [0, 2]]
        assert float(grad.abs().amax(-1).min()) > 0, name
