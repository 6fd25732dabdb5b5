"""Which signs predict how far replicas hold: on made-up replicas whose answer is known, and on a small population."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import predictors
from benchmarks.__main__ import main
from benchmarks.predictors import Replica, correlate, interval, ranks, spearman
from looped.training import recipes
from looped.training.trainer import train


def test_ranks_of_equals_are_shared() -> None:
    assert ranks(np.array([3.0, 1.0, 3.0, 9.0])).tolist() == [1.5, 0.0, 1.5, 3.0]


@pytest.mark.parametrize(
    ("a", "b", "rho"),
    [
        ([1, 2, 3, 4], [10, 20, 30, 1000], 1.0),
        ([1, 2, 3, 4], [9, 4, 2, 1], -1.0),
        ([1, 2, 3, 4, 5], [2, 1, 4, 3, 5], 0.8),  # 1 - 6·4 / (5·24)
        ([1, 1, 2, 2], [1, 2, 1, 2], 0.0),
        ([1, 1, 1, 1], [1, 2, 3, 4], None),
        ([1, 2, 3], [1, 2, 3], None),
    ],
)
def test_spearman_of_known_values(a: list[float], b: list[float], rho: float | None) -> None:
    found = spearman(np.array(a, float), np.array(b, float))
    assert found == (None if rho is None else pytest.approx(rho))


def test_the_interval_holds_the_correlation_and_narrows() -> None:
    random = np.random.default_rng(1)
    widths = []
    for size in (20, 500):
        a = random.normal(size=size)
        b = a + random.normal(size=size)
        low, high = interval(a, b)
        assert low < spearman(a, b) < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


def made_up(count: int) -> list[Replica]:
    """Replicas whose reach grows with their margin and falls with their novelty; `robust` says nothing."""
    return [
        Replica(
            "copy", "run", 0, i, i, i == count - 1,
            {"exact": 1.0, "margin": float(i), "novelty": 1 / (i + 1), "robust": i * 7.0 % count, "invariance": None},
            {"L99": 20 + 10 * i, "L999": 20},
        )
        for i in range(count)
    ]  # fmt: skip


def test_what_choosing_gave() -> None:
    """Five replicas of a seed: the last is chosen, the second has the lowest loss, the third is the most robust."""
    replicas = [vars(each) for each in made_up(5)]
    for each, loss, robust in zip(
        replicas, (0.3, 0.1, 0.2, None, 0.4), (0.1, 0.2, 0.9, 0.9, None), strict=True
    ):
        each["signs"] = {**each["signs"], "loss": loss, "robust": robust}
    replicas[0]["signs"]["exact"] = 0.5
    lines = predictors.gains_table({"correlations": {"copy": {}}, "replicas": replicas}, "L99").splitlines()
    assert lines[0] == (
        "| task | replicas | of them exact when held out | median | best | chosen, mean | lowest loss, mean "
        "| most robust, mean |"
    )
    assert lines[2:] == ["| copy | 5 | 4 | 40 | 60 | 60 | 30 | 40 |"]


def test_signs_count_in_the_direction_in_which_they_are_better() -> None:
    found = correlate(made_up(40), "L99")
    assert (found["margin"]["rho"], found["novelty"]["rho"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert found["margin"]["replicas"] == 40
    assert abs(found["robust"]["rho"]) < 0.3
    assert found["robust"]["low"] < 0 < found["robust"]["high"]
    assert found["exact"] is None  # it does not vary
    assert found["invariance"] is None  # it was not measured
    assert set(correlate(made_up(40), "L999").values()) == {None}  # all hold equally far


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = recipes.make("copy", "fop-loop-adaptive", "quick", (0, 1))
    fields = [
        "steps=120",
        "interval=12",
        "max_length=5",
        "replicas=3",
        "hold_out=1",
        "model.width=16",
        "batch=16",
    ]
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(recipes.with_fields(config, fields), folder, keep_replicas=True)
    return folder


def test_a_small_population(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "predictors.json"
    words = [
        "--lengths",
        "3,5,8,12",
        "--samples",
        "20",
        "--families",
        "uniform",
        "--stop",
        "oracle",
        "--device",
        "cpu",
    ]
    assert main(["predictors", str(small), "--out", str(out), *words]) == 0
    shown = capsys.readouterr().out
    data = json.loads(out.read_text())
    assert data["complete"] is True
    assert (data["lengths"], data["stop"]) == ([3, 5, 8, 12], {"copy": "oracle"})
    assert len(data["replicas"]) == 6
    assert sum(each["chosen"] for each in data["replicas"]) == 2
    assert {each["reach"]["L99"] for each in data["replicas"]} <= {0, 3, 5, 8, 12}
    record = json.loads((small / "selection.json").read_text())
    first = record["populations"][0]["replicas"][0]
    mine = next(each for each in data["replicas"] if each["seed"] == first["seed"])
    assert (mine["signs"], mine["population"], mine["replica"]) == (first["signs"], 0, 0)
    assert set(data["correlations"]["copy"]["L99"]) == set(predictors.SIGNS)
    assert "| sign | copy |" in shown
    assert "| copy | 6 |" in shown
    before = out.read_bytes()
    assert main(["predictors", str(small), "--out", str(out), *words]) == 0  # nothing is measured again
    assert json.loads(out.read_bytes())["replicas"] == json.loads(before)["replicas"]
    capsys.readouterr()
    assert main(["predictors", "--out", str(out)]) == 0
    assert "| sign | copy |" in capsys.readouterr().out


def test_runs_that_share_their_seeds_are_told_apart(small: Path, tmp_path: Path) -> None:
    """Replicas of one seed have the same names in every run; each model stops by its own rule."""
    fields = [
        "steps=4", "interval=1", "max_length=3", "replicas=2", "hold_out=1", "refine=0", "batch=4",
        "model.width=16", "model.positions=start", "model.halting=eoq",
    ]  # fmt: skip
    config = recipes.with_fields(recipes.make("parity", "fop-loop-adaptive", "quick", (0, 1)), fields)
    other = tmp_path / "other"
    train(config, other, keep_replicas=True)
    words = ["--lengths", "1,3", "--samples", "20", "--families", "uniform", "--device", "cpu"]

    def measured(*folders: Path) -> dict[str, Any]:
        out = tmp_path / f"{len(folders)}-{folders[0].name}.json"
        assert main(["predictors", *map(str, folders), "--out", str(out), *words]) == 0
        return json.loads(out.read_text())

    alone, both = [measured(small), measured(other)], measured(small, other)
    assert both["replicas"] == alone[0]["replicas"] + alone[1]["replicas"]
    assert {each["seed"] for each in alone[1]["replicas"]} < {each["seed"] for each in alone[0]["replicas"]}
    assert alone[0]["replicas"][0]["reach"] != alone[1]["replicas"][0]["reach"]
    assert both["stop"] == {"copy": "oracle", "parity": "halt"}


def test_a_file_keeps_the_tasks_whose_runs_are_gone(small: Path, tmp_path: Path) -> None:
    out, old = tmp_path / "predictors.json", ROOT / "results" / "predictors-copy-fresh.json"
    other = json.loads(old.read_text())
    for each in other["replicas"]:
        each["task"] = "parity"
    for name in ("correlations", "stop", "input_distributions"):
        other[name] = {"parity": other[name]["copy"]}
    out.write_text(json.dumps(other))
    words = [str(small), "--out", str(out), "--samples", "20", "--families", "uniform", "--device", "cpu"]
    for lengths in ("3,5", "3,6"):  # the second time, the replicas of copy are replaced
        assert main(["predictors", *words, "--lengths", lengths]) == 0
    data = json.loads(out.read_text())
    assert [each for each in data["replicas"] if each["task"] == "parity"] == other["replicas"]
    for sign, found in other["correlations"]["parity"]["L99"].items():
        assert data["correlations"]["parity"]["L99"][sign] == (found and pytest.approx(found))
    assert data["stop"] == {"parity": "oracle", "copy": "oracle"}
    assert sum(each["task"] == "copy" for each in data["replicas"]) == 6
    assert data["measured"]["parity"] == {"lengths": other["lengths"], **other["provenance"]}
    assert data["measured"]["copy"]["lengths"] == [3, 5, 6]  # what was swept before stays
    assert data["lengths"] == sorted({3, 5, 6, *other["lengths"]})


def test_bad_input_is_one_sentence(small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.json").write_text("{}")
    for words, sentence in (
        ([str(tmp_path)], "has kept no replicas"),
        (["--out", str(tmp_path / "other.json")], "holds no correlations"),
        (["--out", str(tmp_path / "none.json")], "there is no file"),
        ([str(small), "--stop", "halt", "--device", "cpu", "--out", str(tmp_path / "x.json")], "halt"),
    ):
        assert main(["predictors", *words]) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert said.count("\n") == 1
