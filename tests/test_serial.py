"""Dataclasses to JSON and back: exact, strict, and with a sentence for everything that does not fit."""

from __future__ import annotations

import json
from dataclasses import dataclass, make_dataclass, replace
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looped.errors import InputError
from looped.serial import differences, former, from_json, override, parse, to_json
from looped.training.config import TrainConfig
from looped.training.recipes import make


@dataclass(frozen=True)
class Inner:
    width: int = 8
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    rates: tuple[float, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    flag: bool = False
    limit: int | None = None


BASE = Outer("x", Inner())


@given(
    st.builds(
        Outer,
        st.text(),
        st.builds(Inner, st.integers(1 - 2**63, 2**63 - 1), st.sampled_from(["a", "b"])),
        st.lists(st.floats(allow_nan=False, allow_infinity=False)).map(tuple),
        st.tuples(st.integers(1 - 2**63, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)),
        st.booleans(),
        st.none() | st.integers(1 - 2**63, 2**63 - 1),
    )
)
def test_there_and_back(value: Outer) -> None:
    assert from_json(Outer, parse(json.dumps(to_json(value)), "it")) == value


@pytest.mark.parametrize("task", ["parity", "multiplication"])
@pytest.mark.parametrize("recipe", ["paper", "fast", "quick"])
def test_every_recipe_goes_there_and_back(task: str, recipe: str) -> None:
    config = make(task, "fop-loop-adaptive", recipe, (0, 1, 2))
    assert from_json(TrainConfig, to_json(config)) == config


def test_a_missing_field_takes_its_default() -> None:
    assert from_json(Outer, {"name": "x", "inner": {}}) == BASE


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ([], "must be an object of fields, not"),
        ({"inner": {}}, "lacks the field 'name'"),
        ({"name": "x", "inner": {}, "nmae": 1}, "unknown field 'nmae'"),
        ({"name": "x", "inner": {"wdith": 1}}, "unknown field 'inner.wdith'"),
        ({"name": "x", "inner": {"width": "8"}}, "inner.width must be a whole number"),
        ({"name": "x", "inner": {"width": True}}, "inner.width must be a whole number, not true"),
        ({"name": "x", "inner": {"width": 8.0}}, "inner.width must be a whole number"),
        ({"name": "x", "inner": {"kind": "c"}}, "inner.kind must be one of a, b"),
        ({"name": "x", "inner": {}, "rates": 1}, "rates must be a list"),
        ({"name": "x", "inner": {}, "rates": [1, "a"]}, r"rates\[1\] must be a finite number"),
        ({"name": "x", "inner": {}, "rates": [float("inf")]}, "finite number"),
        ({"name": "x", "inner": {}, "pair": [1]}, "pair must be a list of 2"),
        ({"name": "x", "inner": {}, "flag": 1}, "flag must be true or false"),
        ({"name": 5, "inner": {}}, "name must be a text"),
        ({"name": None, "inner": {}}, "name must be a text, not null"),
    ],
)
def test_what_does_not_fit_is_named(data: object, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        from_json(Outer, data)


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', "{", "", "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="the file"):
        parse(text, "the file")


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ([], BASE),
        (["name=a=b"], replace(BASE, name="a=b")),
        (["inner.width=32", "inner.kind=b"], replace(BASE, inner=Inner(32, "b"))),
        (["rates=1e-3"], replace(BASE, rates=(1e-3,))),
        (["rates=1, 2.5"], replace(BASE, rates=(1.0, 2.5))),
        (["rates="], BASE),
        (["pair=3,4"], replace(BASE, pair=(3, 4.0))),
        (["flag=True"], replace(BASE, flag=True)),
        (["limit=5"], replace(BASE, limit=5)),
        (["limit=5", "limit=none"], BASE),
    ],
)
def test_overrides(assignments: list[str], expected: Outer) -> None:
    assert override(BASE, assignments) == expected


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ("name", "write KEY=VALUE"),
        ("nmae=x", "no field 'nmae'; Outer has name, inner, rates"),
        ("inner.wdith=3", "no field 'inner.wdith'; Inner has width, kind"),
        ("name.first=x", "name has no parts"),
        ("inner=3", "inner has parts"),
        ("inner.width=wide", "inner.width takes a whole number, not 'wide'"),
        ("inner.width=1.5", "inner.width takes a whole number"),
        ("inner.kind=c", "inner.kind must be one of a, b"),
        ("rates=1,x", "rates takes a finite number, not 'x'"),
        ("rates=nan", "rates"),
        ("pair=1,2,3", "pair takes 2 values"),
        ("flag=yes", "flag takes true or false, not 'yes'"),
    ],
)
def test_overrides_that_fail(assignment: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        override(BASE, [assignment])


def test_a_complaint_quotes_no_endless_list() -> None:
    data = to_json(make("copy", "fop-loop-adaptive", "fast", (0,))) | {"seeds": [1] * 10_000}
    with pytest.raises(
        InputError, match=r"^the file: a run trains at most 1,024 seeds, not 10,000$"
    ) as caught:
        from_json(TrainConfig, data, "the file")
    assert len(str(caught.value)) < 400


def test_differences_are_named_with_both_values() -> None:
    other = Outer("x", Inner(9), rates=(0.5,))
    assert differences(BASE, BASE) == []
    assert differences(BASE, other) == ["inner.width: 8 → 9", "rates: [] → [0.5]"]
    (odd,) = differences(BASE, replace(BASE, rates=(0.5,) * 400))
    assert odd.endswith("...")
    assert len(odd) < 90, "a long value is cut"


def test_a_complaint_about_a_field_names_few_others() -> None:
    fields = [*((f"field_{i}", int, 0) for i in range(40)), ("width", int, 0)]
    many = make_dataclass("Many", fields, frozen=True)
    with pytest.raises(InputError, match=r"unknown field 'wdith'; the nearest known ones are width$"):
        from_json(many, {"wdith": 1})
    with pytest.raises(
        InputError, match=r"unknown field 'qqq'; known are field_0, .*, field_11 and 29 more$"
    ):
        from_json(many, {"qqq": 1})


# --- names of the first edition ----------------------------------------------------------------------------------

OLD = ("dwell=3,4", "trailing=own", "steady=1.5", "model.halting=mark")
NEW = ("stage_steps=3,4", "padding_loss=own", "growth_clip=1.5", "model.halting=eoq")
COPY = make("copy", "fop-loop-adaptive", "fast", (0,))


def test_old_names_of_fields_and_values_are_read() -> None:
    config = override(COPY, OLD)
    assert config == override(COPY, NEW)
    assert (config.stage_steps, config.padding_loss, config.growth_clip) == ((3, 4), "own", 1.5)
    old = former(TrainConfig, to_json(config))
    assert (old["dwell"], old["trailing"], old["steady"], old["model"]["halting"]) == (
        [3, 4],
        "own",
        1.5,
        "mark",
    )
    assert not {"stage_steps", "padding_loss", "growth_clip"} & old.keys()
    assert from_json(TrainConfig, old) == config
    assert from_json(TrainConfig, to_json(config)) == config, "the new ones are written"


def test_a_field_by_both_its_names_is_refused() -> None:
    with pytest.raises(
        InputError, match="the file has the field 'growth_clip' twice, once by its old name 'steady'"
    ):
        from_json(TrainConfig, {**to_json(COPY), "steady": 1.0}, "the file")


def test_a_value_that_never_was_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"model.halting must be one of none, act, ponder, eoq, not \"marks\""
    ):
        override(COPY, ["model.halting=marks"])
