"""What a state says when it is read out: the decoded answer, and how surprised the model is by it.

Only the positions that count are read. For rows of one length they start at one place, so the window from the
earliest of them on is all that is ever turned into scores. Knows nothing of loops or stopping.

Shapes: S seeds, B rows, L positions, W positions of the window, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from looped.model import ModelConfig
from looped.model.seeds import SeedModel, SeedWeights

# Numbers a chunk of rows may keep alive at once: on a CPU what fits its caches, which is fastest (measured).
CPU_BUDGET = 1 << 22
NUMBER_BYTES = 4
GPU_SHARE = 16  # on a GPU one part in so many of its memory: enough to be busy, and others may be there


DIVERGED = (
    "computes values that are no finite numbers: its run has diverged, train it again with a smaller lr"
)


@dataclass(frozen=True)
class Reading:
    """Decoded answers in the window, and the mean cross entropy of the scores with them (lower is surer)."""

    answer: Int[Tensor, "S B W"]
    surprise: Float[Tensor, "S B"]


def window_start(counted: Bool[Tensor, "B L"]) -> int:
    """The first position that counts in any row."""
    return int(counted.any(0).int().argmax())


def read(
    model: SeedModel,
    weights: SeedWeights,
    h: Float[Tensor, "S B W D"],
    counted: Bool[Tensor, "#S #B #W"],
) -> Reading:
    """The answer of a state and its surprise, in fp32 whatever the precision of the weights.

    Surprise is the log of 1 + (the other tokens' share over the best one's): the cross entropy with the
    decoded answer, but still telling steps apart where a plain log-softmax would round all of them to 0.
    """
    logits = model.readout(weights, h.contiguous()).float()
    best, answer = logits.max(-1, keepdim=True)
    others = (logits - best).exp().scatter(-1, answer, 0.0).sum(-1)
    surprise = (others.log1p() * counted).sum(-1) / counted.sum(-1)
    return Reading(answer[..., 0], surprise)


def greedily_right(
    likeliest: Int[Tensor, "S B W"], targets: Int[Tensor, "B W"], counted: Bool[Tensor, "B W"], eos: int
) -> Bool[Tensor, "S B"]:
    """Which rows greedy decoding would answer right, given the likeliest next token after each right beginning.

    As long as an answer is right, what decoding feeds in is what the right answer feeds in; after its first `#` it is
    `#` by definition.
    """
    past_end = ((targets == eos) & counted).long().cumsum(-1) > 1
    return ((likeliest == targets) | ~counted | past_end).all(-1)


def is_done(config: ModelConfig, h: Float[Tensor, "S B L D"]) -> Bool[Tensor, "S B"] | None:
    """Whether each row's last position says that the answer is there; None for a model that never says."""
    return None if config.halt is None else h[:, :, -1, config.halt] > 0.5


def motion(before: Float[Tensor, "S B L D"] | None, h: Float[Tensor, "S B L D"]) -> Float[Tensor, "S B"]:
    """How far the position of each row that moves most has come since the step before, relative to its size.

    Every position of the row counts: an answer may stand still while what will change it is still on its way.
    """
    if before is None:
        return torch.full(h.shape[:2], float("inf"), device=h.device)
    moved: Tensor = torch.linalg.vector_norm(h - before, dim=-1)
    moved = moved / torch.linalg.vector_norm(h, dim=-1).clamp(min=1e-9)
    return moved.amax(-1).float()


def rows_at_once(config: ModelConfig, seeds: int, size: int, device: torch.device, kept: int = 0) -> int:
    """How many rows of `size` tokens fit the memory bound; `kept` is what each token keeps besides."""
    state = config.width * (8 + 2 * config.expansion) + 4 * config.vocab
    whole = config.positions == "alibi"  # its offsets are a mask over all keys, bands or not
    scores = sum(min(size, 0 if whole else band) or size for band in config.head_bands)
    row = size * (state + scores + kept)
    return max(1, _budget(device) // (seeds * row))


def _budget(device: torch.device) -> int:
    """How many numbers may be alive at once."""
    if device.type == "cpu":
        return CPU_BUDGET
    return int(torch.cuda.get_device_properties(device).total_memory) // (GPU_SHARE * NUMBER_BYTES)
