"""A run's name: readable, the same for ever, different for different runs, and never a way out of a folder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.errors import InputError
from looped.experiments import plan
from looped.experiments.plan import RunSpec, check_name, folder_name
from looped.training.config import TrainConfig
from looped.training.recipes import make

# Golden: a folder that exists must be found again, also by the next version.
NAMES = [
    (RunSpec("copy"), "copy-fop-loop-adaptive-fast"),
    (RunSpec("binary_sum", "ntp-pause", "paper"), "binary_sum-ntp-pause-paper"),
    (RunSpec("copy", seeds=(0,)), "copy-fop-loop-adaptive-fast-1127f1e1"),
    (RunSpec("copy", set=("steps=2000",)), "copy-fop-loop-adaptive-fast-c11785d1"),
    (RunSpec("copy", set=("model.width=128", "lr=2e-4")), "copy-fop-loop-adaptive-fast-05c87228"),
    (RunSpec("copy", name="my.run-1"), "my.run-1"),
]


@pytest.mark.parametrize(("run", "name"), NAMES)
def test_names_are_stable(run: RunSpec, name: str) -> None:
    assert run.folder == name


def test_what_is_set_to_the_recipes_value_is_not_a_difference() -> None:
    steps = make("copy", "fop-loop-adaptive", "fast", (0,)).steps
    assert RunSpec("copy", set=(f"steps={steps}",)).folder == "copy-fop-loop-adaptive-fast"
    assert RunSpec("copy", set=("lr=2e-4", "model.width=128")).folder == NAMES[4][1], "order does not matter"


def test_a_field_added_later_renames_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Later(TrainConfig):
        """The configuration of a later version."""

        novelty: int = 7

    def later(*words: object) -> Later:
        return Later(**vars(make(*words)))  # type: ignore[arg-type]

    monkeypatch.setattr(plan.recipes, "make", later)
    assert (
        folder_name(replace(later("copy", "fop-loop-adaptive", "fast", plan.SEEDS), steps=2000))
        == NAMES[3][1]
    )


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()),
)
def test_different_runs_have_different_names(one: tuple, other: tuple) -> None:
    def name(steps: int, batch: int, ema: bool) -> str:
        return RunSpec(
            "parity", recipe="quick", set=(f"steps={steps}", f"batch={batch}", f"ema={0.5 * ema}")
        ).folder

    assert (name(*one) == name(*other)) == (one == other)


@pytest.mark.parametrize(
    ("run", "complaint"),
    [
        (RunSpec("sorting"), "unknown task"),
        (RunSpec("copy", "rnn"), "unknown method"),
        (RunSpec("copy", recipe="slow"), "unknown recipe"),
        (RunSpec("copy", set=("steps",)), "write KEY=VALUE"),
        (RunSpec("copy", set=("stesp=3",)), "there is no field 'stesp'"),
        (RunSpec("copy", set=("task=parity",)), "'task' is a field of the run itself"),
        (RunSpec("copy", set=(" seeds =3",)), "'seeds' is a field of the run itself"),
        (RunSpec("copy", seeds=()), "seeds must be distinct"),
    ],
)
def test_runs_that_are_none(run: RunSpec, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        assert run.folder


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", ".jobs", "-x", "a\\b", "a\0", "a\n", "x" * 121, "é", "C:x"]
)
def test_a_name_cannot_leave_its_folder(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a run"):
        check_name(name)
