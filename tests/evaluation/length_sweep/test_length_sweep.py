"""A sweep over hand-made accuracies: order, giving up, resuming, and what the file holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from looped.cli import length_sweep
from looped.errors import InputError
from looped.evaluation import length_sweep as sweeping
from looped.evaluation.length_sweep import (
    LengthDone,
    SweepRecord,
    SweepSettings,
    enter,
    families_of,
    lengths_of,
    stops_of,
    sweep,
)
from looped.evaluation.loading import SweptModel
from looped.evaluation.measure import Row, Subject

Make = Callable[..., Subject]
Accuracy = Callable[[int, str, str, int], float]  # of a length, family, rule and seed
FEW = SweepSettings(
    lengths=(4, 8, 16, 32), samples=1000, families=("zeros", "ones"), stops=("oracle", "converged")
)
FAMILIES = ["uniform", "zeros", "ones"]
REST = ["repeated", "mixed", "p=0.05", "p=0.2", "p=0.8", "p=0.95"]  # of copy's families


class Stage:
    """A model whose accuracies are said by a function, and what is measured of it."""

    def __init__(self, subject: Subject, accuracy: Accuracy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = SweptModel(
            "made@0", subject, {"key": "made@0", "run": "made", "seeds": [*subject.seeds]}
        )
        self.measured: list[tuple[int, str]] = []
        self.heard: list[LengthDone] = []

        def measured(subject: Subject, length: int, samples: int, **how: Any) -> list[Row]:
            family = how["family"]
            self.measured.append((length, family))
            return [
                Row(
                    "copy", "m", "r", s, length, stop, accuracy(length, family, stop, s), samples, 1.0, family
                )
                for stop in (rule.name for rule in how["rules"])
                for s in subject.seeds
            ]

        def steps(subject: Subject, length: int, samples: int, **how: Any) -> list[dict[str, object]]:
            about = {"length": length, "needed": length, "samples": samples, "overrun": {"+1": 1.0}}
            drift = {"never": 0.0, "mean": 0.0, "low": 0, "high": 0, "best": 0, "from": 0, "to": 1}
            return [{"seed": s, **about, "drift": drift} for s in subject.seeds]

        monkeypatch.setattr(sweeping, "measure_length", measured)
        monkeypatch.setattr(sweeping, "measure_steps", steps)

    def sweep(self, settings: SweepSettings, record: SweepRecord, parts: int = 1000) -> bool:
        """Sweep; after so many new measurements it is enough."""
        self.measured.clear()
        enter([self.model], settings, record)
        return sweep(
            [self.model],
            settings,
            record,
            on_length=self.heard.append,
            enough=lambda: len(self.measured) >= parts,
        )


@pytest.fixture
def stage(moving: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[[Accuracy], Stage]:
    return lambda accuracy: Stage(moving("copy"), accuracy, monkeypatch)


def perfect(length: int, family: str, stop: str, seed: int) -> float:
    return 1.0


def every(lengths: tuple[int, ...], families: list[str] = FAMILIES) -> list[tuple[int, str]]:
    return [(length, family) for length in lengths for family in families]


def test_every_length_in_order(stage: Callable[[Accuracy], Stage]) -> None:
    made, record = stage(perfect), SweepRecord()
    assert made.sweep(FEW, record)
    assert made.measured == every((4, 8, 16, 32))
    (ladder,) = record.as_dict()["ladder"]
    assert (ladder["complete"], ladder["not_measured"]) == (True, [])
    assert {(e["L99"], e["L999"]) for e in ladder["reach"]} == {(32, 32)}
    assert len(made.heard) == 12
    assert all(done.seconds is not None for done in made.heard)


def test_far_below_the_ladder_ends(stage: Callable[[Accuracy], Stage]) -> None:
    """At 16 the better seed has half of its answers under either rule: 32 is not measured."""
    made, record = stage(lambda n, family, stop, seed: 1.0 if n < 16 else 0.5), SweepRecord()
    assert made.sweep(FEW, record)
    assert made.measured == [*every((4, 8)), (16, "uniform")]
    (ladder,) = record.as_dict()["ladder"]
    assert ladder["complete"]
    assert ladder["not_measured"] == [
        {"length": 16, "families": ["zeros", "ones"]},
        {"length": 32, "families": FAMILIES},
    ]
    assert [e["L99"] for e in ladder["reach"]] == [8, 8, 8, 8]
    assert ladder["reach"][0]["L99_ended_by"]["accuracy"] == 0.5
    assert ladder["reach"][2]["L99_ended_by"] == {
        "length": 16,
        "family": "uniform",
        "seed": 3,
        "accuracy": 0.5,
    }


@pytest.mark.parametrize(
    "accuracy",
    [
        lambda n, family, stop, seed: 1.0 if n < 16 or seed == 4 else 0.0,  # one seed still stands
        lambda n, family, stop, seed: 1.0 if n < 16 or stop == "converged" else 0.0,  # one rule does
        lambda n, family, stop, seed: 1.0 if n < 16 else 0.7,  # bad, but not far below
    ],
)
def test_whoever_stands_is_measured(stage: Callable[[Accuracy], Stage], accuracy: Accuracy) -> None:
    made = stage(accuracy)
    assert made.sweep(FEW, SweepRecord())
    assert made.measured == every((4, 8, 16, 32))


def test_a_family_far_below_is_left_out_alone(stage: Callable[[Accuracy], Stage]) -> None:
    made, record = (
        stage(lambda n, family, stop, seed: 0.0 if family == "zeros" and n >= 8 else 1.0),
        SweepRecord(),
    )
    assert made.sweep(FEW, record)
    assert made.measured == [*every((4, 8)), *every((16, 32), ["uniform", "ones"])]
    uniform, _, families, _ = record.as_dict()["ladder"][0]["reach"]
    assert (uniform["L99"], families["L99"]) == (32, 4)
    assert families["L99_ended_by"] == {"length": 8, "family": "zeros", "seed": 3, "accuracy": 0.0}


def test_a_floor_of_nothing_measures_everything(stage: Callable[[Accuracy], Stage]) -> None:
    made = stage(lambda n, family, stop, seed: 0.0)
    assert made.sweep(replace(FEW, floor=0.0), SweepRecord())
    assert made.measured == every((4, 8, 16, 32))


# --- going on ----------------------------------------------------------------------------------------------


def test_an_interrupted_ladder_goes_on(stage: Callable[[Accuracy], Stage], tmp_path: Path) -> None:
    made, path = stage(perfect), tmp_path / "new" / "ladder.json"
    assert not made.sweep(FEW, SweepRecord(path), parts=5)
    (ladder,) = SweepRecord(path).as_dict()["ladder"]
    assert ladder == json.loads(path.read_text())["ladder"][0]
    assert not ladder["complete"]
    assert [e["L99"] for e in ladder["reach"]] == [8, 8, 4, 4]
    assert (
        length_sweep.markdown([ladder])
        .splitlines()[-1]
        .endswith("| ≥ 8 / ≥ 8 | ≥ 8 / ≥ 8 | ≥ 4 / ≥ 4 | ≥ 4 / ≥ 4 |")
    )
    assert made.sweep(FEW, SweepRecord(path))
    assert made.measured == every((4, 8, 16, 32))[5:]
    whole = path.read_text()
    assert made.sweep(FEW, SweepRecord(path))
    assert (made.measured, path.read_text()) == ([], whole)
    unbroken = SweepRecord()
    assert made.sweep(FEW, unbroken)
    for part in ("ladder", "rows", "steps"):
        assert unbroken.as_dict()[part] == json.loads(whole)[part]


def test_what_is_measured_again_and_what_is_not(stage: Callable[[Accuracy], Stage], tmp_path: Path) -> None:
    made, path = stage(perfect), tmp_path / "ladder.json"
    made.sweep(replace(FEW, lengths=(4, 8)), SweepRecord(path))
    for change, measured in (
        ({"lengths": (8,)}, []),
        ({"lengths": (4, 8), "samples": 500}, []),  # more samples were taken
        ({"lengths": (4, 8), "families": ("all",)}, every((4, 8), REST)),
        ({"lengths": (4, 16)}, every((16,))),
        ({"lengths": (8,), "samples": 1001}, every((8,))),
        ({"lengths": (8,), "stops": ("oracle", "threshold")}, every((8,))),
        ({"lengths": (8,), "step_samples": 501}, []),  # only the steps are
    ):  # fmt: skip
        assert made.sweep(replace(FEW, **change), SweepRecord(path))  # type: ignore[arg-type]
        assert made.measured == measured, change
    data = SweepRecord(path).as_dict()
    keys = [(r["length"], r.get("family"), r["stop"], r["seed"]) for r in data["rows"]]
    assert len(keys) == len(set(keys)), "a length measured again takes the place of the old one"
    assert data["ladder"][0]["lengths"] == [4, 8, 16]
    assert not data["ladder"][0]["complete"], "the last sweep was to 8 only"
    assert [each["samples"] for each in data["steps"]] == [500, 500, 501, 501, 500, 500]


def test_a_measurement_stopped_in_the_middle(
    parity: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real counting, two problems at a time, enough after every second question whether it is."""
    monkeypatch.setattr("looped.evaluation.rollout.rows_at_once", lambda *args: 2)
    settings = SweepSettings(
        lengths=(3, 6), samples=8, families=("zeros",), stops=("oracle",), step_samples=5, floor=0
    )
    model, path = (
        SweptModel("made@0", parity, {"key": "made@0", "run": "made", "seeds": [0, 1]}),
        tmp_path / "l.json",
    )
    unbroken = SweepRecord()
    enter([model], settings, unbroken)
    assert sweep([model], settings, unbroken)
    kept = []
    for _ in range(100):
        record, asked = SweepRecord(path), iter([False, False, True])
        enter([model], settings, record)
        ended = sweep([model], settings, record, enough=lambda asked=asked: next(asked))  # type: ignore[misc]
        kept.append(SweepRecord(path).unfinished)
        if ended:
            break
    assert len(kept) > 5
    assert {left["rung"][2] for left in kept if left is not None} >= {"uniform", "steps"}
    assert kept[-1] is None
    whole = SweepRecord(path).as_dict()
    for part in ("ladder", "rows", "steps"):
        assert whole[part] == unbroken.as_dict()[part]


