"""Signs of how far a model will hold, from lengths inside the training range: what chooses among replicas.

For models that were trained on lengths up to n, measured on the lengths just past n that were held out:

| sign            | what it says of a model                                                             | better |
|-----------------|-------------------------------------------------------------------------------------|--------|
| exact           | share of held-out questions answered exactly, over lengths and input distributions  | high   |
| worst           | the same at the worst length and input distribution                                 | high   |
| agreement       | share of the other replicas of its seed that give the same answer to a question     | high   |
| invariance      | share of questions answered as their twin is (`Task.twin`: a + b and b + a)         | high   |
| unchanged       | share of answers that stay as they are from step T to 2T                            | high   |
| robust          | share of answers that stay the same under noise on the state                        | high   |
| novelty         | share of neighbourhoods of states that occur at no training length                  | low    |
| margin          | mean log odds of the decoded token against all others                               | high   |
| smallest_margin | the smallest of them                                                                | high   |

Only `exact` and `worst` need right answers; so does the last training `loss`, which a replica's record holds too. A
model with a halting head is judged by what it stands by, after 2T steps; any other by its answer after T. A
neighbourhood is the pair of states of two adjacent positions after a step up to T, each state known by the nearest of
`CENTROIDS` centres of the states at training lengths. Equal questions count once.

Shapes: S models, B rows, W counted positions, L positions, D width, K centres.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import one_hot, pad

from looped.batches import Batch, lay_out
from looped.evaluation.measure import Subject, distinct, draw_batches
from looped.evaluation.rollout import Rollout, parts, window_start

HIGH, LOW = 1, -1
LABELLED = {"exact": HIGH, "worst": HIGH, "loss": LOW}
LABEL_FREE = {
    "agreement": HIGH, "invariance": HIGH, "unchanged": HIGH, "robust": HIGH, "novelty": LOW, "margin": HIGH,
    "smallest_margin": HIGH,
}  # fmt: skip
SAMPLES = 64  # questions per length and input distribution
CENTROIDS = 64
NOISE = 0.4  # deviation of the noise on the state, twice what recipe `long` trains with at most
FITTED = 4096  # states of a model that centres are fitted to
ROUNDS = 10  # of fitting
LARGEST_MARGIN = 80.0  # beyond, a float32 cannot tell


Rows = list[dict[str, float | None]]


def measure_signs(
    subjects: Sequence[Subject],
    lengths: Sequence[int],
    *,
    groups: Sequence[int],
    samples: int = SAMPLES,
    seed: int = 0,
    check: Callable[[], None] = lambda: None,
) -> Rows:
    """The signs of all models of some subjects, in order; `groups` says which are replicas of the same seed.

    `lengths` are those held out. `check` is called between parts of the work, and what it raises ends it. None stands
    for what a task has not (a twin) or a model that computes no finite numbers.
    """
    rows, answers = [], []
    for subject in subjects:
        known = Neighbourhoods(subject, samples, seed, check)
        cells: list[dict[str, Tensor]] = []  # [S] of each sign
        said: list[Tensor] = []
        for length, family in _cells(subject, lengths):
            check()
            signs, answer = _measure_cell(subject, length, family, samples, seed, known)
            cells.append(signs)
            said.append(answer)
        names = [family for _, family in _cells(subject, lengths)]
        rows += [_row(cells, names, s) for s in range(len(subject.seeds))]
        answers.append(said)
    for row, same in zip(rows, _agreement(answers, groups), strict=True):
        row["agreement"] = same
    return rows


def _cells(subject: Subject, lengths: Sequence[int]) -> list[tuple[int, str]]:
    return [(length, family) for length in lengths for family in subject.task.families]


def _measure_cell(
    subject: Subject, length: int, family: str, samples: int, seed: int, known: Neighbourhoods
) -> tuple[dict[str, Tensor], Tensor]:
    """The signs [S] at one length and input distribution, and the answers [S, B, W]."""
    batch = questions(subject, length, family, samples, seed)
    new: list[Tensor] = []
    seen = walk(subject, batch, on_state=lambda h: new.append(known.new(h)))
    noisy = walk(subject, batch, noise=torch.Generator(batch.tokens.device).manual_seed(seed), after=1)
    fresh = torch.stack(new).double().sum(0)  # [S, 2]
    counts = ~seen.margin.isinf()
    signs = {
        "exact": seen.right.double().mean(1),
        "unchanged": seen.unchanged.double().mean(1),
        "robust": (noisy.at_need == seen.at_need).all(-1).double().mean(1),
        "novelty": fresh[:, 0] / fresh[:, 1],
        "margin": torch.where(counts, seen.margin, 0.0).double().sum((1, 2)) / counts.sum((1, 2)),
        "smallest_margin": seen.margin.flatten(1).amin(1),
    }
    pair = twins(subject, batch, length, seed)
    if pair is not None:
        other, renamed = pair
        same = (walk(subject, other).answer == renamed(seen.answer)) | seen.margin.isinf()
        signs["invariance"] = same.all(-1).double().mean(1)
    return {name: sign.double().cpu() for name, sign in signs.items()}, seen.answer.cpu()


def _row(cells: Sequence[Mapping[str, Tensor]], families: Sequence[str], s: int) -> dict[str, float | None]:
    """The signs of the s-th model over all cells, but for agreement."""
    exact = [float(cell["exact"][s]) for cell in cells]
    row: dict[str, float | None] = {"exact": sum(exact) / len(exact), "worst": min(exact)}
    for name in LABEL_FREE:
        values = [float(cell[name][s]) for cell in cells if name in cell] or [math.nan]
        value = min(values) if name == "smallest_margin" else sum(values) / len(values)
        row[name] = value if math.isfinite(value) else None
    for family in dict.fromkeys(families):
        own = [value for value, name in zip(exact, families, strict=True) if name == family]
        row[f"exact on {family}"] = sum(own) / len(own)
    return row


def _agreement(answers: Sequence[Sequence[Tensor]], groups: Sequence[int]) -> list[float]:
    """How many of the other models of its group give each model's answer, as a mean over all questions."""
    same, total = torch.zeros(len(groups), dtype=torch.float64), 0
    for said in zip(*answers, strict=True):
        cell = torch.cat(said)  # [S, B, W] of all subjects
        for group in set(groups):
            members = [i for i, own in enumerate(groups) if own == group]
            own = cell[members]
            alike = (own[:, None] == own[None]).all(-1).double().sum((1, 2)) - own.shape[1]  # not with itself
            same[members] += alike / max(len(members) - 1, 1)
        total += cell.shape[1]
    return (same / total).tolist()


