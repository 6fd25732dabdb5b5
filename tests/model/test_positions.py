"""The kinds of positions: where each acts, and how long a row each can take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from looped.errors import InputError
from looped.fast import StackedTransformer
from looped.model import ModelConfig, positions

MakeModel = Callable[..., tuple[StackedTransformer, Tensor]]


def config_of(kind: str, **changes: int) -> ModelConfig:
    sizes = {"vocab": 7, "heads": 4, "width": 32, "max_positions": 20} | changes
    return ModelConfig(**sizes, positions=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["none", "start", "rotary", "alibi", "learned", "randomised"])
def test_only_a_table_tells_equal_tokens_apart(kind: str, make_model: MakeModel) -> None:
    """Averaging equal values shows no place; a table does. The relative kinds change weights, not values."""
    model, flat = make_model(positions=kind, max_positions=20)
    *_, h = model.unroll(model.prepare(flat), torch.full((2, 1, 12), 3), 2)
    spread = float((h - h[:, :, :1]).abs().max())
    assert (spread > 1e-2) == (kind in ("start", "learned", "randomised"))


@pytest.mark.parametrize("kind", ["none", "start", "rotary", "alibi", "learned", "randomised"])
def test_every_kind_but_none_changes_the_output(kind: str, make_model: MakeModel) -> None:
    tokens = torch.arange(14).remainder(7).view(1, 1, 14).expand(2, 1, 14)
    outs = []
    for positions_kind in ("none", kind):
        model, flat = make_model(positions=positions_kind, max_positions=20)
        weights = model.layout.to_dict(flat[0])
        bare, bare_flat = make_model()
        if positions_kind in ("start", "learned", "randomised"):  # the same weights beside the table
            shared = bare.layout.to_dict(bare_flat[0]) | {"position": weights["position"]}
            flat = model.layout.from_dict(shared)[None].expand(2, -1)
        else:
            flat = bare_flat[:1].expand(2, -1)
        *_, h = model.unroll(model.prepare(flat.contiguous()), tokens, 2)
        outs.append(h)
    assert (float((outs[0] - outs[1]).abs().max()) > 1e-2) == (kind != "none")


@pytest.mark.parametrize("kind", ["rotary", "alibi"])
def test_relative_kinds_see_distances_only(kind: str) -> None:
    """Scores of the same queries and keys, ten places later, are the same."""
    config = config_of(kind)
    q, k = torch.randn(2, 1, 4, 5, 8, generator=torch.Generator().manual_seed(2))

    def scores(first: int) -> Tensor:
        plain = positions.turn(config, q, first) @ positions.turn(config, k, first).transpose(-1, -2)
        bias = positions.bias(config, 5, first + 5, q.device)
        return plain if bias is None else plain + bias[..., first:]

    torch.testing.assert_close(scores(0), scores(10), rtol=1e-4, atol=1e-4)
    plain = q @ k.transpose(-1, -2)
    assert float((scores(0) - plain).tril().abs().max()) > 0.1


@pytest.mark.parametrize("kind", ["learned", "randomised"])
def test_a_table_takes_rows_up_to_its_size(kind: str, make_model: MakeModel) -> None:
    model, flat = make_model(positions=kind, max_positions=20)
    weights = model.prepare(flat)
    assert model.embed(weights, torch.zeros(2, 1, 20, dtype=torch.long)).shape == (2, 1, 20, 32)
    with pytest.raises(
        InputError, match="rows of 21 tokens are longer than this model's table of 20 positions"
    ):
        model.embed(weights, torch.zeros(2, 1, 21, dtype=torch.long))


@pytest.mark.parametrize("kind", ["none", "rotary", "alibi"])
def test_without_a_table_any_row_will_do(kind: str, make_model: MakeModel) -> None:
    model, flat = make_model(positions=kind, max_positions=20)
    *_, h = model.unroll(model.prepare(flat), torch.zeros(2, 1, 50, dtype=torch.long), 1)
    assert bool(h.isfinite().all())


def test_learned_places_count_up() -> None:
    assert positions.places(config_of("learned"), 2, 4, torch.device("cpu")).tolist() == [[0, 1, 2, 3]] * 2


def test_randomised_places_are_drawn_in_order_from_the_whole_range() -> None:
    config = config_of("randomised")
    drawn = positions.places(config, 400, 6, torch.device("cpu"), torch.Generator().manual_seed(0))
    assert bool((drawn.diff(dim=1) > 0).all())
    assert (int(drawn.min()), int(drawn.max())) == (0, 19)
    assert len({tuple(row) for row in drawn.tolist()}) > 350
    counts = torch.bincount(drawn.flatten(), minlength=20).float()
    assert float((counts / counts.mean() - 1).abs().max()) < 0.35
    even = positions.places(config, 1, 5, torch.device("cpu"))
    assert even.tolist() == [[0, 4, 8, 12, 16]]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"heads": 5}, "width must be a multiple of its heads: 32 is not one of 5"),
        ({"layers": 10_001}, "a model's layers must be at most 10,000, not 10,001"),
        ({"width": 1 << 21}, "a model's width must be at most 1,048,576, not 2,097,152"),
        ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"vocab": 0}, "vocab must be at least 1"),
        ({"bands": (2,) * 5}, "bands must be at most 4 widths"),
        ({"bands": (0,)}, "4 widths from 1 to"),
        ({"positions": "sinusoidal"}, "unknown positions 'sinusoidal'; there are none, start, rotary"),
        ({"positions": "rotary", "heads": 32}, "rotary positions need an even head size, not 1"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        ModelConfig(**({"vocab": 7, "heads": 4, "width": 32} | changes))  # type: ignore[arg-type]


def test_bands_belong_to_the_first_heads() -> None:
    assert ModelConfig(vocab=7, heads=4, width=32, bands=(2, 3)).head_bands == (2, 3, 0, 0)


def test_a_start_is_seen_at_the_first_place_only(make_model: MakeModel) -> None:
    model, flat = make_model(positions="start")
    weights = model.prepare(flat)
    assert weights.table is not None
    tokens = torch.full((2, 3, 5), 3)
    x = model.embed(weights, tokens)
    torch.testing.assert_close(x[:, :, 0] - x[:, :, 1], weights.table.expand(2, 3, -1))
    assert torch.equal(x[:, :, 1:], x[:, :, 1:2].expand(2, 3, 4, -1))
