"""The input families: each is what its name says, and right by the oracle."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from looped import InputError
from looped.tasks import TASKS, Problems, Task
from looped.tasks.distributions import probability

Agree = Callable[[Task, Problems, int], list[list[str]]]
EVERY = [(name, family) for name, task in TASKS.items() for family in task.families]


def draw(name: str, family: str, length: int, count: int) -> Problems:
    g = torch.Generator().manual_seed(5)
    return TASKS[name].sample(torch.full((count,), length), g, max_length=length, family=family)


def typed(name: str, family: str, length: int = 12, count: int = 200) -> list[str]:
    task, problems = TASKS[name], draw(name, family, length, count)
    rows = problems.question[:, : int(problems.question_length[0])].tolist()
    return [task.format_question(task.vocab.decode(row)) for row in rows]


@pytest.mark.parametrize(("name", "family"), EVERY)
def test_every_family_agrees_with_the_oracle(name: str, family: str, agree: Agree) -> None:
    g = torch.Generator().manual_seed(1)
    lengths = torch.arange(1, 65)
    agree(TASKS[name], TASKS[name].sample(lengths, g, max_length=64, family=family), 64)
    agree(TASKS[name], draw(name, family, 2000, 2), 2000)


@pytest.mark.parametrize("name", ["parity", "copy", "binary_sum"])
def test_families_of_one_bit_string(name: str) -> None:
    assert set(typed(name, "zeros")) == {"0" * 12}
    assert set(typed(name, "ones")) == {"1" * 12}
    assert set(typed(name, "repeated")) == {"0" * 12, "1" * 12}
    assert set(typed(name, "p=0")) == {"0" * 12}
    assert set(typed(name, "p=1")) == {"1" * 12}


@pytest.mark.parametrize("p", [0.05, 0.2, 0.5, 0.8, 0.95])
def test_the_share_of_ones(p: float) -> None:
    for name in ("parity", "addition"):
        digits = "".join(typed(name, f"p={p}", length=50, count=1000)).replace("+", "")
        assert digits.count("1") / len(digits) == pytest.approx(p, abs=0.01)


def test_mixed_questions_have_shares_from_none_to_all() -> None:
    for name in ("parity", "addition", "multiplication"):
        rows = [q.split("*")[-1].split("+")[-1] for q in typed(name, "mixed", length=100, count=1000)]
        tenths = [min(9, row.count("1") // 10) for row in rows]
        assert all(60 < tenths.count(i) < 140 for i in range(10)), "every share is equally likely"
    symbols = [len(set(q.split())) for q in typed("unique_set", "mixed", length=500, count=1000)]
    assert all(140 < sum(10 * i < n <= 10 * i + 10 for n in symbols) < 260 for i in range(5))
    assert len({q.split()[0] for q in typed("unique_set", "mixed", length=1, count=1000)}) == 50


def test_a_carry_travels_the_whole_length_of_an_addition() -> None:
    pairs = [q.split("+") for q in typed("addition", "carry")]
    assert len(set(map(tuple, pairs))) > 20
    for x, y in pairs:
        assert (x[-1], y[-1]) == ("1", "1")
        assert all({a, b} == {"0", "1"} for a, b in zip(x[:-1], y[:-1], strict=True))
        assert int(x, 2) + int(y, 2) == 2**12
    assert any(x == "1" * 12 for x, _ in pairs)
    for x, y in (q.split("+") for q in typed("addition", "no-carry")):
        assert int(x, 2) + int(y, 2) == 2**12 - 1


def carries(x: int, y: int) -> str:
    """The carries into each place of x + y, most significant first."""
    return f"{(x + y) ^ x ^ y:b}"


def test_a_carry_travels_the_whole_length_of_a_multiplication() -> None:
    for n in (4, 7, 12):
        for question in typed("multiplication", "carry", length=n, count=3):
            first, second = question.split("*")
            assert first == "11"
            b = int(second, 2)
            run = carries(b, 2 * b).rstrip("0")
            assert set(run) == {"1"}
            assert len(run) >= n - 1
            assert all(bit != below for bit, below in pairwise(second[:-1]))
    for question in typed("multiplication", "no-carry"):
        b = int(question.split("*")[1], 2)
        assert carries(b, 2 * b) == "0"


def test_families_of_the_unique_set() -> None:
    assert all(len(set(q.split())) == 1 for q in typed("unique_set", "repeated"))
    assert len(set(typed("unique_set", "repeated"))) > 20
    few = {len(set(q.split())) for q in typed("unique_set", "few")}
    assert max(few) == 3
    assert all(len(set(q.split())) == 12 for q in typed("unique_set", "distinct"))
    assert all(len(set(q.split())) == 50 for q in typed("unique_set", "distinct", length=120, count=20))


def test_several_families_are_drawn_evenly(agree: Agree) -> None:
    counts = [typed("parity", "zeros+ones+p=1", count=3000).count(bit * 12) for bit in "01"]
    assert 900 < counts[0] < 1100
    assert counts[1] == 3000 - counts[0]
    for question in typed("addition", "carry+zeros"):
        first, second = question.split("+")
        assert {first, second} == {"0" * 12} or len(bin(int(first, 2) + int(second, 2))) == 2 + 13
    assert {len(set(q.split())) for q in typed("unique_set", "repeated+distinct")} == {1, 12}
    for name, family in [("multiplication", "mixed+carry+no-carry"), ("unique_set", "mixed+few")]:
        agree(TASKS[name], draw(name, family, 20, 64), 20)


def test_one_family_draws_what_it_always_drew() -> None:
    g = torch.Generator().manual_seed(5)
    assert torch.equal(draw("copy", "uniform", 9, 7).question, torch.randint(0, 2, (7, 9), generator=g))


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(
    "family",
    ["", "gauss", "p=", "p=1.5", "p=-0.1", "p=nan", "p=one", "p", "Zeros", "uniform+", "+", "uniform+gauss"],
)
def test_unknown_families_are_refused(name: str, family: str) -> None:
    with pytest.raises(InputError, match=f"^{name} has no input distribution .*; it has uniform, "):
        TASKS[name].sample(torch.tensor([3]), torch.Generator(), max_length=3, family=family)


def test_families_belong_to_their_tasks() -> None:
    for name, family in [
        ("unique_set", "p=0.5"),
        ("unique_set", "ones"),
        ("parity", "carry"),
        ("copy", "few"),
    ]:
        with pytest.raises(InputError, match="has no input distribution"):
            TASKS[name].check_family(family)


def test_probability() -> None:
    assert [probability(text) for text in ("p=0.3", "p=1", "p=0", "0.3", "p=2")] == [
        0.3,
        1.0,
        0.0,
        None,
        None,
    ]
