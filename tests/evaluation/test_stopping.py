"""Every stopping rule on hand-made grids: surprise or change at six steps, and the step it must choose."""

from __future__ import annotations

import pytest
import torch

from looped.errors import InputError
from looped.evaluation import stopping
from looped.evaluation.rollout import StepGrid, accuracy
from looped.evaluation.stopping import OnlineRule, Present

Y, N = True, False  # the answer changed at this step, or not


def grid_of(
    surprise: list[list[float]],
    changed: list[list[bool]] | None = None,
    needed: list[int] | None = None,
    correct: list[list[bool]] | None = None,
) -> StepGrid:
    """A grid of one seed from one row per example, a number per step."""
    s = torch.tensor(surprise).T[None]
    flags = torch.ones_like(s, dtype=torch.bool) if changed is None else torch.tensor(changed).T[None]
    right = torch.zeros_like(s, dtype=torch.bool) if correct is None else torch.tensor(correct).T[None]
    return StepGrid(right, s, flags, torch.tensor(needed or [1] * len(surprise)))


FLAT = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
FALLING = [0.9, 0.5, 0.2, 0.008, 0.004, 0.0005]
DIP = [0.9, 0.005, 0.7, 0.001, 0.8, 0.9]
TIE = [0.9, 0.3, 0.1, 0.2, 0.1, 0.4]
ALWAYS, NEVER = [Y, Y, Y, Y, Y, Y], [Y, N, N, N, N, N]
SETTLES, LATE, RELAPSES = [Y, Y, N, N, N, Y], [Y, Y, Y, Y, N, N], [Y, N, N, Y, N, N]

SURPRISE_CASES = [
    # rule, surprise over six steps, the step it must choose
    ("confidence", FLAT, 1),
    ("confidence", FALLING, 6),
    ("confidence", DIP, 4),
    ("confidence", TIE, 3),
    ("confidence=0.5", TIE, 5),  # of steps 4 to 6
    ("confidence=0.7", DIP, 5),
    ("confidence=0.99", FALLING, 6),  # the last is always there
    ("confidence=0", DIP, 4),
    ("confidence-batch=0.5", TIE, 5),
    ("threshold", FLAT, 6),  # never under it: the last step
    ("threshold", FALLING, 4),
    ("threshold", DIP, 2),
    ("threshold=0.01", DIP, 2),
    ("threshold=0.004", DIP, 4),
    ("threshold=0.004", FALLING, 6),  # .004 itself is not below .004
    ("threshold=1", FLAT, 1),
    ("threshold=1e-9", FALLING, 6),
]
CHANGE_CASES = [
    # rule, whether the answer changed at each of six steps, the step it must choose
    ("converged", ALWAYS, 6),
    ("converged", NEVER, 4),
    ("converged", SETTLES, 5),
    ("converged", LATE, 6),  # only twice unchanged: the last step
    ("converged", RELAPSES, 6),
    ("converged=3", SETTLES, 5),
    ("converged=1", NEVER, 2),
    ("converged=1", ALWAYS, 6),
    ("converged=2", RELAPSES, 3),
    ("converged=2", LATE, 6),
    ("converged=5", NEVER, 6),
    ("converged=9", NEVER, 6),
]


@pytest.mark.parametrize(("rule", "surprise", "step"), SURPRISE_CASES)
def test_rules_on_surprise(rule: str, surprise: list[float], step: int) -> None:
    assert stopping.get(rule).steps(grid_of([surprise])).tolist() == [[step]]


@pytest.mark.parametrize(("rule", "changed", "step"), CHANGE_CASES)
def test_rules_on_change(rule: str, changed: list[bool], step: int) -> None:
    assert stopping.get(rule).steps(grid_of([FLAT], [changed])).tolist() == [[step]]


def test_rules_decide_for_each_example_and_seed_by_itself() -> None:
    grid = grid_of([FALLING, DIP, TIE], [NEVER, SETTLES, ALWAYS], needed=[2, 5, 6])
    two = StepGrid(
        torch.cat([grid.correct] * 2),
        torch.cat([grid.surprise, grid.surprise.flip(2)]),
        torch.cat([grid.changed, grid.changed.flip(2)]),
        grid.needed,
    )
    assert stopping.get("confidence").steps(two).tolist() == [[6, 4, 3], [3, 4, 6]]
    assert stopping.get("threshold").steps(two).tolist() == [[4, 2, 6], [6, 2, 4]]
    assert stopping.get("converged").steps(two).tolist() == [[4, 5, 6], [6, 5, 4]]
    assert stopping.get("oracle").steps(two).tolist() == [[2, 5, 6], [2, 5, 6]]


