"""`looped reproduce`: a figure from real runs, only what is missing, and the same again from results alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import SMALL

from looped.experiments import backends

Cli = Callable[..., tuple[int, str, str]]
SETS = [word for assignment in SMALL for word in ("--set", assignment)]
FIGURE = {
    "main": ["--methods", "fop-loop-adaptive,ntp-loop", "--lengths", "2,4"],
    "ablation": ["--methods", "fop-loop-adaptive,fop-loop-fixed", "--lengths", "2,4"],
    "stopping": ["--lengths", "3"],
    "rules": ["--lengths", "2,4"],
    "fig7,rules-far": ["--methods", "fop-loop-adaptive,fop-loop-fixed", "--lengths", "2,4"],
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything goes below a temporary folder; workers are forks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(backends.BACKENDS, "local", "forked:Forked")


def words(figure: str, *more: str) -> list[str]:
    shared = ["--recipe", "quick", "--seeds", "0,1", "--tasks", "copy", "--samples", "10", "--device", "cpu"]
    return ["reproduce", figure, *FIGURE[figure], *shared, "--workers", "2", *SETS, *more]


def files(folder: str) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in Path(folder).rglob("*") if path.is_file()}


def test_a_figure_from_start_to_end(cli: Cli) -> None:
    code, out, err = cli(*words("main"), "--dry-run", "--json")
    assert code == 0
    assert [run["state"] for run in json.loads(out)["runs"]] == ["queued", "queued"]
    assert list(Path().iterdir()) == [], "a dry run writes nothing"
    code, out, err = cli(*words("main", "--json"))
    assert code == 0, err
    made = json.loads(out)
    assert (made["figure"], made["ending"]) == ("main", "complete")
    assert [(run["method"], run["state"]) for run in made["runs"]] == [
        ("fop-loop-adaptive", "done"), ("ntp-loop", "done")
    ]  # fmt: skip
    assert all(Path(file).is_file() for file in made["results"])
    rows = [row for file in made["results"] for row in json.loads(Path(file).read_text())["rows"]]
    assert {(row["method"], row["length"], row["seed"], row["samples"]) for row in rows} == {
        (method, n, seed, 10)
        for method in ("fop-loop-adaptive", "ntp-loop")
        for n in (2, 4)
        for seed in (0, 1)
    }
    assert made["drawn"] == ["results/figures/main.svg", "results/figures/main.png"]
    drawn = [Path(path).read_bytes() for path in made["drawn"]]
    assert b"<svg" in drawn[0]
    assert drawn[1].startswith(b"\x89PNG")
    trained = files("runs")
    code, out, _ = cli(*words("main"))
    assert (code, [line.split()[:4] for line in out.splitlines()[1:]]) == (
        0, [["copy", method, "4", "oracle"] for method in ("fop-loop-adaptive", "ntp-loop")]
    )  # fmt: skip
    assert files("runs") == trained, "the second time there is nothing to do"

    first, second = map(Path, made["results"])
    text = json.loads(first.read_text())["rows"]
    kept = second.stat().st_mtime_ns
    first.unlink()
    shutil.rmtree("runs/" + made["runs"][1]["run"])
    assert cli(*words("main"))[0] == 0
    assert json.loads(first.read_text())["rows"] == text, "only the missing result was measured again"
    assert second.stat().st_mtime_ns == kept
    assert not Path("runs/" + made["runs"][1]["run"]).exists(), "what is measured needs no training"

    shutil.rmtree("runs")
    shutil.rmtree("results/figures")
    assert cli(*words("main"))[0] == 0
    assert [Path(path).read_bytes() for path in made["drawn"]] == drawn, "the same results, the same drawing"
    assert not Path("runs").exists(), "with all results at hand, nothing is trained and nothing started"


def test_what_is_there_is_drawn_without_running_anything(cli: Cli) -> None:
    code, _, err = cli(*words("main", "--draw"))
    assert (code, err) == (2, "looped: results holds no result of figure main yet\n")
    made = json.loads(cli(*words("main", "--json"))[1])
    Path(made["results"][1]).unlink()
    shutil.rmtree("runs")
    shutil.rmtree("results/figures")
    code, out, err = cli(*words("main", "--draw", "--json"))
    assert code == 0
    part = json.loads(out)
    assert (part["results"], part["drawn"]) == (made["results"][:1], made["drawn"])
    assert part["missing"] == [made["runs"][1]["run"]]
    assert err.startswith("1 of 2 runs have results\n")
    assert all(Path(path).is_file() for path in part["drawn"])
    assert not Path("runs").exists()
    assert cli(*words("main", "--draw"))[1].splitlines()[1].split()[:2] == ["copy", "fop-loop-adaptive"]


def test_several_figures_in_one_go(cli: Cli) -> None:
    code, out, err = cli(*words("fig7,rules-far", "--json"))
    assert code == 0, err
    made = json.loads(out)
    assert made["figure"] == "ablation,rules-far"
    assert len(list(Path("runs").glob("copy-*"))) == 2, "a run that both figures have is trained once"
    assert len(made["results"]) == 3, "two methods by length, and one under every rule"
    assert sorted(Path(path).name for path in made["drawn"] if path.endswith("svg")) == [
        "ablation.svg",
        "rules-far.svg",
    ]


def test_figures_share_runs_and_results(cli: Cli) -> None:
    made = {}
    for figure in ("ablation", "rules", "stopping"):
        code, out, err = cli(*words(figure, "--json"))
        assert code == 0, err
        made[figure] = json.loads(out)
    assert len(list(Path("runs").glob("copy-*"))) == 2, "two methods, each trained once"
    assert set(made["ablation"]["results"]) & set(made["rules"]["results"]), "the fixed loop is measured once"
    rows = json.loads(Path(made["rules"]["results"][0]).read_text())["rows"]
    assert {row["stop"] for row in rows} == {
        "oracle",
        "confidence-batch",
        "confidence",
        "threshold",
        "converged",
    }
    assert sorted(path.stem for path in Path("results/figures").glob("*.svg")) == [
        "ablation",
        "rules",
        "stopping",
    ]
    (steps,) = made["stopping"]["results"]
    assert {row["step"] for row in json.loads(Path(steps).read_text())["rows"]} == {1, 2, 3, 4, 5, 6}


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (["reproduce"], "looped reproduce needs FIGURE"),
        (["reproduce", "maine"], "unknown figure 'maine'; the figures are main, ablation, stopping, rules"),
        (["reproduce", "main", "--seeds", "a"], "--seeds takes whole numbers separated by commas, not 'a'"),
        (["reproduce", "main", "--seeds", "1,1"], "seeds must be distinct"),
        (["reproduce", "main", "--tasks", "sorting"], "unknown task 'sorting'"),
        (["reproduce", "main", "--methods", "fop"], "figure main has no method 'fop'"),
        (["reproduce", "main", "--recipe", "slow"], "unknown recipe 'slow'"),
        (["reproduce", "main", "--samples", "0"], "the number of samples must be at least 1"),
        (["reproduce", "main", "--lengths", "x"], "lengths are written 1:60"),
        (["reproduce", "main", "--set", "stesp=3"], "there is no field 'stesp'"),
        (["reproduce", "main", "--engine", "cloud"], "unknown engine 'cloud'"),
        (["reproduce", "main", "--engine", "cloud", "--dry-run"], "unknown engine 'cloud'"),
        (["reproduce", "main", "--workers", "-1", "--dry-run"], "the number of workers must be from 0"),
        (["reproduce", "main", "--draw", "--dry-run"], "ask for one of them"),
    ],
)
def test_bad_words(cli: Cli, more: list[str], complaint: str) -> None:
    code, out, err = cli(*more)
    assert (code, out) == (2, "")
    assert complaint in err.splitlines()[-1]
    assert list(Path().iterdir()) == [], "nothing was written"


def test_a_machine_without_matplotlib_leaves_the_drawing_out(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare:
        bare.setattr("importlib.util.find_spec", lambda name: None)
        code, out, err = cli(*words("stopping"), "--json")
    made = json.loads(out)
    assert (code, made["ending"], made["drawn"]) == (0, "complete", [])
    assert "matplotlib is not installed here" in err
    monkeypatch.setitem(backends.BACKENDS, "local", "nowhere:Nowhere")
    code, out, _ = cli(*words("stopping"), "--json")
    assert (code, len(json.loads(out)["drawn"])) == (0, 2), "everything was there"
