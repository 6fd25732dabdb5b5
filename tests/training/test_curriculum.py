"""Lengths and learning rates by gradient step; who is in the loop when; stratified lengths are fair."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from math import comb

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from looped import methods, tasks
from looped.errors import InputError
from looped.fast.engine import Engine
from looped.training import curriculum
from looped.training.plain import PlainEngine
from looped.training.recipes import make


def test_the_maximum_length_grows_by_one_each_interval(tiny) -> None:
    config = tiny(interval=10, max_length=4, steps=100)
    grown = [curriculum.max_length(config, step) for step in (0, 9, 10, 19, 20, 30, 39, 40, 99)]
    assert grown == [1, 1, 2, 2, 3, 4, 4, 4, 4]
    later = tiny(interval=10, max_length=4, steps=100, start_length=3)
    assert [curriculum.max_length(later, step) for step in (0, 10, 50)] == [3, 4, 4]


def test_the_first_lengths_may_last_longer(tiny) -> None:
    config = tiny(max_length=5, interval=2, stage_steps=(3, 1), steps=12)
    seen = [curriculum.max_length(config, step) for step in range(12)]
    assert seen == [1, 1, 1, 2, 3, 3, 4, 4, 5, 5, 5, 5]
    assert config.curriculum_end == 10, "the last length has had its interval"


@pytest.mark.parametrize("engine", [Engine, PlainEngine])
def test_the_late_input_distribution_comes_after_the_last_interval(tiny, engine) -> None:
    config = tiny(family="ones", late_family="zeros", interval=2, max_length=2, steps=6)
    assert [curriculum.family(config, step) for step in range(6)] == ["ones"] * 4 + ["zeros"] * 2
    assert curriculum.family(tiny(family="ones", interval=2, max_length=2), 99) == "ones"
    made, seen = engine(config), []
    for _ in range(6):
        made.step()
        tokens = made.draw(made._stage)[0].tokens
        seen.append({0: "zeros", 1: "ones"}[int(tokens[0, 0, 0])])
        assert bool((tokens[..., 0] == tokens[0, 0, 0]).all())
    assert seen == ["ones"] * 4 + ["zeros"] * 2
    with pytest.raises(InputError, match="no input distribution 'steep'"):
        tiny(late_family="steep")


def test_a_batch_that_somebody_mistyped_is_refused(tiny) -> None:
    with pytest.raises(InputError, match="batch must be at most 1,048,576, not 100,000,000"):
        tiny(batch=10**8)


def test_a_stay_at_lengths_that_are_not_trained_is_left_out(tiny) -> None:
    config = tiny(max_length=2, interval=5, stage_steps=(3, 1, 4, 4), steps=12)
    assert [curriculum.max_length(config, step) for step in range(12)] == [1] * 3 + [2] * 9
    assert config.curriculum_end == 4


@pytest.mark.parametrize(("method", "lengths"), [("fop-loop-adaptive", "iid"), ("ut", "stratified")])
def test_a_size_of_its_own_has_to_be_known_beforehand(method: str, lengths: str) -> None:
    config = make("copy", method, "quick", (0,))
    with pytest.raises(
        InputError, match="padding_loss=own is for lengths=stratified and models without an enc"
    ):
        replace(config, padding_loss="own", lengths=lengths)


def test_no_row_is_longer_than_its_own_problems(tiny) -> None:
    config = tiny("copy", batch=8, max_length=4, padding_loss="own")
    split = curriculum.strata(config, 4)
    task = tasks.get("copy")
    assert split.size == tuple(task.row_size(last) for last in split.last)
    assert set(curriculum.strata(replace(config, padding_loss="batch"), 4).size) == {task.row_size(4)}


def test_a_stay_that_cannot_be(tiny) -> None:
    with pytest.raises(InputError, match="`stage_steps` must be at least 1 gradient step at each length"):
        tiny(max_length=5, stage_steps=(3, 0))


@given(st.lists(st.integers(1, 5), max_size=9), st.integers(1, 5), st.integers(1, 3), st.integers(3, 9))
def test_a_stage_ends_where_the_next_begins(
    stage_steps: list[int], interval: int, start: int, longest: int
) -> None:
    config = replace(
        make("copy", "fop-loop-adaptive", "quick", (0,)),
        stage_steps=tuple(stage_steps), interval=interval, start_length=start, max_length=longest,
    )  # fmt: skip
    for n in range(start, longest):
        end = config.stage_end(n)
        assert [curriculum.max_length(config, step) for step in (end - 1, end)] == [n, n + 1]
    assert config.stage_end(start - 1) == 0


def test_the_rate_warms_up_holds_and_falls_in_a_cosine(tiny) -> None:
    config = tiny(interval=10, max_length=4, steps=100, warmup=4)
    share = [curriculum.lr_share(config, step) for step in range(100)]
    assert share[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert set(share[4:40]) == {1.0}
    assert share[40:] == [0.5 * (1 + math.cos(math.pi * i / 60)) for i in range(60)]
    assert share[70] == pytest.approx(0.5)


def test_a_curriculum_that_never_ends_keeps_its_rate(tiny) -> None:
    config = tiny(interval=50, max_length=4, steps=100)
    assert [curriculum.lr_share(config, step) for step in (0, 99)] == [1.0, 1.0]


def test_a_cooling_rate_falls_with_the_length_and_then_in_a_cosine(tiny) -> None:
    config = tiny(interval=10, max_length=4, steps=100, warmup=2, cooling=0.5)
    share = [curriculum.lr_share(config, step) for step in range(100)]
    assert share[:3] == [0.5, 1.0, 1.0]
    assert share[10:20] == [pytest.approx(2**-0.5)] * 10
    assert share[30:40] == [pytest.approx(0.5)] * 10
    assert share[70] == pytest.approx(0.25)
    with pytest.raises(InputError, match="cooling must not be negative"):
        tiny(cooling=-1.0)


def test_a_plan_by_hand() -> None:
    # rows need 3, 2 to 3, 1 steps: the last leaves at 1, the middle one may at 2 and must at 3
    plan = curriculum.plan([3, 2, 1], [3, 3, 1])
    assert plan == curriculum.Plan(active=(3, 2, 2), leaving=(2, 1, 0))
    assert sum(plan.active) == 7


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12))
def test_a_plan_computes_every_row_until_it_may_be_done(rows: list[tuple[int, int]]) -> None:
    bounds = sorted(((low + more, low) for low, more in rows), reverse=True)
    upper, lower = [u for u, _ in bounds], [low for _, low in bounds]
    plan = curriculum.plan(lower, upper)
    for i, (low, high) in enumerate(zip(lower, upper, strict=True)):
        for t in range(1, high + 1):
            assert i < plan.active[t - 1], "computed as long as it may need"
            assert low > t or i >= plan.leaving[t - 1], "looked at wherever it may be done"
    assert sum(plan.active) == sum(upper), "and not a step longer"


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(tasks.TASKS)),
    st.sampled_from(sorted(methods.METHODS)),
    st.integers(1, 12),
    st.integers(1, 40),
)
def test_stratified_rows_stay_within_their_bounds(
    tiny, task_name: str, method_name: str, longest: int, batch: int
) -> None:
    task, method = tasks.get(task_name), methods.get(method_name)
    config = tiny(task_name, method_name, max_length=12, batch=max(batch, task.variants))
    split = curriculum.strata(config, longest)
    part, parts, first, last, variant = (
        torch.tensor(x) for x in (split.part, split.parts, split.first, split.last, split.variant)
    )
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        lengths = curriculum.draw_lengths(part, parts, first, last, longest, generator)
        assert bool(((lengths >= first) & (lengths <= last)).all())
        assert int(lengths.min()) >= 1
        assert int(lengths.max()) <= longest
        steps = method.steps(task, task.steps(lengths, variant), config.max_length)
        assert bool((steps >= torch.tensor(split.lower)).all())
        assert bool((steps <= torch.tensor(split.upper)).all())
    assert list(split.upper) == sorted(split.upper, reverse=True)


def test_stratified_lengths_are_uniform_over_the_batch(tiny) -> None:
    config = tiny(max_length=7, batch=16)
    split = curriculum.strata(config, 7)
    part, parts, first, last = (torch.tensor(x) for x in (split.part, split.parts, split.first, split.last))
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack(
        [curriculum.draw_lengths(part, parts, first, last, 7, generator) for _ in range(4000)]
    )
    share = drawn.flatten().bincount(minlength=8)[1:] / drawn.numel()
    assert torch.allclose(share, torch.full((7,), 1 / 7), atol=0.003)
    spread = torch.stack([(drawn == n).sum(1).double() for n in range(1, 8)]).var(1)
    assert float(spread.max()) < 1.0, "each batch holds nearly its share of every length"


@pytest.mark.parametrize("method_name", ["fop-loop-adaptive", "fop-loop-fixed"])
@pytest.mark.parametrize("task_name", sorted(tasks.TASKS))
def test_independent_draws_find_their_seats(tiny, task_name: str, method_name: str) -> None:
    task, method = tasks.get(task_name), methods.get(method_name)
    config = tiny(task_name, method_name, lengths="iid", max_length=12, batch=64)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 10, (5000, 64), generator=generator)
    variants = torch.randint(task.variants, (5000, 64), generator=generator)
    steps = method.steps(task, task.steps(lengths, variants), 12).sort(dim=1, descending=True).values
    capacity = torch.tensor(curriculum.row_capacity(config, 9))
    assert bool((steps <= capacity).all())
    assert int(capacity[0]) == int(steps.max())
    if method.adaptive:
        assert int(capacity.sum()) < 0.85 * 64 * int(capacity[0]), "and not all to the end"


@pytest.mark.parametrize("share", [Fraction(1, 20), Fraction(1, 2), Fraction(19, 20), Fraction(1)])
@pytest.mark.parametrize("batch", [1, 8, 64, 300])
def test_there_are_seats_for_all_but_rare_batches(batch: int, share: Fraction) -> None:
    def more_than(rows: int) -> Fraction:
        each = (comb(batch, k) * share**k * (1 - share) ** (batch - k) for k in range(rows + 1, batch + 1))
        return sum(each, Fraction())

    found = curriculum._most(batch, float(share))
    assert more_than(found) <= curriculum.RARE
    assert more_than(found - 1) > curriculum.RARE, "and not one more than that takes"


@pytest.mark.parametrize("batch", [2, 3, 7, 33])
def test_every_variant_covers_all_lengths_however_many_rows_it_has(tiny, batch: int) -> None:
    split = curriculum.strata(tiny("multiplication", batch=batch, max_length=10), 10)
    for kind in (0, 1):
        own = [i for i, variant in enumerate(split.variant) if variant == kind]
        assert {split.parts[i] for i in own} == {len(own)}
        assert sorted(split.part[i] for i in own) == list(range(len(own)))
        covered = {n for i in own for n in range(split.first[i], split.last[i] + 1)}
        assert covered == set(range(1, 11))


def test_a_batch_with_no_row_for_a_variant_is_refused(tiny) -> None:
    with pytest.raises(InputError, match=r"the batch must be at least 2, not 1$"):
        tiny("multiplication", batch=1)
    assert tiny("multiplication", batch=1, lengths="iid").batch == 1, "drawn independently, each may come"
    assert tiny("copy", batch=1).batch == 1


def test_both_variants_get_the_same_lengths(tiny) -> None:
    split = curriculum.strata(tiny("multiplication", max_length=6, batch=24), 6)
    bounds = [
        sorted((f, last) for f, last, v in zip(split.first, split.last, split.variant, strict=True) if v == k)
        for k in range(2)
    ]
    assert bounds[0] == bounds[1]
