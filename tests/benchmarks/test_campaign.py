"""What whole trainings take: every gradient step is counted once, and runs are packed onto workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as benches
from benchmarks import campaign
from benchmarks.campaign import Campaign
from looped.errors import InputError
from looped.training import curriculum

SMALL = ("steps=20", "interval=3", "hold=0", "max_length=3", "model.width=16", "model.heads=4", "batch=4")


@pytest.mark.parametrize(
    "fields", [SMALL, (*SMALL, "start_length=2"), (*SMALL, "stage_steps=4,1"), (*SMALL, "steps=5")]
)
def test_the_stages_are_those_of_training(fields: tuple[str, ...]) -> None:
    config = Campaign(set=fields).config("parity")
    found = [longest for longest, _, steps in campaign.stages(config) for _ in range(steps)]
    assert found == [curriculum.max_length(config, step) for step in range(config.steps)]


@pytest.mark.parametrize(
    ("seconds", "workers", "expected"),
    [([5.0, 3.0, 2.0], 1, 10.0), ([5.0, 3.0, 2.0, 1.0], 2, 6.0), ([4.0], 3, 4.0)],
)
def test_runs_are_packed_onto_workers(seconds: list[float], workers: int, expected: float) -> None:
    assert campaign.packed(seconds, workers) == expected


def test_a_campaign_is_measured_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "campaign.json"
    words = [
        "campaign",
        "parity",
        "copy",
        "--seeds",
        "1",
        "--share",
        "0.5",
        "--device",
        "cpu",
        "--out",
        str(out),
    ]
    assert benches.main([*words, *(word for field in SMALL for word in ("--set", field))]) == 0
    measured = json.loads(out.read_text(encoding="utf-8"))
    for run in measured["runs"]:
        assert [(stage["longest"], stage["steps"], stage["timed"]) for stage in run["stages"]] == [
            (1, 3, 1), (2, 3, 1), (3, 14, 7)
        ]  # fmt: skip
        told = sum(
            stage["first_seconds"] + (stage["steps"] - 1) * stage["step_seconds"] for stage in run["stages"]
        )
        assert run["seconds"] == pytest.approx(told)
        assert told > 0
    assert measured["seconds"] == pytest.approx(sum(run["seconds"] for run in measured["runs"]))
    shown = capsys.readouterr().out
    assert "all, side by side" in shown
    assert "parity" in shown


@pytest.mark.parametrize(
    "wrong", [{"share": 0.0}, {"share": 1.5}, {"workers": 0}, {"seeds": 0}, {"tasks": ()}]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Campaign(**wrong)  # type: ignore[arg-type]


def test_an_unknown_task_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert benches.main(["campaign", "sorting", "--device", "cpu"]) == 2
    assert "sorting" in capsys.readouterr().err
