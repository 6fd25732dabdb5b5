"""Rules for loop steps: what they give, what they refuse, and that their bounds hold for every task."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped import methods, tasks
from looped.errors import InputError

RULES = ["T", "T+1", "2T", "T/2", "16", "q", "2q", "3q/2", "q..2q", "2q..3q", "T..2T", "2T..5T"]


@pytest.mark.parametrize(
    ("rule", "first", "last"),
    [
        ("T", [1, 4, 5], [1, 4, 5]),
        ("T+1", [2, 5, 6], [2, 5, 6]),
        ("2T", [2, 8, 10], [2, 8, 10]),
        ("T/2", [1, 2, 3], [1, 2, 3]),  # rounded up: nobody loops less than once
        ("16", [16, 16, 16], [16, 16, 16]),
        ("q", [3, 9, 11], [3, 9, 11]),
        ("2q", [6, 18, 22], [6, 18, 22]),
        ("3q/2", [5, 14, 17], [5, 14, 17]),  # rounded up: every token of question and answer
        ("q..2q", [3, 9, 11], [6, 18, 22]),
        ("T..3T", [1, 4, 5], [3, 12, 15]),
    ],
)
def test_steps_by_hand(rule: str, first: list[int], last: list[int]) -> None:
    own, tokens = torch.tensor([1, 4, 5]), torch.tensor([3, 9, 11])  # additions of 1, 4 and 5 digits
    made = methods.parse_loops(rule)
    assert made.first(own, tokens).tolist() == first
    assert made.last(own, tokens).tolist() == last
    assert made.plain == (rule == "T")


def test_a_range_is_drawn_evenly_and_the_rest_draws_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    own, tokens = torch.full((4000,), 5), torch.full((4000,), 4)
    drawn = methods.parse_loops("q..2q").draw(own, tokens, generator)
    share = torch.bincount(drawn, minlength=9) / 4000
    assert drawn.min() == 4
    assert drawn.max() == 8
    assert share[4:].tolist() == pytest.approx([0.2] * 5, abs=0.03)
    before = generator.get_state()
    assert methods.parse_loops("2T").draw(own, tokens, generator).tolist() == [10] * 4000
    assert torch.equal(before, generator.get_state())


@settings(max_examples=60)
@given(st.sampled_from(sorted(tasks.TASKS)), st.sampled_from(RULES), st.integers(1, 12), st.integers(0, 5))
def test_bounds_hold(name: str, text: str, shortest: int, more: int) -> None:
    task, rule = tasks.get(name), methods.parse_loops(text)
    longest = shortest + more
    for variant in range(task.variants):
        variants = torch.full((64,), variant)
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(shortest, longest + 1, (64,), generator=generator)
        problems = task.sample(lengths, generator, max_length=longest, variants=variants)
        ends = torch.tensor([shortest, longest])
        low, high = rule.bounds(task, task.steps(ends, torch.full_like(ends, variant)), longest)
        drawn = rule.draw(problems.steps, problems.question_length, generator)
        assert low <= int(drawn.min()) <= int(drawn.max()) <= high


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n",
        "0",
        "-1",
        "5000",
        "T-1",
        "0T",
        "T/0",
        "q+1",
        "q/0",
        "2q..2q",
        "3T..2T",
        "q..2T",
        "T..2q",
        "qq",
        "1" * 99,
        "000001" + "9" * 20,
    ],
)
def test_what_is_no_rule_is_told_what_is_one(text: str) -> None:
    with pytest.raises(InputError, match=r"told as T, T\+1, 2T"):
        methods.parse_loops(text)