# --- one pass through the loop -------------------------------------------------------------------------------
def questions(subject: Subject, length: int, family: str, samples: int, seed: int) -> Batch:
    """Different questions of a length and input distribution, at most `samples`."""
    batch = next(draw_batches(subject, length, samples, seed=seed, family=family))
    return distinct(batch)[0]


@dataclass
class Walk:
    """What rows show on their way through the loop, from the first position that counts in any on."""

    answer: Int[Tensor, "S B W"]  # by which a model is judged
    at_need: Int[Tensor, "S B W"]  # after T steps
    margin: Float[Tensor, "S B W"]  # of the answer; infinite at positions that do not count
    unchanged: Bool[Tensor, "S B"]
    right: Bool[Tensor, "S B"]


@torch.inference_mode()
def walk(
    subject: Subject,
    batch: Batch,
    *,
    on_state: Callable[[Tensor], None] = lambda h: None,
    noise: torch.Generator | None = None,
    after: int = 2,
) -> Walk:
    """Take rows through the loop for `after` times their T; `on_state` is shown all states up to T, part by part."""
    start = window_start(batch.loss_mask)
    walked = [
        _walk(subject, batch.rows(here), start, on_state, noise, after)
        for here in parts(subject.model, subject.weights, batch)
    ]
    return Walk(*(torch.cat(each, dim=1) for each in zip(*walked, strict=True)))


