"""Rows of results: every method, every rule, the same problems whatever else is measured, clear refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from looped import methods
from looped.errors import InputError
from looped.evaluation import measure as measuring
from looped.evaluation import rollout as grids
from looped.evaluation import stopping
from looped.evaluation.measure import Row, Subject, draw_batches, length_grid, measure
from looped.tasks import LONGEST

MakeSubject = Callable[..., Subject]
ALL_RULES = tuple(
    name for name in stopping.RULES if not name.startswith("halt")
)  # which need a model that says


def lucky(who: Subject) -> Subject:
    """The same with 60 seeds: some untrained models answer one-bit questions right."""
    seeds = tuple(range(60))
    return replace(who, weights=who.model.prepare(who.model.layout.initialise(list(seeds))), seeds=seeds)


def test_rows_are_in_order_and_complete(subject: MakeSubject) -> None:
    heard: list[list[Row]] = []
    rows = measure(subject(), [2, 4], 10, seed=0, stops=ALL_RULES, on_progress=heard.append)
    key = [(row.length, row.stop, row.seed) for row in rows]
    assert key == [(length, stop, seed) for length in (2, 4) for stop in ALL_RULES for seed in (3, 4)]
    assert [len(part) for part in heard] == [12, 12]
    assert [row for part in heard for row in part] == rows


def test_a_row_has_the_fields_of_result_files(subject: MakeSubject) -> None:
    row, _ = measure(subject(), [2], 10, seed=0)
    assert row.as_dict() == {
        "task": "copy", "method": "fop-loop-adaptive", "recipe": "quick", "seed": 3, "length": 2,
        "stop": "oracle", "accuracy": 0.0, "samples": 10, "mean_steps": 2.0,
    }  # fmt: skip
    other, _ = measure(subject(), [2], 10, seed=0, family="ones")
    assert other.as_dict() == row.as_dict() | {"family": "ones"}


@pytest.mark.parametrize("rule", ALL_RULES)
def test_accuracy_and_steps_are_those_of_the_grid(rule: str, subject: MakeSubject) -> None:
    who = lucky(subject("parity"))
    rows = measure(who, [1], 40, seed=5, stops=(rule,))
    (batch,) = draw_batches(who, 1, 40, seed=5)
    grid = grids.unroll_grid(who.model, who.weights, batch, 2, motion=True)
    steps = stopping.get(rule).steps(grid)
    assert [row.accuracy for row in rows] == grids.accuracy(grid, steps).tolist()
    assert [row.mean_steps for row in rows] == steps.double().mean(1).tolist()
    assert len({row.accuracy for row in rows}) > 2, "some seeds must be right, or the test says nothing"


def test_next_token_accuracy_is_that_of_the_decoded_answers(subject: MakeSubject) -> None:
    who = lucky(subject("parity", "ntp"))
    rows = measure(who, [1], 10, seed=5)
    (batch,) = draw_batches(who, 1, 10, seed=5)
    vocab = who.task.vocab
    for s, row in enumerate(rows):
        right = 0
        for tokens in batch.tokens.tolist():
            fed = tokens[:2]  # the bit and `>`
            while len(fed) < 4 and vocab.eos not in fed[2:]:
                line = torch.tensor(fed).expand(60, 1, -1)
                *_, h = who.model.unroll(who.weights, line, 1)
                fed.append(int(who.model.readout(who.weights, h)[s, 0, -1].argmax()))
            right += fed[2:] == [tokens[0], vocab.eos]  # the parity of one bit is the bit
        assert row.accuracy == right / 10
    assert len({row.accuracy for row in rows}) > 1


@pytest.mark.parametrize("task", ["copy", "multiplication"])
@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_is_measured_with_its_own_steps(name: str, task: str, subject: MakeSubject) -> None:
    who = subject(task, name)
    rows = measure(who, [3, 7], 6, seed=0)
    method = methods.get(name)
    per_digit = who.task.variants  # a two-bit first factor doubles T
    fixed = method.loops if method.loops is not None else 5 * per_digit
    expected = {n: n * per_digit if method.adaptive else fixed for n in (3, 7)}
    assert [(row.length, row.stop, row.mean_steps) for row in rows] == [
        (n, "oracle", expected[n]) for n in (3, 3, 7, 7)
    ]


def test_the_last_variant_is_tested_in_rows_of_the_tasks_size(subject: MakeSubject) -> None:
    who = subject("multiplication", "fop-pause")
    (batch,) = draw_batches(who, 3, 8, seed=0)
    times = who.task.vocab.id("×")
    assert batch.tokens.shape == (8, who.task.row_size(3) + 20)
    assert bool((batch.tokens[:, 2] == times).all())


def test_problems_do_not_depend_on_what_else_is_measured(subject: MakeSubject) -> None:
    who = lucky(subject("parity"))
    alone, among = measure(who, [1], 30, seed=1), measure(who, [3, 1, 2], 30, seed=1)
    assert [row for row in among if row.length == 1] == alone
    (one,), (two,), (other,) = (draw_batches(who, 2, 30, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.tokens, two.tokens)
    assert not torch.equal(one.tokens, other.tokens)


def test_many_samples_are_drawn_in_portions(subject: MakeSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    who = subject("parity")
    monkeypatch.setattr(measuring, "DRAWN_AT_ONCE", 7)
    parts = list(draw_batches(who, 4, 17, seed=0))
    assert [len(part.steps) for part in parts] == [7, 7, 3]
    assert not torch.equal(parts[0].tokens, parts[1].tokens)
    grid = length_grid(who, 4, 17, seed=0, max_steps=3)
    assert grid.correct.shape == (2, 3, 17)


def test_no_more_steps_are_run_than_anybody_looks_at(
    subject: MakeSubject, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = subject()
    count = 0
    step = who.model.step

    def counted(weights: object, u: torch.Tensor, caches: object = None) -> torch.Tensor:
        nonlocal count
        count += 1
        return step(weights, u, caches)  # type: ignore[arg-type]

    monkeypatch.setattr(who.model, "step", counted)
    for stops, max_steps, expected in [
        (("oracle",), None, 4),
        (("oracle",), 30, 4),
        (("oracle", "confidence"), None, 8),
        (("confidence",), 5, 5),
        (("threshold",), 2, 2),
    ]:
        count = 0
        rules = [stopping.get(name) for name in stops]
        measuring.measure_length(who, 4, 5, seed=0, rules=rules, max_steps=max_steps)
        assert count == expected


REFUSALS = [
    ({"lengths": [0]}, "length must be between 1 and"),
    ({"lengths": [3, LONGEST + 1]}, "length must be between 1 and"),
    ({"lengths": []}, "at least one length"),
    ({"stops": ()}, "at least one length and one stopping rule"),
    ({"stops": ("oracle", "patience")}, "unknown stopping rule 'patience'"),
    ({"samples": 0}, "samples must be at least 1, not 0"),
    ({"family": "primes"}, "copy has no input distribution 'primes'"),
]


@pytest.mark.parametrize(("changes", "complaint"), REFUSALS)
def test_what_cannot_be_had_is_refused_at_once(
    changes: dict[str, object], complaint: str, subject: MakeSubject
) -> None:
    asked: dict[str, object] = {"lengths": [3], "samples": 5, "seed": 0} | changes
    with pytest.raises(InputError, match=complaint):
        measure(subject(), **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [m.name for m in methods.METHODS.values() if not m.adaptive])
def test_a_method_of_fixed_depth_takes_only_the_oracle(name: str, subject: MakeSubject) -> None:
    with pytest.raises(InputError, match=f"{name} has a fixed depth and no steps for confidence"):
        measure(subject("copy", name), [3], 5, seed=0, stops=("oracle", "confidence"))


def test_a_next_token_method_has_no_grid(subject: MakeSubject) -> None:
    with pytest.raises(InputError, match="decodes token by token and has no step grid"):
        length_grid(subject("copy", "ntp-loop"), 3, 5, seed=0, max_steps=20)


@pytest.mark.parametrize("kind", ["learned", "randomised"])
def test_a_position_table_bounds_the_lengths(kind: str, subject: MakeSubject) -> None:
    who = subject("copy", "fop-loop-adaptive", positions=kind, max_positions=16)
    assert measure(who, [6], 2, seed=0)
    heard: list[list[Row]] = []
    with pytest.raises(InputError, match="rows of 18 tokens are longer than this model's table of 16"):
        measure(who, [6, 7], 2, seed=0, on_progress=heard.append)
    assert heard == []