def test_confidence_batch_takes_one_step_per_seed_for_all_examples() -> None:
    first = [
        [0.1, 0.5, 0.2],
        [0.9, 0.1, 0.2],
    ]  # means .5 .3 .2: step 3, though neither example is surest there
    second = [[0.3, 0.3, 0.9], [0.1, 0.1, 0.9]]  # means .2 .2 .9: a tie, step 1
    one, two = grid_of(first), grid_of(second)
    grid = StepGrid(
        torch.cat([one.correct, two.correct]),
        torch.cat([one.surprise, two.surprise]),
        torch.cat([one.changed, two.changed]),
        one.needed,
    )
    assert stopping.get("confidence-batch").steps(grid).tolist() == [[3, 3], [1, 1]]
    assert stopping.get("confidence").steps(grid).tolist() == [[1, 2], [1, 1]]


def test_the_oracle_refuses_a_grid_that_ends_before_t() -> None:
    with pytest.raises(InputError, match="stops at step 7, but the loop ran only 6"):
        stopping.get("oracle").steps(grid_of([FLAT], needed=[7]))


def test_accuracy_is_taken_where_the_rule_stops() -> None:
    right = [[N, N, N, Y, N, N], [N, N, N, Y, Y, Y]]
    grid = grid_of([FALLING, FALLING], needed=[4, 4], correct=right)
    assert accuracy(grid, stopping.get("oracle").steps(grid)).tolist() == [1.0]
    assert accuracy(grid, stopping.get("confidence").steps(grid)).tolist() == [0.5]


@pytest.mark.parametrize("name", stopping.RULES)
def test_a_rule_carries_the_name_it_is_found_under(name: str) -> None:
    assert stopping.get(name).name == name


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("threshold=0.01", "threshold"),
        ("threshold=1e-3", "threshold=0.001"),
        ("converged=3", "converged"),
        ("converged=5", "converged=5"),
    ],
)
def test_a_parameter_is_part_of_the_name(name: str, canonical: str) -> None:
    assert stopping.get(name).name == canonical
    assert stopping.get(canonical).name == canonical


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("orakel", "unknown stopping rule 'orakel'; the rules are oracle, confidence"),
        ("", "unknown stopping rule ''"),
        ("Threshold", "unknown stopping rule"),
        ("oracle=3", "oracle takes no parameter"),
        ("halt-mode=", "halt-mode takes no parameter"),
        ("confidence=", "'' is no parameter for a stopping rule: it takes a number"),
        ("confidence=1", "confidence can leave out a share of the steps from 0 to below 1, not 1.0"),
        ("confidence-batch=-0.1", "a share of the steps from 0 to below 1, not -0.1"),
        ("confidence=nan", "a share of the steps from 0 to below 1, not nan"),
        ("threshold=", "takes a number"),
        ("threshold=small", "'small' is no parameter"),
        ("threshold=0", "must be a number above 0"),
        ("threshold=-1", "must be a number above 0"),
        ("threshold=nan", "must be a number above 0"),
        ("threshold=inf", "must be a number above 0"),
        ("converged=0", "1 to 1000000000 steps, not 0"),
        ("converged=2.5", "takes a whole number"),
    ],
)
def test_a_bad_name_is_answered_with_a_sentence(name: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        stopping.get(name)


def test_a_new_rule_needs_only_its_question() -> None:
    class Halves(OnlineRule):
        name = "halves"

        def stops(self, now: Present) -> torch.Tensor:
            return now.step * 2 >= now.needed

    assert Halves().steps(grid_of([FLAT, FLAT], needed=[6, 3])).tolist() == [[3, 2]]


def test_rules_named_twice() -> None:
    assert stopping.distinct(["oracle", "converged=3", "oracle", "converged", "threshold=0.5"]) == (
        "oracle",
        "converged=3",
        "threshold=0.5",
    )
