"""Certify that a local model is right at every length, or name the neighbourhood where it breaks.

A model of one layer whose heads all see one position back is a cellular automaton with real-valued cells: the state at
position i after step t is a function of the states at i - 1 and i after step t - 1. So it is a function of the t + 1
tokens from i - t to i, the *word* that has reached the position:

    H(w) = step(H(w without its last token), H(w without its first token))

A question of n tokens is read after n steps. The word of a position that is read then has no border of the row in it,
except the row's first token in the word of the end-of-question token. Words are told apart by their first k tokens,
their last k tokens and a memory (nothing, or the parity of the ones). That makes finitely many *classes* of words, and
finitely many *neighbourhoods*: pairs of classes that a step can read at any length. *Clusters*, balls of one radius,
cover the states of a class. Exact: no other neighbourhood can arise. Computed: all pairs of centres are mapped into
clusters, and every cluster is read and halts right out to its radius. Measured, no theorem: states between the centres
are mapped into clusters too, in questions of 60 tokens and along histories that grow by hundreds of tokens.

A step is taken of pairs of states here, whatever row they stand in, and of none twice: that is no row in a loop, which
`rollout.Rollout` would walk.

Shapes: N neighbourhoods, M of them or of clusters, C classes, D width, V vocabulary.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from looped.errors import InputError
from looped.model.block import Block
from looped.model.looped import LoopedTransformer
from looped.tasks.base import Task

Word = tuple[int, ...]  # tokens; the first token of a row is its id plus FIRST
Break = tuple[Word, str]
Memory = Literal["none", "parity"]
FIRST = 1000  # tells the first token of a row from the same token elsewhere
MOST = 64  # clusters of a class
TRAINED = 20  # question tokens that the paper trains on
BATCH = 1 << 14
AMBIGUOUS = "the right answer is not the same for all words like it"


class LocalRule:
    """A looped Transformer as a rule of one position back. A row's first token is its id plus FIRST."""

    def __init__(self, net: LoopedTransformer) -> None:
        reason = not_local(net)
        if reason:
            raise InputError(f"only models that read one position back can be certified: {reason}")
        self.net = net

    def embed(self, letters: Int[Tensor, "N"]) -> Float[Tensor, "N D"]:
        """Positions 0 and 1 stand for the first and for all the others."""
        at = (letters < FIRST).long()[:, None]
        return self.net.embed((letters % FIRST)[:, None], at)[:, 0]

    def begin(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Nothing, or the input where it is not injected again."""
        return torch.zeros_like(x) if self.net.config.injection else x

    def step(self, left: Tensor, own: Tensor, x_left: Tensor, x_own: Tensor) -> Float[Tensor, "N D"]:
        """The second position of a row of two."""
        pair = torch.stack([self.net.inject(left, x_left), self.net.inject(own, x_own)], dim=1)
        return self.net.step(pair)[:, 1]

    def logits(self, h: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N V"], Float[Tensor, "V D"]]:
        """The read-out."""
        return self.net.readout(h), self.net.readout.weight

    def halting(self, h: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N"], Float[Tensor, "D"]] | None:
        """The end-of-question halting head."""
        head = self.net.halting_head
        return None if head is None else (head(h)[:, 0], head.weight[0])


def not_local(net: LoopedTransformer) -> str | None:
    """Why a model is no local rule of one position back, or None."""
    config = net.config
    if type(net.block) is not Block:
        return "it is not known what a block of your own reads"
    wide = [band for band in config.head_bands if band == 0 or band > 2]
    if wide:
        seen = "all positions" if 0 in wide else f"{max(wide)} positions"
        return f"{len(wide)} of its {config.heads} heads see {seen}"
    if config.layers > 1 or config.before:
        return f"its {config.layers + config.before} layers read more than one position back in a step"
    if config.relay or config.positions not in ("none", "start") or config.halting not in ("none", "eoq"):
        return "a relay, positions and a halting head that reads every position are not local"
    return None


@dataclass(frozen=True)
class Windows:
    """The words of a task, up to what their classes tell apart."""

    letters: Word  # tokens of a question
    eoq: int
    eos: int
    k: int  # tokens told apart at each end of a word
    most_pads: int | None  # `#` that a row has after the question; None: it grows with the length
    memory: Memory = "none"
    one: int = -1  # the token whose parity is remembered

    def class_of(self, word: Word) -> tuple[object, ...]:
        """A short word itself; of a long one its ends and its memory."""
        if len(word) < 2 * self.k:
            return word
        ones = sum(letter % FIRST == self.one for letter in word) % 2 if self.memory == "parity" else 0
        return word[: self.k], word[-self.k :], ones

    def shown(self, word: Word, task: Task) -> str:
        """A class as people read it: `0 1 … # #` has any tokens in between."""
        names = task.vocab.decode([letter % FIRST for letter in word])
        if len(word) >= 2 * self.k:
            names[self.k : -self.k] = ["…"]
        return ("(first) " if word[0] >= FIRST else "") + " ".join(names)

    def neighbourhoods(self) -> Iterator[Word]:
        """Words that stand for all: every pair of classes that a step reads is that of one of these.

        One token of each kind stands for what lies between the ends that are told apart; that gives every memory.
        """
        most = 2 * self.k + 2 if self.most_pads is None else self.most_pads
        tails: list[Word] = [(), (self.eoq,), *((self.eoq, *[self.eos] * b) for b in range(1, most + 1))]
        for tail in tails:
            seen = max(0, self.k + 1 - len(tail))  # tokens of the question among the last k + 1
            for size in range(self.k + 1 + seen + 2):
                free = min(size, self.k + 1 + seen)
                for ends in itertools.product(self.letters, repeat=free):
                    cut = free - seen
                    for middle in itertools.product(self.letters, repeat=size - free):
                        word = (*ends[:cut], *middle, *ends[cut:], *tail)
                        if len(word) > 1:
                            yield word
                        if size and self.eos not in word and len(word) > 1:
                            yield (word[0] + FIRST, *word[1:])
        yield from ((self.eos,) * size for size in range(2, most + 1))  # words of `#` alone

    def question(self, word: Word, fill: int) -> tuple[Word, int]:
        """A question that is read through the word, and at which place of the answer.

        The word of place b after n steps is the question without its first b tokens, here `fill`, then `>` and b `#`.
        """
        pads = word.count(self.eos)
        own = tuple(letter % FIRST for letter in word if letter not in (self.eoq, self.eos))
        return (fill,) * (pads - (pads == len(word))) + own, pads  # `#` alone: past the answer


@dataclass(frozen=True)
class Certificate:
    """What was shown, and what was not."""

    windows: Windows
    neighbourhoods: int
    trained: int  # of them, those that arise in questions of at most TRAINED tokens
    clusters: int
    radius: float
    spread: float  # the largest distance of a state from the nearest centre of its class
    safety: float  # the least distance of a centre from another reading, in radii; NaN: not computed
    broken: Break | None  # the class of a word, and why it fails


def windows_of(task: Task, k: int, memory: Memory = "none") -> Windows:
    """The words of a task in which any string of symbols is a question, and T(n) = n."""
    symbols = task.vocab.symbols
    for size in (1, 2, 3):
        for question in itertools.product(symbols, repeat=size):
            if task.measure(list(question))[0] != size or task.steps_of(list(question)) != size:
                raise InputError(f"{task.name} does not take one step for every token of a question")
    pads = [task.row_size(n) - n - 1 for n in (10, 20)]
    letters = tuple(task.vocab.encode(symbols))
    bounded = pads[0] if pads[0] == pads[1] else None
    return Windows(letters, task.vocab.eoq, task.vocab.eos, k, bounded, memory, letters[-1])


@torch.no_grad()
def certify(rule: LocalRule, task: Task, k: int = 3, radius: float = 1.0, rounds: int = 200) -> Certificate:
    """The certificate of a rule on a task, without a memory where that is enough."""
    found = _certify(rule, task, windows_of(task, k), radius, rounds)
    if found.broken and found.broken[1] == AMBIGUOUS:
        found = _certify(rule, task, windows_of(task, k, "parity"), radius, rounds)
    return found


def _certify(rule: LocalRule, task: Task, windows: Windows, radius: float, rounds: int) -> Certificate:
    graph = _Graph(rule, windows, radius)
    wanted, clash = graph.wanted(task)
    if clash is not None:
        return graph.certificate(float("nan"), (clash, AMBIGUOUS))
    endless, before = None, torch.zeros_like(graph.count)
    while endless is None and bool((graph.count > before).any()):
        endless = graph.close()
        before = graph.count.clone()
        endless = endless or graph.rows(3 * TRAINED) or graph.follow(rounds)
    if endless is not None:
        why = f"its states fill more than {MOST} clusters of radius {radius:g}"
        return graph.certificate(float("nan"), (endless, why))
    found = list(graph.margins(wanted))
    safety = min(float(margin.min()) for _, margin, _ in found if len(margin)) / radius
    return graph.certificate(safety, graph.first_break(found))


class _Graph:
    """Classes as numbers, and for every neighbourhood the classes that it reads and the one that it gives."""

    def __init__(self, rule: LocalRule, windows: Windows, radius: float) -> None:
        self.rule, self.windows, self.radius, self.spread = rule, windows, radius, 0.0
        self.words: list[Word] = []  # one for each class
        number: dict[tuple[object, ...], int] = {}

        def of(word: Word) -> int:
            key = windows.class_of(word)
            if key not in number:
                number[key] = len(self.words)
                self.words.append(word)
            return number[key]

        found: dict[tuple[int, int, int], Word] = {}
        for word in windows.neighbourhoods():
            found.setdefault((of(word[:-1]), of(word[1:]), of(word)), word)
        self.examples = list(found.values())
        self.left, self.own, self.to = torch.tensor(list(found)).T
        self.x_left = rule.embed(torch.tensor([word[-2] for word in self.examples]))
        self.x_own = rule.embed(torch.tensor([word[-1] for word in self.examples]))
        # The clusters of each class, its first one in column 0; far away where there is none.
        self.table = torch.full((len(self.words), MOST, self.x_own.shape[1]), 1e9, dtype=self.x_own.dtype)
        self.count = torch.tensor([int(len(word) == 1) for word in self.words])
        letters = rule.embed(torch.tensor([word[0] for word in self.words]))
        self.table[:, 0] = torch.where(self.count[:, None] > 0, rule.begin(letters), self.table[:, 0])

    def step(self, left: Tensor, own: Tensor, which: Int[Tensor, "M"]) -> Float[Tensor, "M D"]:
        """What some neighbourhoods give of the states they read."""
        parts = [
            self.rule.step(left[i], own[i], self.x_left[which[i]], self.x_own[which[i]])
            for i in torch.split(torch.arange(len(which)), BATCH)
        ]
        return torch.cat(parts) if parts else left

    def close(self) -> Word | None:
        """Try all pairs of clusters in every neighbourhood until no step leads anywhere new; or a word that goes on."""
        tried = torch.zeros_like(self.count)
        while bool((self.count > tried).any()):
            before = self.count.clone()
            for a, b in itertools.product(range(int(before.max())), repeat=2):
                left, own = before[self.left], before[self.own]
                new = (a >= tried[self.left]) | (b >= tried[self.own])
                which = ((a < left) & (b < own) & new).nonzero()[:, 0]
                i, j = self.left[which], self.own[which]
                given = self.step(self.table[i, a], self.table[j, b], which)
                if (full := self.assign(given, self.to[which])) is not None:
                    return full
            tried = before
        return None

    def rows(self, n: int) -> Word | None:
        """Take in the states of questions of n tokens, constant ones and random ones; or a word that goes on."""
        windows, numbers = self.windows, {self.windows.class_of(word): i for i, word in enumerate(self.words)}
        draw = random.Random(0)
        questions = [[letter] * n for letter in windows.letters]
        questions += [[draw.choice(windows.letters) for _ in range(n)] for _ in range(6)]
        pads = n + 2 if windows.most_pads is None else windows.most_pads
        for question in questions:
            row = (question[0] + FIRST, *question[1:], windows.eoq, *[windows.eos] * pads)
            x = self.rule.embed(torch.tensor(row))
            h = self.rule.begin(x)
            for t in range(1, n + 1):
                h, x = self.rule.step(h[:-1], h[1:], x[:-1], x[1:]), x[1:]
                to = [numbers[windows.class_of(row[i - t : i + 1])] for i in range(t, len(row))]
                if (full := self.assign(h, torch.tensor(to))) is not None:
                    return full
        return None

    def follow(self, rounds: int, histories: int = 8) -> Word | None:
        """Let the words of every class grow by a token a round, each along several histories; or a word that goes on.

        Half of the histories take the same neighbourhood in every round, half a random one.
        """
        draw = torch.Generator().manual_seed(0)
        long = torch.tensor([len(word) >= 2 * self.windows.k for word in self.words])
        inner = (long[self.left] & long[self.own]).nonzero()[:, 0]  # words that have grown already
        inner = inner[self.to[inner].argsort(stable=True)]
        classes, sizes = self.to[inner].unique_consecutive(return_counts=True)
        starts = sizes.cumsum(0) - sizes
        states = self.table[:, 0, None].repeat(1, histories, 1)
        ways = torch.rand(len(classes), histories, generator=draw)
        ways[:, 0], ways[:, 1] = 0.0, 0.999
        column = torch.arange(histories).expand(len(classes), -1)
        for _ in range(rounds if len(classes) else 0):
            ways[:, histories // 2 :] = torch.rand(len(classes), histories - histories // 2, generator=draw)
            which = inner[starts[:, None] + (ways * sizes[:, None]).long()]
            left, own = states[self.left[which], column], states[self.own[which], column]
            given = self.step(left.flatten(0, 1), own.flatten(0, 1), which.flatten())
            if (full := self.assign(given, self.to[which.flatten()])) is not None:
                return full
            states[classes] = given.view(-1, histories, given.shape[-1])
        return None

    def assign(self, given: Float[Tensor, "M D"], to: Int[Tensor, "M"]) -> Word | None:
        """Make what is farther than the radius from every cluster of its class a new one; or a word with too many."""
        rest = given
        while True:
            off = (rest[:, None] - self.table[to, : int(self.count.max())]).norm(dim=-1).amin(1)
            near = off <= self.radius
            self.spread = max(self.spread, float(off[near].max()) if near.any() else 0.0)
            rest, to = rest[~near], to[~near]
            if not len(rest):
                return None
            first = torch.full_like(self.count, len(to)).scatter_reduce(0, to, torch.arange(len(to)), "amin")
            first = first[first < len(to)]
            if not bool(rest[first].isfinite().all()) or int(self.count[to[first]].max()) == MOST:
                return self.words[int(to[first][self.count[to[first]].argmax()])]
            self.table[to[first], self.count[to[first]]] = rest[first]
            self.count[to[first]] += 1

    def wanted(self, task: Task) -> tuple[Int[Tensor, "C"], Word | None]:
        """The token that a class has to be read as, -1 where it is not read; and a word of a class that has two."""
        windows, wanted = self.windows, [-1] * len(self.words)
        for word, to in zip(self.examples, self.to.tolist(), strict=True):
            first, last = word[0] >= FIRST, word[-1]
            if not ((first and last == windows.eoq) or last == windows.eos):
                continue
            for fill in windows.letters if last == windows.eos else windows.letters[:1]:
                question, place = windows.question(word, fill)
                if not question or len(question) + place >= task.row_size(len(question)):
                    continue
                answer = task.vocab.encode(task.solve(task.vocab.decode(question)))
                token = answer[place] if place < len(answer) else windows.eos
                if wanted[to] not in (-1, token):
                    return torch.tensor(wanted), word
                wanted[to] = token
        return torch.tensor(wanted), None

    def margins(self, wanted: Int[Tensor, "C"]) -> Iterator[tuple[Int[Tensor, "M"], Float[Tensor, "M"], str]]:
        """The classes of clusters that must do something, their centres' distance from not doing it, and what it is."""
        classes, column = (torch.arange(MOST) < self.count[:, None]).nonzero().T
        centres = self.table[classes, column]
        logits, weight = self.rule.logits(centres)
        right = wanted[classes].clamp(min=0)
        gap = logits.gather(1, right[:, None]) - logits
        apart = (weight[right][:, None] - weight[None]).norm(dim=-1)
        distance = (gap / apart).scatter(1, right[:, None], float("inf")).amin(1)
        read = wanted[classes] >= 0
        yield classes[read], distance[read], "be read as the right token"
        halting = self.rule.halting(centres)
        if halting is not None:
            toward = halting[0] / halting[1].norm()
            last = torch.tensor([len(word) > 1 and word[-1] == self.windows.eoq for word in self.words])
            first = torch.tensor([word[0] >= FIRST for word in self.words])
            for ends, sign, what in ((last & first, 1, "halt"), (last & ~first, -1, "not halt yet")):
                yield classes[ends[classes]], sign * toward[ends[classes]], what

    def first_break(self, found: Sequence[tuple[Tensor, Tensor, str]]) -> Break | None:
        """The shortest word whose class fails, or may fail within the radius."""
        broken = []
        for classes, margin, what in found:
            for number, near in zip(classes.tolist(), margin.tolist(), strict=True):
                if near <= self.radius:
                    word = self.words[number]
                    how = "does not" if near <= 0 else f"does so only up to {near:.2g} from a centre"
                    broken.append((near > 0, len(word), word, f"it has to {what} and {how}"))
        return min(broken)[2:] if broken else None

    def certificate(self, safety: float, broken: Break | None) -> Certificate:
        """What was shown, in numbers."""
        ends = (self.windows.eoq, self.windows.eos)
        trained = sum(len(word) - (word[-1] in ends) <= TRAINED for word in self.examples)
        sizes = len(self.examples), trained, int(self.count.sum())
        return Certificate(self.windows, *sizes, self.radius, self.spread, safety, broken)
