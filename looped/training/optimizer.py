"""AdamW over flat weights: every seed with its own clip, learning rate and fate, all in one pass.

A seed whose gradient is not finite is stopped for good: its weights stay as they were before that step. `GrowthLimit`
holds gradients back on their way through the loop, before they get here.

Shapes: S seeds, P numbers of a seed's trained weights, B rows, R rows still in the loop, L positions, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.training.config import TrainConfig

EPSILON = 1e-8
AdamW = Callable[..., None]  # `adamw`, or a kernel that does the same


@dataclass
class Moments:
    """What AdamW and the weight average remember, beside the weights."""

    mean: Float[Tensor, "S P"]
    square: Float[Tensor, "S P"]
    average: Float[Tensor, "S P"] | None  # of the weights, if the run asks for one
    alive: Bool[Tensor, "S"]  # seeds that still train

    @classmethod
    def of(cls, weights: Float[Tensor, "S P"], ema: float) -> Moments:
        """Fresh moments for these weights."""
        alive = torch.ones(weights.shape[0], dtype=torch.bool, device=weights.device)
        average = weights.clone() if ema else None
        return cls(torch.zeros_like(weights), torch.zeros_like(weights), average, alive)

    def tensors(self) -> dict[str, Tensor]:
        """All that there are, by name."""
        average = {} if self.average is None else {"average": self.average}
        return {"mean": self.mean, "square": self.square, "alive": self.alive, **average}


def hyper(config: TrainConfig, share: float, step: int) -> list[list[float]]:
    """Per seed: learning rate, and the bias corrections of the two moments at gradient step `step` (from 0)."""
    b1, b2 = config.betas
    taken = step - config.selected_at + 1  # with these moments
    corrections = [1 - b1**taken, 1 - b2**taken]
    return [[lr * share, *corrections] for lr in config.seed_lrs]


def adamw(
    weights: Tensor, grad: Tensor, mean: Tensor, square: Tensor, average: Tensor | None,
    rates: Tensor, betas: tuple[float, float], decay: float, epsilon: float, ema: float,
) -> None:  # fmt: skip
    """One AdamW step in place on [S, P], and the weights' average.

    `rates` [S, 5]: learning rate, both moments' corrections, what scales the gradient, 1 for a seed that trains.
    """
    lr, correct1, correct2, clip, alive = (column[:, None] for column in rates.unbind(dim=1))
    grad = torch.where(alive > 0, grad * clip, 0.0)
    mean.lerp_(grad, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
    root = square.div(correct2).sqrt_().add_(epsilon)
    weights.mul_(1 - lr * decay)
    weights.sub_(mean.mul(lr / correct1).div_(root))
    if average is not None:
        average.lerp_(weights, alive * (1 - ema))  # a stopped seed's stays


@torch.no_grad()
def update(
    config: TrainConfig,
    weights: Float[Tensor, "S P"],
    grad: Float[Tensor, "S P"],
    moments: Moments,
    hyper: Float[Tensor, "S 3"],
    adamw: AdamW = adamw,
) -> Float[Tensor, "S"]:
    """One step of clipped AdamW in place; returns each seed's gradient norm before the clip."""
    norm: Tensor = torch.linalg.vector_norm(grad, dim=1)
    alive = moments.alive.logical_and_(norm.isfinite())
    lr, correct1, correct2 = hyper.unbind(dim=1)
    lr = torch.where(alive, lr, 0.0)  # a stopped seed learns at rate 0
    clip = (config.clip / (norm + 1e-6)).clamp(max=1.0)
    rates = torch.stack([lr, correct1, correct2, clip, alive.float()], dim=1)
    adamw(
        weights, grad, moments.mean, moments.square, moments.average,
        rates, config.betas, config.weight_decay, EPSILON, config.ema,
    )  # fmt: skip
    return norm


class GrowthLimit:
    """Limits how many times a row's gradient may grow on its way back (`growth_clip`); 0 sets no limit.

    Backward reaches the states at the rows' ends first; their gradients' norms set the limit for every step before.
    """

    def __init__(self, growth_clip: float) -> None:
        self.growth_clip = growth_clip
        self.highest: Tensor | None = None  # [B], or [S, B] of stacked seeds

    def end(self, final: Float[Tensor, "*S B L D"]) -> None:
        """Remember the norms of the gradients that come in."""

        def note(grad: Tensor) -> None:
            self.highest = self.growth_clip * _row_norms(grad)

        if self.growth_clip and final.requires_grad:
            final.register_hook(note)  # type: ignore[no-untyped-call]

    def watch(self, u: Float[Tensor, "*S R L D"], rows: Int[Tensor, "R"] | slice) -> None:
        """Scale down what is larger; `rows` says which rows these are."""

        def hold(grad: Tensor) -> Tensor:
            assert self.highest is not None
            norm = _row_norms(grad).clamp_min(torch.finfo(torch.float32).tiny)
            return grad * (self.highest[..., rows] / norm).clamp_max(1)[..., None, None].to(grad.dtype)

        if self.growth_clip and u.requires_grad:
            u.register_hook(hold)  # type: ignore[no-untyped-call]


def _row_norms(grad: Float[Tensor, "*S R L D"]) -> Float[Tensor, "*S R"]:
    return grad.float().square().sum((-2, -1)).sqrt()
