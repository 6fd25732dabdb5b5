from __future__ import annotations

import pytest
import torch

from looped.explorer import queries
from looped.explorer.queries import ModelRegistry, read_query
from looped.fast import layer_ops
from looped.fast.stacked import StackedTransformer


@pytest.mark.parametrize(
    ("key", "question"),
    [("my-copy:seed-0", "0110"), ("addition-compiled", "101+011"), ("unique_set-compiled", "4 2 4")],
)
def test_heads_share_themselves_out_over_what_they_may_see(
    registry: ModelRegistry, key: str, question: str
) -> None:
    asked = read_query(registry[key], question)
    config = registry[key].solver.model.config
    state = _states(asked, 2)[-1]
    for layer in range(config.layers):
        for head, band in enumerate(config.head_bands):
            shares = queries.attention_map(asked, state, layer, head)
            assert torch.allclose(shares.sum(-1), torch.ones(len(shares)), atol=1e-5)
            assert (shares.triu(1) == 0).all()
            if band:
                assert (shares.tril(-band) == 0).all()


def test_the_pass_that_is_watched_is_the_models_own_step(
    registry: ModelRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of what a step does must change what is looked at."""
    asked = read_query(registry["addition-compiled"], "101+011")
    model, weights = registry["addition-compiled"].solver.model, registry["addition-compiled"].solver.weights
    first, second = _states(asked, 2)
    calls: list[torch.Tensor] = []
    original = layer_ops.apply_layer

    def spy(*args: object) -> torch.Tensor:
        calls.append(original(*args))  # type: ignore[arg-type]
        return calls[-1]

    monkeypatch.setattr(layer_ops, "apply_layer", spy)
    queries.attention_map(asked, first, model.config.layers - 1, 0)
    seen = calls[-1]
    ended = torch.addcmul(weights.shift, model.normalise(seen), weights.scale)
    assert torch.equal(ended[0, 0], second)


def _states(asked: object, steps: int) -> list[torch.Tensor]:
    solver = asked.model.solver  # type: ignore[attr-defined]
    model: StackedTransformer = solver.model
    with torch.inference_mode():
        return [h[0, 0] for h in model.unroll(solver.weights, asked.batch().tokens[None], steps)]  # type: ignore[attr-defined]
