"""The flat row of weights: named views into it, a checkpoint's dictionary, foreign weights refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from looped import methods, tasks
from looped.errors import InputError
from looped.fast import StackedTransformer
from looped.model import ModelConfig
from looped.model.weights import ALIGN, Layout

MakeModel = Callable[..., tuple[StackedTransformer, Tensor]]


def test_a_row_survives_the_dictionary(make_model: MakeModel) -> None:
    model, _ = make_model(positions="learned", max_positions=9)
    row = model.layout.initialise([1])[0]
    saved = model.layout.to_dict(row)
    assert torch.equal(model.layout.from_dict(saved), row)
    assert all(weight.is_contiguous() and weight.data_ptr() != row.data_ptr() for weight in saved.values())
    saved["embed"].zero_()
    assert not torch.equal(model.layout.from_dict(saved), row)


def test_views_look_into_the_row_and_cover_it(make_model: MakeModel) -> None:
    model, _ = make_model()
    flat = torch.zeros(2, model.layout.size)
    for view in model.layout.views(flat).values():
        view += 1
    assert float(flat.max()) == 1, "two weights share a place"
    assert int(flat.sum()) == 2 * model.layout.parameters
    assert all(slot.start % ALIGN == 0 for slot in model.layout.slots.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 3},
        {"layers": 1, "vocab": 7, "positions": "start", "halting": "eoq"},
        {"layers": 2, "before": 3, "width": 24, "heads": 2},
        {"layers": 12},
        {"layers": 2, "kind": "universal", "halting": "act", "injection": False},
    ],
    ids=str,
)
def test_stacks_are_the_views_layer_upon_layer(changes: dict[str, object]) -> None:
    layout = Layout(ModelConfig(**{"vocab": 5, "width": 16, "heads": 2, **changes}))
    flat = torch.randn(2, layout.size, requires_grad=True)
    single, stacks = layout.stacks(flat)
    seen = dict(single)
    for stack, weights in stacks.items():
        for name, tensor in weights.items():
            seen |= {f"{stack}.{i}.{name}": layer for i, layer in enumerate(tensor)}
    views = layout.views(flat)
    assert seen.keys() == views.keys()
    assert all(torch.equal(seen[name], view) for name, view in views.items())
    (ours,) = torch.autograd.grad(sum((w**2).sum() for w in seen.values()), [flat])
    (theirs,) = torch.autograd.grad(sum((w**2).sum() for w in views.values()), [flat])
    assert torch.equal(ours, theirs)


def test_a_deep_model_is_as_few_tensors_as_a_shallow_one() -> None:
    few, many = (
        StackedTransformer(ModelConfig(vocab=5, layers=layers, width=16, heads=2)) for layers in (1, 80)
    )
    prepared = [model.prepare(model.layout.initialise([0, 1])) for model in (few, many)]
    assert len(prepared[0].tensors()) == len(prepared[1].tensors()) == 5 + 8
    assert [len(each.layers) for each in prepared] == [1, 80]
    assert all(matrix.is_contiguous() for layer in prepared[1].layers for matrix in layer)


def test_the_number_of_parameters_is_gpt2s() -> None:
    d, vocab, layers = 256, 5, 2
    layer = 2 * 2 * d + (d + 1) * 3 * d + (d + 1) * d + (d + 1) * 4 * d + (4 * d + 1) * d
    config = ModelConfig(vocab=vocab, layers=layers, width=d)
    assert Layout(config).parameters == vocab * d + layers * layer + 2 * d + (d + 1) * vocab


def test_weights_start_as_gpt2s_do() -> None:
    config = ModelConfig(vocab=50, layers=8, width=128)
    views = Layout(config).views(Layout(config).initialise([0]))
    for name, std in [
        ("embed", 0.02),
        ("layers.3.qkv.weight", 0.02),
        ("layers.3.up.weight", 0.02),
        ("layers.3.out.weight", 0.005),  # .02 / √(2 · 8): a residual branch
        ("layers.3.down.weight", 0.005),
        ("readout.weight", 0.02),
    ]:
        assert float(views[name].std()) == pytest.approx(std, rel=0.05), name
        assert abs(float(views[name].mean())) < 0.1 * std, name
    for name, value in [("layers.3.norm1.scale", 1), ("norm.shift", 0), ("layers.0.qkv.bias", 0)]:
        assert bool((views[name] == value).all()), name


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda w: w.pop("norm.scale"), "'norm.scale' is of shape None, not"),
        (lambda w: w.update(extra=torch.zeros(1)), r"'extra' is of shape \(1,\), not None"),
        (
            lambda w: w.update({"norm.scale": torch.zeros(3)}),
            r"'norm.scale' is of shape \(3,\), not \(32,\)",
        ),
        (lambda w: w.update({"embed": w["embed"].T}), r"'embed' is of shape \(32, 7\), not \(7, 32\)"),
        (lambda w: w.clear(), "do not fit its configuration"),
    ],
)
def test_foreign_weights_are_refused(
    spoil: Callable[[dict[str, Tensor]], object], complaint: str, make_model: MakeModel
) -> None:
    model, flat = make_model()
    weights = model.layout.to_dict(flat[0])
    spoil(weights)
    with pytest.raises(InputError, match=complaint):
        model.layout.from_dict(weights)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_papers_untied_models_have_twenty_blocks(task: str) -> None:
    paper = tasks.get(task).paper
    vocab = len(tasks.get(task).vocab)

    def size(depth: int) -> int:
        return Layout(ModelConfig(vocab=vocab, layers=paper.layers * depth, heads=paper.heads)).parameters

    one, two = size(1), size(2)
    assert size(methods.get("fop").depth) == one + 19 * (two - one)
