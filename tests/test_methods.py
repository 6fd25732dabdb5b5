"""The methods table is the paper's, and the table in the module's docstring is the table."""

from __future__ import annotations

import re

import pytest
import torch

from looped import methods, tasks
from looped.errors import InputError
from looped.methods import METHODS, largest_steps

# name: prediction, adaptive, loops (None: the largest T trained), depth in blocks, injection, pauses
PAPER = {
    "fop-loop-adaptive": ("fop", True, None, 1, True, 0),
    "fop-loop-adaptive-wo": ("fop", True, None, 1, False, 0),
    "fop-loop-fixed": ("fop", False, None, 1, True, 0),
    "fop": ("fop", False, 1, 20, True, 0),
    "fop-pause": ("fop", False, 1, 20, True, 20),
    "ntp": ("ntp", False, 1, 20, True, 0),
    "ntp-pause": ("ntp", False, 1, 20, True, 20),
    "ntp-loop": ("ntp", False, 20, 1, True, 0),
}


def test_the_methods_are_the_papers() -> None:
    assert list(METHODS) == list(PAPER)
    for name, (prediction, adaptive, loops, depth, injection, pause) in PAPER.items():
        m = METHODS[name]
        assert (m.name, m.prediction, m.adaptive, m.depth, m.pause) == (
            name,
            prediction,
            adaptive,
            depth,
            pause,
        )
        assert m.injection == injection
        if not adaptive:
            assert m.loops == loops


def test_the_documented_table_is_the_table() -> None:
    lines = re.findall(r"^\| ([a-z-]+) +\|(.*)\|$", methods.__doc__ or "", flags=re.M)
    told = {name: [cell.strip() for cell in cells.split("|")] for name, cells in lines if name in METHODS}
    assert list(told) == list(METHODS)
    for name, (prediction, loops, layers, injection, pause) in told.items():
        m = METHODS[name]
        fixed = "the largest T trained" if m.loops is None else str(m.loops)
        assert prediction == m.prediction.upper()
        assert loops == ("T(n) of each problem" if m.adaptive else fixed)
        assert layers == ("the block's" if m.depth == 1 else f"{m.depth} × the block's")
        assert injection == ("–" if m.loops == 1 and not m.adaptive else "yes" if m.injection else "no")
        assert pause == str(m.pause)


@pytest.mark.parametrize(
    ("method", "task", "expected"),
    [
        ("fop-loop-adaptive", "copy", [1, 4, 30]),
        ("fop-loop-adaptive-wo", "copy", [1, 4, 30]),
        ("fop-loop-fixed", "copy", [19, 19, 19]),
        ("fop-loop-fixed", "multiplication", [22, 22, 22]),  # the largest T trained: 2 · 11
        ("fop", "copy", [1, 1, 1]),
        ("ntp-pause", "copy", [1, 1, 1]),
        ("ntp-loop", "multiplication", [20, 20, 20]),
    ],
)
def test_steps_of_problems(method: str, task: str, expected: list[int]) -> None:
    problem = tasks.get(task)
    own = torch.tensor([1, 4, 30])
    assert methods.get(method).steps(problem, own, problem.paper.max_length).tolist() == expected


@pytest.mark.parametrize(
    ("task", "steps"),
    [
        ("parity", 20),
        ("copy", 19),
        ("addition", 19),
        ("binary_sum", 19),
        ("multiplication", 22),
        ("unique_set", 19),
    ],
)
def test_the_largest_steps_trained(task: str, steps: int) -> None:
    problem = tasks.get(task)
    assert largest_steps(problem, problem.paper.max_length) == steps


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(InputError, match="unknown method 'fop-loop'; the methods are fop-loop-adaptive, "):
        methods.get("fop-loop")
