"""Flat AdamW against torch's own, seed by seed; the weight average; a seed that breaks leaves the rest alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from looped.training import curriculum, optimizer
from looped.training.optimizer import Moments

SIZE, STEPS = 50, 12


def gradients(seeds: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    # from far below the clip to far above it
    return [torch.randn(seeds, SIZE, generator=generator) * 10.0 ** (i % 4 - 2) for i in range(STEPS)]


def run(config, weights: Tensor, grads: list[Tensor]) -> tuple[Moments, list[Tensor]]:
    moments = Moments.of(weights, config.ema)
    norms = []
    for step, grad in enumerate(grads):
        hyper = torch.tensor(optimizer.hyper(config, curriculum.lr_share(config, step), step))
        norms.append(optimizer.update(config, weights, grad, moments, hyper))
    return moments, norms


@pytest.mark.parametrize("lr", [(3e-3,), (3e-3, 1e-1, 1e-4)])
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_it_is_torchs_adamw_behind_torchs_clip(tiny, lr: tuple[float, ...], ema: float) -> None:
    config = tiny(
        seeds=(0, 1, 2),
        lr=lr,
        ema=ema,
        betas=(0.8, 0.95),
        weight_decay=0.1,
        interval=2,
        warmup=3,
        steps=STEPS,
    )
    start = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(1))
    grads = gradients(3)
    weights = start.clone()
    moments, norms = run(config, weights, grads)
    for seed in range(3):
        module = torch.nn.Linear(SIZE, 1, bias=False)
        module.weight.data.copy_(start[seed])
        average = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(ema))
        average.update_parameters(module)  # the first update copies
        peak = config.seed_lrs[seed]
        theirs = torch.optim.AdamW(module.parameters(), lr=peak, betas=config.betas, weight_decay=0.1)
        for step, grad in enumerate(grads):
            module.weight.grad = grad[seed][None].clone()
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), config.clip)
            torch.testing.assert_close(norms[step][seed], norm)
            theirs.param_groups[0]["lr"] = peak * curriculum.lr_share(config, step)
            theirs.step()
            average.update_parameters(module)
        torch.testing.assert_close(weights[seed], module.weight.data[0], rtol=1e-5, atol=1e-6)
        if ema:
            assert moments.average is not None
            expected = average.module.weight.data[0]
            torch.testing.assert_close(moments.average[seed], expected, rtol=1e-5, atol=1e-6)


def test_stacked_seeds_are_single_seeds(tiny) -> None:
    grads = gradients(2)
    start = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(1))
    stacked = start.clone()
    run(tiny(seeds=(0, 1), lr=(1e-2, 1e-3)), stacked, grads)
    for seed, lr in enumerate((1e-2, 1e-3)):
        single = start[seed : seed + 1].clone()
        run(tiny(seeds=(seed,), lr=(lr,)), single, [grad[seed : seed + 1] for grad in grads])
        torch.testing.assert_close(stacked[seed], single[0], rtol=0, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_broken_seed_stops_for_good_and_alone(tiny, bad: float, ema: float) -> None:
    config = tiny(seeds=(0, 1), ema=ema)
    start = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(1))
    grads = gradients(2)
    whole, broken = start.clone(), start.clone()
    run(config, whole, grads)
    before = start.clone()
    until, _ = run(config, before, grads[:5])
    spoiled = [grad.clone() for grad in grads]
    spoiled[5][1, 7] = bad  # one number of one seed at one step
    moments, _ = run(config, broken, spoiled)
    assert moments.alive.tolist() == [True, False]
    torch.testing.assert_close(broken[0], whole[0], rtol=0, atol=0)
    torch.testing.assert_close(broken[1], before[1], rtol=0, atol=0)
    if ema:
        assert moments.average is not None
        assert until.average is not None
        torch.testing.assert_close(moments.average[1], until.average[1], rtol=0, atol=0)
