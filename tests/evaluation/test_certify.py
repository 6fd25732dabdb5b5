"""Certificates: what can arise is enumerated exactly; toy automata with a known closure; the shipped models."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import looped
from looped import tasks
from looped.batches import lay_out
from looped.cli import verify as command
from looped.errors import InputError
from looped.evaluation.certify import AMBIGUOUS, FIRST, LocalRule, Windows, Word, certify, windows_of
from looped.model import LoopedTransformer, ModelConfig

Cli = Callable[..., tuple[int, str, str]]
COPY, PARITY = tasks.get("copy"), tasks.get("parity")


def triples(windows: Windows, word: Word) -> tuple[object, object, object]:
    return windows.class_of(word[:-1]), windows.class_of(word[1:]), windows.class_of(word)


@pytest.mark.parametrize(("task", "memory"), [("copy", "none"), ("parity", "parity"), ("parity", "none")])
def test_the_neighbourhoods_are_those_that_arise_in_questions(task: str, memory: str) -> None:
    windows = replace(windows_of(tasks.get(task), k=2), memory=memory)  # type: ignore[arg-type]
    arise = set()
    for n in range(1, 10):
        size = tasks.get(task).row_size(n)
        for bits in itertools.product((0, 1), repeat=n):
            row = (bits[0] + FIRST, *bits[1:], windows.eoq, *[windows.eos] * (size - n - 1))
            for t in range(1, n + 1):  # what can be read before or when the model halts
                words = (row[i - t : i + 1] for i in range(t, size))
                arise |= {triples(windows, word) for word in words}
    assert {triples(windows, word) for word in windows.neighbourhoods()} == arise


def test_a_word_is_what_a_position_has_seen() -> None:
    config = ModelConfig(
        vocab=5, layers=1, heads=2, width=16, bands=(2, 2), positions="start", init_std=0.4, halting="eoq"
    )
    net = LoopedTransformer.from_seed(config, seed=1)
    rule, row = LocalRule(net), [FIRST + 1, 0, 0, 1, 2, 3, 3, 3]

    def reached(word: list[int]) -> Tensor:
        x = rule.embed(torch.tensor(word))
        if len(word) == 1:
            return rule.begin(x)
        return rule.step(reached(word[:-1]), reached(word[1:]), x[-2:-1], x[-1:])

    states = list(net.unroll(torch.tensor([[each % FIRST for each in row]]), 4))
    for t, i in [(1, 1), (2, 2), (4, 4), (3, 6), (4, 7)]:
        assert torch.allclose(reached(row[i - t : i + 1])[0], states[t - 1][0, i], atol=1e-5)


class Shift(LocalRule):
    """Moves tokens one position a step, multiplied by a number; the read-out takes faint ones for `#`."""

    def __init__(self, times: float = 1.0, flip: bool = False) -> None:
        self.times, self.flip = times, flip

    def embed(self, letters: Tensor) -> Tensor:
        return 4.0 * F.one_hot(letters % FIRST, 4)

    def begin(self, x: Tensor) -> Tensor:
        return x

    def step(self, left: Tensor, own: Tensor, x_left: Tensor, x_own: Tensor) -> Tensor:
        return self.times * (left.roll(1, 1) if self.flip else left)

    def logits(self, h: Tensor) -> tuple[Tensor, Tensor]:
        weight = torch.eye(4)
        weight[2], weight[3] = torch.zeros(4), torch.tensor([0.0, 0.0, 1.0, 1.0])  # `>` is read as `#`
        return h @ weight.T + torch.tensor([0.0, 0.0, 0.0, 1.0]), weight

    def halting(self, h: Tensor) -> None:
        return None


def test_a_shift_is_closed() -> None:
    found = certify(Shift(), COPY, k=2, rounds=20)
    windows = found.windows
    assert found.broken is None
    classes = {
        windows.class_of(part) for word in windows.neighbourhoods() for part in (word, word[1:], word[:-1])
    }
    assert found.clusters == len(classes), "the state is the word's first token: one cluster a class"
    assert found.spread == 0
    assert found.trained == found.neighbourhoods
    assert found.safety == pytest.approx(3**0.5)  # bits have the logit 4, `#` has 1


def test_a_fading_shift_breaks_in_long_words_only() -> None:
    found = certify(Shift(0.99), COPY, k=2, radius=0.25, rounds=200)  # 4 · .99^t is below 1 from step 138 on
    assert found.broken is not None
    assert found.broken[1].startswith("it has to be read as the right token and does not")
    assert found.broken[0][0] % FIRST in (0, 1)
    short = certify(Shift(0.99), COPY, k=2, radius=0.25, rounds=20)
    assert short.broken is None, "growth by twenty tokens does not show it"


def test_a_growing_shift_has_no_finite_clusters() -> None:
    found = certify(Shift(1.05), COPY, k=2, rounds=400)
    assert found.broken is not None
    assert "more than 64 clusters" in found.broken[1]


def test_another_rule_than_the_tasks_breaks_at_once() -> None:
    found = certify(Shift(flip=True), COPY, k=2, rounds=5)
    assert found.broken is not None
    assert len(found.broken[0]) == 2


def test_parity_needs_a_memory() -> None:
    found = certify(Shift(), PARITY, k=2, rounds=5)
    assert found.windows.memory == "parity"
    assert found.broken is not None
    assert found.broken[1] != AMBIGUOUS


@pytest.mark.parametrize("name", ["parity-long", "copy-long"])
def test_shipped_models_are_certified(name: str) -> None:
    solver = looped.load(name)
    found = certify(LocalRule(solver.net), solver.task, k=2, rounds=60)
    assert found.broken is None
    assert found.safety > 2


def test_states_of_long_rows_lie_in_the_clusters_of_copy() -> None:
    """Also those that a question of at most 20 tokens does not have: `0 > # … #` moves on for 40 steps."""
    from looped.evaluation.certify import _Graph

    solver, n = looped.load("copy-long"), 80
    windows = windows_of(COPY, k=2)
    graph = _Graph(LocalRule(solver.net), windows, radius=1.0)
    with torch.no_grad():
        assert graph.close() is None
        assert graph.rows(60) is None
        numbers = {windows.class_of(word): i for i, word in enumerate(graph.words)}
        questions = [["0"] * n, ["0", "1"] * (n // 2), ["1"] + ["0"] * (n - 1), ["0"] * (n - 1) + ["1"]]
        batch = lay_out(COPY.problems(questions), COPY.vocab, COPY.row_size(n))
        farthest = 0.0
        for t, h in enumerate(solver.net.unroll(batch.tokens, n), 1):
            for tokens, row in zip(batch.tokens.tolist(), h, strict=True):
                letters = (tokens[0] + FIRST, *tokens[1:])
                classes = [numbers[windows.class_of(letters[i - t : i + 1])] for i in range(t, 2 * n)]
                off = (row[t : 2 * n, None] - graph.table[classes]).norm(dim=-1).amin(1)
                farthest = max(farthest, float(off.max()))
    assert 0.5 < farthest < 1.2, "what is farther than the radius is well within twice the radius"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bands": (2,)}, "1 of its 2 heads see all positions"),
        ({"bands": (2, 3)}, "1 of its 2 heads see 3 positions"),
        ({"layers": 2}, "2 layers"),
        ({"positions": "rotary"}, "not local"),
    ],
)
def test_what_is_not_local_is_refused(changes: dict[str, object], reason: str) -> None:
    config = ModelConfig(**{"vocab": 5, "layers": 1, "heads": 2, "width": 16, "bands": (2, 2), **changes})
    with pytest.raises(InputError, match=reason):
        LocalRule(LoopedTransformer(config))
    with pytest.raises(InputError, match="a block of your own"):
        LocalRule(LoopedTransformer(config, lambda _: torch.nn.Identity()))


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_certifies_and_checks(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LONGEST", 40)
    status, out, _ = cli("certify", "parity-long", "--window", "2", "--growth", "30", "--check", "2")
    assert status == 0
    assert "507 neighbourhoods can arise at any length; all of them" in out
    assert "parity-long: certified for parity at every length" in out
    assert "0 of 2 random questions answered wrong" in out


def test_the_command_names_the_break(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(looped.load("parity-long"), task=COPY)
    monkeypatch.setattr(command, "load", lambda _: wrong)
    status, out, _ = cli("certify", "wrong", "--window", "2", "--growth", "30", "--json")
    told = json.loads(out)
    assert status == 1
    assert told["certified"] is False
    assert told["broken"]["why"].startswith("it has to")
    assert told["broken"]["neighbourhood"]
    assert len(told["wrong"]) > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["addition-long"], "2 of its 4 heads see all positions"),
        (["parity-long", "--task", "copy"], "is a model for parity, not for copy"),
        (["parity-long", "--window", "9"], "--window must be from 1 to 6"),
    ],
)
def test_bad_words_are_one_sentence(cli: Cli, words: list[str], sentence: str) -> None:
    status, _, err = cli("certify", *words)
    assert (status, err.count("\n")) == (2, 1)
    assert sentence in err
