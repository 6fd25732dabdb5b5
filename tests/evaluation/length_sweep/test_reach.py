"""L99 and L999 on hand-made tables of accuracies."""

from __future__ import annotations

from typing import Any

import pytest

from looped.evaluation.length_sweep import reach, reaches

LENGTHS = [20, 30, 60, 100]
L99, L999 = 990, 999


def rows(
    table: dict[int, list[float]], family: str = "uniform", stop: str = "oracle"
) -> list[dict[str, Any]]:
    """Rows from accuracies by length, one a seed; the family is left out where it is uniform, as in files."""
    extra = {} if family == "uniform" else {"family": family}
    return [
        {"length": length, "seed": seed, "stop": stop, "accuracy": accuracy, "samples": 2000, **extra}
        for length, accuracies in table.items()
        for seed, accuracy in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("table", "level", "longest", "end"),
    [
        ({20: [1, 1], 30: [1, 1], 60: [1, 1], 100: [1, 1]}, L999, 100, None),
        ({20: [1, 1], 30: [1, 0.998], 60: [0.995, 0.97], 100: [1, 1]}, L99, 30, (60, 1, 0.97)),
        ({20: [1, 1], 30: [1, 0.998], 60: [0.995, 0.97], 100: [1, 1]}, L999, 20, (30, 1, 0.998)),
        # a length that fails is not forgiven by a longer one that holds
        ({20: [1, 1], 30: [0.5, 1], 60: [1, 1], 100: [1, 1]}, L99, 20, (30, 0, 0.5)),
        # not even the first
        ({20: [0.98, 0.9], 30: [1, 1]}, L99, None, (20, 1, 0.9)),
        # exactly 99 % and 99.9 % count, one answer less does not
        ({20: [0.99, 0.99], 30: [1979 / 2000, 1]}, L99, 20, (30, 0, 1979 / 2000)),
        ({20: [0.999, 1998 / 2000], 30: [1997 / 2000, 1]}, L999, 20, (30, 0, 1997 / 2000)),
        # what was not measured does not count: a length, a seed, everything
        ({20: [1, 1], 30: [1, 1]}, L99, 30, (60, 0, None)),
        ({20: [1, 1], 30: [1], 60: [1, 1]}, L99, 20, (30, 1, None)),
        ({}, L99, None, (20, 0, None)),
        # a measured failure says more than a missing row
        ({20: [1, 1], 30: [0.2]}, L99, 20, (30, 0, 0.2)),
    ],
)
def test_tables(
    table: dict[int, list[float]], level: int, longest: int | None, end: tuple[int, int, float] | None
) -> None:
    found = reach(rows(table), LENGTHS, [0, 1], ["uniform"], "oracle", level)
    names = ("length", "seed", "accuracy")
    expected = None if end is None else {"family": "uniform", **dict(zip(names, end, strict=True))}
    assert found == (longest, expected)


def test_the_order_of_lengths_and_rows_does_not_matter() -> None:
    table = rows({20: [1], 30: [0.2], 60: [1]})
    assert reach(table[::-1], [60, 20, 30], [0], ["uniform"], "oracle", L99)[0] == 20


def test_the_worst_family_and_each_rule_decide_for_themselves() -> None:
    good = {20: [1, 1], 30: [1, 1]}
    table = [
        *rows(good), *rows(good, "zeros"), *rows({20: [1, 1], 30: [1, 0.9]}, "ones"),
        *rows({20: [1, 1], 30: [1, 0.4]}, stop="converged"), *rows({20: [1, 1], 30: [1, 1]}, "zeros", "converged"),
        *rows({20: [0.5, 1]}, "ones", "converged"),
    ]  # fmt: skip
    found = reaches(table, [20, 30], [0, 1], ["uniform", "zeros", "ones"], ["oracle", "converged"])
    assert [(e["inputs"], e["stop"], e["L99"], e["L999"]) for e in found] == [
        ("uniform", "oracle", 30, 30),
        ("uniform", "converged", 20, 20),
        ("all families", "oracle", 20, 20),
        ("all families", "converged", None, None),
    ]
    assert found[0]["L99_ended_by"] is None
    assert found[2]["L99_ended_by"] == {"length": 30, "family": "ones", "seed": 1, "accuracy": 0.9}
    assert [e["L99_by_seed"] for e in found] == [
        {"0": 30, "1": 30},
        {"0": 30, "1": 20},
        {"0": 30, "1": 20},
        {"0": None, "1": 20},
    ]


def test_without_further_families_there_is_nothing_to_say_about_them() -> None:
    found = reaches(rows({20: [1]}), [20], [0], ["uniform"], ["oracle"])
    assert [entry["inputs"] for entry in found] == ["uniform"]