def _walk(
    subject: Subject, batch: Batch, start: int, on_state: Callable[[Tensor], None], noise: torch.Generator | None,
    after: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """What a `Walk` holds of some rows, from position `start` on."""
    roll, need = Rollout(subject.model, subject.weights, batch), batch.steps
    halts = subject.model.config.halting == "eoq"
    for t in range(1, after * int(need.max()) + 1):
        if noise is not None and roll.state is not None:
            drawn = torch.randn(roll.state.shape, generator=noise, device=roll.state.device)
            roll.state = roll.state + NOISE * drawn
        h = roll.advance()
        subject.on_step()
        if t <= int(need.max()):
            on_state(h)
        said, each = roll.reading.answer, roll.reading.each
        if t == 1:
            at_need, last, nll = said, said, each
            unchanged = torch.ones_like(said[..., 0], dtype=torch.bool)
        here, still = (need == t)[:, None], (t <= after * need)[:, None]
        at_need = torch.where(here, said, at_need)
        changed = ((said != at_need) & roll.counted).any(-1) & (t > need) & still[:, 0]
        unchanged = unchanged & ~changed
        counts = still if halts else here
        last, nll = torch.where(counts, said, last), torch.where(counts, each, nll)
    margin = -torch.expm1(nll.clamp(min=math.exp(-LARGEST_MARGIN))).log()
    margin = torch.where(roll.counted, margin, math.inf)
    right = ((last == roll.targets) | ~roll.counted).all(-1)
    whole = (roll.start - start, 0)  # these rows may begin to count later than others
    return pad(last, whole), pad(at_need, whole), pad(margin, whole, value=math.inf), unchanged, right


def twins(
    subject: Subject, batch: Batch, length: int, seed: int
) -> tuple[Batch, Callable[[Tensor], Tensor]] | None:
    """Questions whose answers follow from those of a batch, and the answers renamed; None for a task without any."""
    task, random = subject.task, Random(seed * 1_000_003 + length)
    vocab, asked = task.vocab, []
    names: Tensor = torch.arange(subject.model.config.vocab).repeat(len(batch.tokens), 1)
    for i, row in enumerate(batch.tokens.tolist()):
        twin = task.twin([vocab.names[token] for token in row[: row.index(vocab.eoq)]], random)
        if twin is None:
            return None
        asked.append(twin[0])
        for name, other in twin[1].items():
            names[i, vocab.encode([name])[0]] = vocab.encode([other])[0]
    problems = task.problems(asked, max_length=length)
    made = lay_out(problems, vocab, task.row_size(length), subject.method.prediction, subject.method.pause)
    made = replace(made, steps=batch.steps.cpu()).to(batch.tokens.device)
    names = names.to(batch.tokens.device)

    def renamed(answer: Int[Tensor, "S B W"]) -> Int[Tensor, "S B W"]:
        return names.expand(len(answer), -1, -1).gather(2, answer)

    return made, renamed


# --- neighbourhoods of states --------------------------------------------------------------------------------
class Neighbourhoods:
    """The pairs of adjacent states that occur at the training lengths."""

    def __init__(
        self, subject: Subject, samples: int, seed: int, check: Callable[[], None] = lambda: None
    ) -> None:
        cells = _cells(subject, range(1, subject.trained_max_length + 1))
        device, seeds = subject.weights.embed.device, len(subject.seeds)
        few: list[Tensor] = []
        each = max(1, FITTED // len(cells))
        generator = torch.Generator().manual_seed(seed)
        for length, family in cells:
            states: list[Tensor] = []
            rows = questions(subject, length, family, min(samples, 4), seed)
            walk(subject, rows, on_state=lambda h, kept=states: kept.append(h.flatten(1, 2)), after=1)  # type: ignore[misc]
            every = torch.cat(states, dim=1)
            few.append(every[:, torch.randint(every.shape[1], (each,), generator=generator).to(device)])
        self.centres = _centres(torch.cat(few, dim=1).float(), generator)
        self.known = torch.zeros(seeds, (CENTROIDS + 1) * CENTROIDS, dtype=torch.bool, device=device)
        for length, family in cells:
            check()
            walk(subject, questions(subject, length, family, samples, seed), on_state=self._learn, after=1)

    def pairs(self, h: Float[Tensor, "S B L D"]) -> Int[Tensor, "S N"]:
        """The neighbourhood of every position, as a number; before the first position there is nothing."""
        code = torch.cdist(h.flatten(1, 2).float(), self.centres).argmin(-1).view(h.shape[:3])
        before = pad(code[..., :-1], (1, 0), value=CENTROIDS)
        return (before * CENTROIDS + code).flatten(1)

    def _learn(self, h: Float[Tensor, "S B L D"]) -> None:
        self.known.scatter_(1, self.pairs(h), True)

    def new(self, h: Float[Tensor, "S B L D"]) -> Int[Tensor, "S 2"]:
        """How many neighbourhoods of states are not known, of how many."""
        pairs = self.pairs(h)
        unknown = (~self.known.gather(1, pairs)).sum(1)
        return torch.stack([unknown, torch.full_like(unknown, pairs.shape[1])], dim=1)


def _centres(states: Float[Tensor, "S N D"], generator: torch.Generator) -> Float[Tensor, "S K D"]:
    """Centres of the states of each model, by k-means from states drawn evenly; an empty one stays where it is."""
    centres = states[:, torch.randperm(states.shape[1], generator=generator)[:CENTROIDS].to(states.device)]
    if centres.shape[1] < CENTROIDS:
        centres = centres.repeat(1, -(-CENTROIDS // centres.shape[1]), 1)[:, :CENTROIDS]
    for _ in range(ROUNDS):
        nearest = torch.cdist(states, centres).argmin(-1)
        member = one_hot(nearest, CENTROIDS).to(states.dtype)  # [S, N, K]
        count = member.sum(1)[..., None]
        centres = torch.where(count > 0, member.mT @ states / count.clamp(min=1), centres)
    return centres


# --- choosing ------------------------------------------------------------------------------------------------
def choose(rows: Sequence[Mapping[str, float | None]]) -> int:
    """The best of some replicas: the highest `exact`, then `robust`, then the best mean rank over the signs.

    `robust` comes first among the label-free signs because it alone told how far copy replicas hold that were all exact
    at the held-out lengths (docs/length.md). The rank is over the label-free signs.
    """
    best = max(row["exact"] or 0.0 for row in rows)
    among = [i for i, row in enumerate(rows) if (row["exact"] or 0.0) == best]
    steady = max(_worth(rows[i]["robust"], HIGH) for i in among)
    among = [i for i in among if _worth(rows[i]["robust"], HIGH) == steady]
    ranks = dict.fromkeys(among, 0.0)
    for name, better in LABEL_FREE.items():
        values = {i: _worth(rows[i][name], better) for i in among}
        for i in among:  # the mean of the places that equals share
            ahead = sum(other > values[i] for other in values.values())
            equal = sum(other == values[i] for other in values.values())
            ranks[i] += ahead + (equal - 1) / 2
    return min(among, key=lambda i: (ranks[i], i))


def _worth(value: float | None, better: int) -> float:
    """Rounded: the last digits of equal models depend on their place in the stack."""
    return -math.inf if value is None else better * float(f"{value:.6g}")
