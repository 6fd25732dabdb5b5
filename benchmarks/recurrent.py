"""LSTM and GRU on the rows of a looped model, several nets side by side: baselines of `looped bench chomsky`.

On CUDA the nets are one call of one recurrent kernel, whose matrices are block-diagonal: where step follows step, three
calls take three times as long, and one call of three times the width should not (not measured yet).

    input to state, three nets     A . .      each net reads its own rows, has its own loss,
                                   . B .      its own clip and its own rate; zeros stay zeros,
                                   . . C      because no gradient reaches them

On a CPU, where the zeros would be multiplied, the nets run one after the other. Questions are drawn for many gradient
steps at once: a sampler starts as many kernels for one row as for thousands.

Shapes: S nets, B rows, L positions, W width, G gates, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from looped import batches, tasks
from looped.batches import Batch
from looped.training.config import TrainConfig

CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}
WIDTH = 256  # as published
DRAWN_STEPS = 50  # gradient steps whose questions are drawn together


class RecurrentNet(nn.Module):
    """One layer of LSTM or GRU between an embedding and a read-out."""

    def __init__(self, cell: str, vocab: int, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cells = CELLS[cell](width, width, batch_first=True)
        self.readout = nn.Linear(width, vocab)

    def forward(self, tokens: Int[Tensor, "B L"]) -> Float[Tensor, "B L V"]:
        """Scores of rows."""
        logits: Tensor = self.readout(self.cells(self.embed(tokens))[0])
        return logits


def one_by_one(nets: Sequence[RecurrentNet], tokens: Int[Tensor, "S B L"]) -> Float[Tensor, "S B L V"]:
    """Every net's scores of its own rows, net after net."""
    return torch.stack([net(rows) for net, rows in zip(nets, tokens, strict=True)])


def side_by_side(nets: Sequence[RecurrentNet], tokens: Int[Tensor, "S B L"]) -> Float[Tensor, "S B L V"]:
    """The same scores from one call of the recurrent kernel."""
    cells = nets[0].cells
    width = cells.hidden_size
    read = torch.cat([net.embed(rows) for net, rows in zip(nets, tokens, strict=True)], dim=-1)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    weights = [_block_diagonal([getattr(net.cells, name) for net in nets], width) for name in names]
    start = read.new_zeros(1, len(read), read.shape[-1])
    how = (True, 1, 0.0, True, False, True)  # biases, layers, dropout, training, both directions, batch first
    if isinstance(cells, nn.LSTM):
        said = torch.lstm(read, (start, start), weights, *how)[0]
    else:
        said = torch.gru(read, start, weights, *how)[0]
    return torch.stack(
        [net.readout(own) for net, own in zip(nets, torch.split(said, width, -1), strict=True)]
    )


def _block_diagonal(parts: Sequence[Tensor], width: int) -> Tensor:
    """Matrices [G·W, W] or biases [G·W] of S nets as those of one net of width S·W, gate by gate."""
    own = torch.stack(list(parts), dim=1)  # [G·W, S, …]: what follows needs gate, net, place
    size, seeds = len(own), len(parts)
    own = own.view(size // width, width, seeds, -1).transpose(1, 2)  # [G, S, W, W or 1]
    if parts[0].dim() == 1:
        return own.reshape(-1)
    alone = torch.eye(seeds, dtype=own.dtype, device=own.device)[None, :, None, :, None]
    return (own[:, :, :, None] * alone).reshape(seeds * size, seeds * width)


def train(
    nets: Sequence[RecurrentNet],
    config: TrainConfig,
    rates: Sequence[float],
    seeds: Sequence[int],
    check: Callable[[], None] = lambda: None,
    joined: bool | None = None,
) -> None:
    """Train nets on lengths drawn evenly from all training lengths, as published: no curriculum.

    `check` is called now and then; what it raises ends the training.
    """
    device = nets[0].embed.weight.device
    joined = (device.type == "cuda" and len(nets) > 1) if joined is None else joined
    score = side_by_side if joined else one_by_one
    optimizer = torch.optim.Adam(
        [{"params": list(net.parameters()), "lr": rate} for net, rate in zip(nets, rates, strict=True)],
        fused=device.type == "cuda",
    )
    draws = [drawn(config, torch.Generator(device).manual_seed(seed)) for seed in seeds]
    for step in range(config.steps):
        if step % DRAWN_STEPS == 0:
            check()
        batch = batches.stack([next(each) for each in draws])
        losses = nn.functional.cross_entropy(
            score(nets, batch.tokens).movedim(-1, 1), batch.targets, reduction="none"
        )
        optimizer.zero_grad()
        mask = batch.loss_mask
        ((losses * mask).sum((1, 2)) / mask.sum((1, 2))).sum().backward()  # type: ignore[no-untyped-call]
        for net in nets:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


def drawn(config: TrainConfig, generator: torch.Generator) -> Iterator[Batch]:
    """Batches without end: rows of the longest training length, `loss_mask` on the answer and the `#` after it."""
    task = tasks.get(config.task)
    size, rows = task.row_size(config.max_length), config.batch
    while True:
        lengths = torch.randint(
            1, config.max_length + 1, (DRAWN_STEPS * rows,), generator=generator, device=generator.device
        )
        problems = task.sample(lengths, generator, max_length=config.max_length, family=config.family)
        many = batches.lay_out(problems, task.vocab, size)
        mask = scored(many, task.vocab.eos, ended=True)
        for first in range(0, len(lengths), rows):
            own = slice(first, first + rows)
            yield Batch(many.tokens[own], many.targets[own], mask[own], many.steps[own])


def scored(batch: Batch, eos: int, ended: bool) -> Tensor:
    """Which positions [B, L] the suite's score counts: the answer's, and the `#` after it where that is part of it."""
    end = batch.loss_mask & (batch.targets == eos)
    before = end.long().cumsum(1)
    return batch.loss_mask & ((before == 0) | (end & (before == 1) & ended))
