"""Files that earlier versions wrote keep loading: jobs, partial results, result files, length sweeps, cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import looped.zoo as zoo
from looped.evaluation.length_sweep import SweepRecord
from looped.experiments import paper, queue
from looped.experiments.plan import MeasurementPlan, RunSpec
from looped.serial import to_json

ROOT = Path(__file__).parents[2]


def test_a_job_in_its_old_words(tmp_path: Path) -> None:
    """`NAME.json` in `.jobs`, with the fields that the first version wrote."""
    run = RunSpec("copy", recipe="quick", seeds=(0, 1))
    plan = {
        "lengths": [2, 4], "kind": "accuracy", "samples": 20, "stops": ["oracle"], "families": ["uniform"], "seed": 0,
        "precision": "fp32",
    }  # fmt: skip
    job = {
        "name": run.folder, "config": to_json(run.config), "plans": [plan], "results": str(tmp_path / "results"),
        "save_seconds": 60.0,
    }  # fmt: skip
    folder = tmp_path / ".jobs"
    folder.mkdir()
    (folder / f"{run.folder}.json").write_text(json.dumps(job))
    (found,), problems = queue.jobs_in(tmp_path)
    assert (found.config, found.plans, problems) == (run.config, (MeasurementPlan((2, 4), samples=20),), [])
    assert queue.status_of(tmp_path, found).state == "queued"
    assert found.result_files[0].name == f"{run.folder}.{found.plans[0].name}.json"


def test_a_run_keeps_its_folder_where_fields_have_new_names() -> None:
    changed = ("padding_loss=batch", "growth_clip=1.5", "model.halting=eoq", "stage_steps=3,4")
    run = RunSpec("copy", "fop-loop-adaptive", "fast", (0,), changed)
    assert run.folder == "copy-fop-loop-adaptive-fast-70dd4274", (
        "as it was with dwell, trailing, steady and mark"
    )


@pytest.mark.parametrize("figure", [*paper.FIGURES, *paper.BEYOND])
def test_published_results_are_those_of_their_figure(figure: str) -> None:
    """Names of folders and files, configurations and plans are read as they were written."""
    found = 0
    for planned in paper.rows([paper.get(figure)]):
        plan = planned.plan.fit(planned.run)
        file = queue.result_file(ROOT / "results" / "archive" / "first-start", planned.run.folder, plan)
        found += bool(queue.read_result(file, planned.run.config, plan))
    assert found > 0 or figure in paper.BEYOND


@pytest.mark.parametrize("file", sorted((ROOT / "results").glob("ladder*.json")), ids=lambda file: file.stem)
def test_published_length_sweeps_are_read_and_written_alike(file: Path) -> None:
    written = json.loads(file.read_text(encoding="utf-8"))
    found = SweepRecord(file).as_dict()
    assert found["rows"] == written["rows"]
    assert found["ladder"] == written["ladder"]


def test_an_unfinished_length_sweep_is_resumed(tmp_path: Path) -> None:
    what = ["copy@1f0c9a3e", 20, "uniform", 2000, "oracle"]
    state = {"batch": 1, "row": 320, "right": [[1344]], "steps": [[134400]]}
    unfinished = {"rung": what, "state": state, "seconds": 3.5}
    data = {"provenance": {"runs": []}, "rows": [], "steps": [], "unfinished": unfinished}
    file = tmp_path / "ladder.json"
    file.write_text(json.dumps(data))
    assert SweepRecord(file).left(what) == (state, 3.5)


def test_every_shipped_card_is_read() -> None:
    for name in zoo.names():
        assert zoo.card(name).to_json()["name"] == name
