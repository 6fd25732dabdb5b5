"""How long a run says it will take, against runs whose steps cost what they are told to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from looped.training import curriculum, recipes
from looped.training.config import TrainConfig
from looped.training.cost import Clock

EVERY = 10  # steps between two reports


def run(config: TrainConfig, fixed: float, rate: float) -> Iterator[tuple[int, float, float]]:
    """At every report: the step, the seconds said to be left, and those that really are."""
    clock = Clock(config)
    costs = [fixed + rate * clock.work(step, step + 1) for step in range(config.steps)]
    for step in range(EVERY, config.steps + 1, EVERY):
        clock.saw(step - EVERY, step, sum(costs[step - EVERY : step]))
        yield step, clock.left(step), sum(costs[step:])


@pytest.mark.parametrize("task", ["parity", "copy", "multiplication"])
@pytest.mark.parametrize("share", [0.1, 0.2, 0.4, 0.6])
def test_the_first_word_is_not_far_off_and_the_later_ones_are_near(task: str, share: float) -> None:
    """The fixed part of a step is some share of a step at the full length."""
    config = recipes.make(task, "fop-loop-adaptive", "quick", (0,))
    whole = Clock(config).work(config.steps - 1, config.steps)
    told = list(run(config, 0.3 * share, 0.3 * (1 - share) / whole))
    assert told[0][2] / 2 < told[0][1] < told[0][2] * 2.5, "once it was seven times too much"
    for step, said, really in told:
        if 2 * step > config.steps:
            assert said == pytest.approx(really, rel=0.05, abs=1e-9)


@pytest.mark.parametrize(("fixed", "rate"), [(0.0, 0.01), (0.2, 0.0)])
def test_one_rate_alone_is_found(fixed: float, rate: float) -> None:
    config = recipes.make("copy", "fop-loop-adaptive", "quick", (0,))
    for step, said, really in run(config, fixed, rate):
        if 2 * step > config.steps:
            assert said == pytest.approx(really, rel=0.05, abs=1e-9)


def test_longer_problems_that_cost_less_make_no_time_negative() -> None:
    """A machine that has just become free."""
    config = recipes.make("parity", "fop-loop-adaptive", "quick", (0,))
    clock = Clock(config)
    for step in range(EVERY, config.steps + 1, EVERY):
        clock.saw(step - EVERY, step, 100.0 / step)
        assert clock.left(step) >= 0
    assert clock.left(config.steps) == 0


def test_nothing_seen_nothing_said() -> None:
    config = recipes.make("parity", "fop-loop-adaptive", "quick", (0,))
    clock = Clock(config)
    clock.saw(5, 5, 1.0)
    assert clock.left(0) == 0


def test_work_is_counted_across_stages() -> None:
    config = recipes.make("copy", "fop-loop-adaptive", "quick", (0,))
    clock, middle = Clock(config), config.steps // 3
    assert clock.work(0, config.steps) == pytest.approx(
        clock.work(0, middle) + clock.work(middle, config.steps)
    )
    last = curriculum.max_length(config, config.steps - 1)
    assert last == config.max_length
    assert clock.work(config.steps - 1, config.steps) > clock.work(0, 1)