def test_shorter_lengths_of_all_models_come_first(stage: Callable[[Accuracy], Stage]) -> None:
    """The second model ends its ladder at 8; the first goes on alone."""
    made, record = stage(lambda n, family, stop, seed: 1.0), SweepRecord()
    other = replace(made.model, key="made@1", origin={**made.model.origin, "key": "made@1"})
    settings = replace(FEW, families=("uniform",), step_samples=0)
    enter([made.model, other], settings, record)
    rows = [{"task": "copy", "seed": s, "length": 8, "stop": stop, "accuracy": 0.1, "samples": 1000}
            for s in (3, 4) for stop in ("oracle", "converged")]  # fmt: skip
    record.put("made@1", rows, seconds=0.0, facts={"device": "cpu", "commit": None})
    heard: list[LengthDone] = []
    assert sweep([made.model, other], settings, record, on_length=heard.append)
    assert [(done.key[-1], done.length) for done in heard] == [
        ("0", 4), ("1", 4), ("0", 8), ("1", 8), ("0", 16), ("0", 32),
    ]  # fmt: skip
    assert [ladder["complete"] for ladder in record.as_dict()["ladder"]] == [True, True]


def test_runs_do_not_mix(stage: Callable[[Accuracy], Stage], tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    made = stage(perfect)
    made.sweep(FEW, SweepRecord(path))
    made.model = replace(made.model, key="made@1", origin={**made.model.origin, "key": "made@1"})
    made.sweep(replace(FEW, lengths=(4,)), SweepRecord(path))
    assert made.measured == every((4,))
    first, second = SweepRecord(path).as_dict()["ladder"]
    assert (first["run"], first["reach"][0]["L99"]) == ("made@0", 32)
    assert (second["run"], second["reach"][0]["L99"]) == ("made@1", 4)
    assert [e["run"] for e in SweepRecord(path).only(["made@1"]).as_dict()["ladder"]] == ["made@1"]


# --- settings ----------------------------------------------------------------------------------------------


def test_what_is_swept_unless_told(moving: Make, exact: Make) -> None:
    copy = moving("copy")
    assert lengths_of(copy, SweepSettings()) == (5, 20, 30, 35, 40, 60, 100, 200, 500, 1000)
    assert lengths_of(copy, SweepSettings(lengths=(9, 3))) == (3, 9)
    assert families_of(copy, SweepSettings()) == copy.task.families
    assert families_of(copy, SweepSettings(families=("p=0.5", "uniform"))) == ("uniform", "p=0.5")
    assert stops_of(copy, SweepSettings()) == ("oracle", "converged")
    assert stops_of(exact("copy"), SweepSettings()) == ("oracle", "converged", "halt")
    assert stops_of(moving("copy", "ntp"), SweepSettings()) == ("oracle",)
    assert stops_of(copy, SweepSettings(stops=("converged=3", "converged"))) == ("converged",)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"floor": 1.0}, "the floor is a share between 0 and 0.99"),
        ({"floor": -0.1}, "the floor is a share"),
        ({"step_samples": -1}, "the number of samples must be at least 0"),
        ({"samples": 0}, "the number of samples must be at least 1"),
        ({"lengths": (5000,)}, "length must be between 1 and 4096"),
        ({"families": ("carry",)}, "copy has no input distribution 'carry'"),
        ({"stops": ("halt",)}, "the rule halt is for models that say when they are done"),
        ({"stops": ("soon",)}, "unknown stopping rule 'soon'"),
    ],
)
def test_settings_that_are_none(moving: Make, change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        enter([SweptModel("x@0", moving("copy"), {})], replace(FEW, **change), SweepRecord())
