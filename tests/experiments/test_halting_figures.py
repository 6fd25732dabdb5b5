"""`looped reproduce halting` and `wrong-steps`, and `looped discover`: from runs to rows to a drawing, all tiny."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from looped import tasks
from looped.errors import InputError
from looped.evaluation.loading import variant
from looped.experiments import backends, paper
from looped.experiments.paper import FigureChoice
from looped.experiments.plan import RunSpec

Cli = Callable[..., tuple[int, str, str]]
SETS = ["steps=4", "interval=2", "max_length=3", "batch=2", "model.width=8"]
SHARED = ["--recipe", "quick", "--seeds", "0,1", "--tasks", "copy", "--samples", "6", "--device", "cpu"]
SMALL = [*SHARED, "--lengths", "2,4", "--workers", "2", *(word for each in SETS for word in ("--set", each))]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes below a temporary folder; workers are forks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(backends.BACKENDS, "local", "forked:Forked")


@pytest.mark.parametrize("name", [pytest.param("halting", marks=pytest.mark.slow), "wrong-steps"])
def test_a_figure_beyond_the_paper_from_start_to_end(cli: Cli, name: str) -> None:
    code, out, err = cli("reproduce", name, *SMALL, "--json")
    assert code == 0, err
    made = json.loads(out)
    assert made["drawn"] == [f"results/figures/{name}.svg", f"results/figures/{name}.png"]
    rows = [row for file in made["results"] for row in json.loads(Path(file).read_text())["rows"]]
    told = {(row["method"], row.get("variant", "")) for row in rows}
    ours = "fop-loop-adaptive"
    if name == "halting":
        assert told == {
            (ours, ""), ("ut", ""), ("pondernet", ""), (ours, "start"), (ours, "start q act"), (ours, "start q ponder"),
            (ours, "start q..2q"), (ours, "start 2q best"), (ours, "start 2q expected mark"),
        }  # fmt: skip
    else:
        assert told == {(ours, ""), (ours, "T+1"), (ours, "2T"), (ours, "T/2"), (ours, "20")}
    for row in rows:
        assert row["needed"] == row["length"]
        assert 0 <= row["accuracy"] <= 1
        assert (row["random_exit"] is None) == (row["method"] in ("ut", "pondernet"))
    drawn = Path(made["drawn"][0]).read_bytes()
    code, out, err = cli("figure", *made["results"], "--out", "again.svg", "--json")
    assert (code, json.loads(out)["kind"]) == (0, "halting")
    assert Path("again.svg").read_bytes() == drawn, "from the files of results alone"


def test_what_a_run_discovered(cli: Cli) -> None:
    words = ["train", "copy", "--recipe", "quick", "--seeds", "0", "--device", "cpu", "--out", "runs/free"]
    sets = [word for each in (*SETS, "loops=q..2q") for word in ("--set", each)]
    assert cli(*words, *sets)[0] == 0
    code, out, err = cli("discover", "runs/free", "--lengths", "2,3", "--samples", "5", "--out", "found.json")
    assert code == 0, err
    head, first, *_ = out.splitlines()
    assert head.split()[:2] == ["run", "length"]
    assert first.split()[:3] == ["free", "2", "2"]
    assert "oracle" in first, "as many steps as the rule of its training says"
    rows = json.loads(Path("found.json").read_text())["rows"]
    assert [(row["length"], row["stop"]) for row in rows] == [(2, "oracle"), (3, "oracle")]
    code, out, _ = cli(
        "discover", "runs/free", "--lengths", "2", "--samples", "5", "--stop", "oracle", "--json"
    )
    assert [row["mean_steps"] for row in json.loads(out)["rows"]] == [2.0]
    code, _, err = cli("discover", "runs/free", "--stop", "halt", "--lengths", "2")
    assert (code, "models that say when they are done" in err) == (2, True)
    assert cli("discover")[0] == 2


def test_lines_are_chosen_by_their_name() -> None:
    figure = paper.get("halting")
    rows = paper.rows([figure], FigureChoice(recipe="quick", tasks=("parity",), methods=("ponder", "ut")))
    assert [variant(row.run.config) for row in rows] == ["", "start q ponder"]
    assert [row.plan.fit(row.run).stops[0] for row in rows] == ["halt", "halt"]
    with pytest.raises(InputError, match="figure halting has no method 'ntp'"):
        paper.rows([figure], FigureChoice(methods=("ntp",)))


def test_every_line_can_be_trained_by_every_recipe() -> None:
    for name in paper.BEYOND:
        for recipe in ("paper", "fast", "quick"):
            rows = paper.rows([paper.get(name)], FigureChoice(recipe=recipe))
            folders = {row.run.folder for row in rows}
            assert len(folders) == len(rows) == len(paper.get(name).lines) * len(tasks.TASKS)


def test_a_variant_is_named_by_what_it_changes() -> None:
    assert variant(RunSpec("copy").config) == ""
    assert variant(RunSpec("copy", "ut").config) == ""
    assert variant(RunSpec("copy", set=("loops=2q", "supervision=best")).config) == "2q best"
    assert variant(RunSpec("copy", set=("model.halting=act",)).config) == "act"
