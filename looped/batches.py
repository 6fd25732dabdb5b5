"""Problems to model-ready rows: what is fed in, what is asked for, where the loss looks.

Full-output prediction (FOP) shows the question and asks for the whole answer at once; next-token prediction (NTP)
also feeds the answer in, one place to the right. The targets are the same. Copy of `1 0 1`:

    FOP tokens   1 0 1 > # # # #        NTP tokens   1 0 1 > 1 0 1 #        FOP with 2 pauses   1 0 1 > . . # # # #
        targets  * * * 1 0 1 # #            targets  * * * 1 0 1 # #                  targets   * * * * * 1 0 1 # #

The answer starts at the end-of-question token, or at the last pause token where there are any. Everything from there
on counts, the `#` after the answer included, as in the authors' code. Knows nothing of models or tasks.

Shapes: B problems, L positions; `stack` puts a leading S (seeds) before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from looped.tasks.base import Problems
from looped.vocab import Vocab

Prediction = Literal["fop", "ntp"]


@dataclass(frozen=True)
class Batch:
    """Rows ready for a model."""

    tokens: Int[Tensor, "*S B L"]  # fed in
    targets: Int[Tensor, "*S B L"]  # asked for; meaningless where `loss_mask` is false
    loss_mask: Bool[Tensor, "*S B L"]  # the positions that count
    steps: Int[Tensor, "*S B"]  # T of each problem

    def rows(self, index: Tensor | slice) -> Batch:
        """The rows chosen by an index into the batch axis of an unstacked batch."""
        return Batch(self.tokens[index], self.targets[index], self.loss_mask[index], self.steps[index])

    def part(self, rows: slice) -> Batch:
        """Some rows of a stacked batch."""
        return Batch(*(getattr(self, f.name)[:, rows].contiguous() for f in fields(self)))

    def to(self, device: torch.device | str) -> Batch:
        """The same rows on another device."""
        return Batch(*(getattr(self, f.name).to(device) for f in fields(self)))


def lay_out(
    problems: Problems, vocab: Vocab, size: int, prediction: Prediction = "fop", pause: int = 0
) -> Batch:
    """Problems as rows of `size` tokens plus `pause` pause tokens."""
    size += pause
    at = torch.arange(size, device=problems.question.device)[None, :]
    end = problems.question_length[:, None]  # where the end-of-question mark stands
    start = end + pause  # where the answer is read
    tokens = torch.where(at < end, _pick(problems.question, at), vocab.eos)
    tokens = torch.where(at == end, vocab.eoq, tokens)
    tokens = torch.where((at > end) & (at <= start), vocab.pause, tokens)
    targets = _answer_at(problems, at - start, vocab.eos)
    if prediction == "ntp":
        tokens = torch.where(at > start, _answer_at(problems, at - start - 1, vocab.eos), tokens)
    return Batch(tokens, targets, (at >= start).expand_as(tokens), problems.steps)


def stack(batches: Sequence[Batch]) -> Batch:
    """One batch per seed, along a new leading seed axis."""
    return Batch(*(torch.stack([getattr(b, f.name) for b in batches]) for f in fields(Batch)))


def _pick(rows: Int[Tensor, "B W"], at: Int[Tensor, "#B L"]) -> Int[Tensor, "B L"]:
    at = at.clamp(0, rows.shape[1] - 1).expand(rows.shape[0], -1)
    return rows.gather(1, at)


def _answer_at(problems: Problems, at: Int[Tensor, "B L"], eos: int) -> Int[Tensor, "B L"]:
    inside = (at >= 0) & (at < problems.answer_length[:, None])
    return torch.where(inside, _pick(problems.answer, at), eos)
