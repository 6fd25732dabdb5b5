"""`looped evaluate`: rows with provenance, seeds side by side, and a sentence for whatever cannot be measured."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped import checkpoints, runs
from looped.cli import evaluate
from looped.errors import InputError
from looped.evaluation import measure
from looped.evaluation.loading import parse_lengths
from looped.evaluation.measure import work
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

Cli = Callable[..., tuple[int, str, str]]
FEW = ["--lengths", "2,4", "--samples", "50", "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two seeds that learned a little."""
    config = make("copy", "fop-loop-adaptive", "quick", (0, 5))
    model = replace(config.model, width=16, heads=2, bands=(2,))
    config = replace(config, model=model, steps=20, interval=5, max_length=3, batch=8)
    folder = tmp_path_factory.mktemp("runs") / "small"
    train(config, folder, cadence=Cadence(samples=4))
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy that a test may damage."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "small")
    return Path("small")


def test_rows_and_where_they_come_from(cli: Cli, run: Path) -> None:
    words = ["evaluate", run, *FEW, "--stop", "oracle", "confidence", "threshold=0.5", "--seed", "3"]
    code, out, err = cli(*words, "--json", "--out", "result.json")
    assert (code, err) == (0, "wrote result.json\n")
    result = json.loads(out)
    assert json.loads(Path("result.json").read_text()) == result
    keys = ["task", "method", "recipe", "seed", "length", "stop", "accuracy", "samples", "mean_steps"]
    assert all(list(row) == keys for row in result["rows"])
    assert [(row["length"], row["stop"], row["seed"]) for row in result["rows"]] == [
        (length, stop, seed)
        for length in (2, 4)
        for stop in ("oracle", "confidence", "threshold=0.5")
        for seed in (0, 5)
    ]
    origin = result["provenance"]
    assert {"looped", "commit", "device", "torch", "precision", "wall_seconds", "runs"} == set(origin)
    assert origin["runs"][0]["run"] == "small"
    assert origin["runs"][0]["seeds"] == [0, 5]
    assert origin["runs"][0]["config"] == json.loads((run / "config.json").read_text())["config"]
    assert cli(*words, "--json")[1].partition('"rows"')[2] == out.partition('"rows"')[2], "repeatable"


def test_seeds_together_are_seeds_alone(cli: Cli, run: Path) -> None:
    together = json.loads(cli("evaluate", run, *FEW, "--json")[1])["rows"]
    files = [run / "seed-0.safetensors", run / "seed-5.safetensors"]
    alone = json.loads(cli("evaluate", *files, *FEW, "--json")[1])["rows"]
    assert sorted(map(str, together)) == sorted(map(str, alone))


@pytest.mark.parametrize("command", ["evaluate", "discover"])
def test_long_work_says_how_far_it_is(
    cli: Cli, run: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looped.output.QUIET_S", -1.0)
    code, _, err = cli(command, run, *FEW)
    assert (code, err) == (
        0,
        "measured 1 of 2: small: length 2\nmeasured 2 of 2: small: length 4\n",
    )


def test_what_a_cpu_does_in_time_is_chosen(cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = cli("evaluate", run, "--device", "cpu", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert [row["length"] for row in rows[::2]] == [3, 4, 6, 9], (
        "from the training length to three times that"
    )
    assert rows[0]["samples"] in evaluate.ROUND
    told = f"looped: {rows[0]['samples']} problems per length at 3,4,6,9, about 0:"
    assert err.startswith(told)
    monkeypatch.setattr(evaluate, "BUDGET_S", 0.0)
    assert "looped: 10 problems per length" in cli("evaluate", run, "--device", "cpu").err
    rows = json.loads(cli("evaluate", run, "--samples", "7", "--device", "cpu", "--json").out)["rows"]
    assert (len(rows), rows[0]["samples"]) == (8, 7), "what is given is done"


def test_long_work_says_before_it_starts_how_long_it_takes(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "QUICK", 0)
    monkeypatch.setattr(evaluate, "TOLD_S", -1.0)
    assert cli("evaluate", run, *FEW).err == "looped: this takes about 0:00\n"


def test_the_time_of_a_measurement_is_estimated(run: Path) -> None:
    subject = evaluate.load(run, torch.device("cpu")).subject
    rules = [evaluate.stopping.get("oracle")]
    seconds = evaluate.pace(subject, 8, rules)
    one, many = (seconds(n, 50) for n in (4, 16))
    assert 0 < one < many, "longer questions take more steps of longer rows"
    layers, few = work(subject, 8, 10, rules)
    assert work(subject, 8, 20, rules) == (layers, 2 * few), "twice the problems, twice the multiplications"
    assert work(subject, 8, 10, [evaluate.stopping.get("converged")])[0] == 2 * layers, (
        "which looks to 2 T(n)"
    )


def test_the_time_left_is_corrected_by_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(evaluate.time, "monotonic", lambda: now[0])
    left = evaluate.TimeLeft([10.0, 10.0, 20.0])
    assert str(left) == "about 0:40 left"
    now[0] = 20.0  # half as fast as expected
    left.done()
    assert 45 < left.seconds() < 60
    now[0] = 40.0
    assert 35 < float(left.seconds() if left.done() else 0) < 40
    assert evaluate.TimeLeft([0.0, 0.0]).done() == "", "nothing is known"


@pytest.mark.parametrize("command", ["evaluate", "discover"])
def test_what_is_measured_outlives_an_interruption(
    cli: Cli, run: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"evaluate": "measure", "discover": "discover"}[command]
    whole, left = getattr(measure, name), iter([True, False])

    def once(*words: object, **more: object) -> object:
        if not next(left):
            raise KeyboardInterrupt
        return whole(*words, **more)

    unbroken = json.loads(cli(command, run, *FEW, "--json")[1])
    monkeypatch.setattr(measure, name, once)
    code, out, err = cli(command, run, *FEW, "--json", "--out", "part.json")
    part = json.loads(out)
    assert code == 130
    assert err.endswith("looped: interrupted; this is what was measured until then\n")
    assert part["rows"] == [row for row in unbroken["rows"] if row["length"] == 2]
    assert part["provenance"]["interrupted"] is True
    assert json.loads(Path("part.json").read_text()) == part
    left = iter([True, False])
    kept = Path("part.json").read_text()
    code, out, err = cli(command, run, *FEW, "--json", "--out", "part.json")
    assert (code, Path("part.json").read_text()) == (130, kept), "a file that is there stays"
    assert "wrote part.json.partial\n" in err
    assert json.loads(Path("part.json.partial").read_text()) == json.loads(out)


def test_an_interruption_before_anything_is_measured_leaves_nothing(
    cli: Cli, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(*words: object, **more: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "measure", at_once)
    assert cli("evaluate", run, *FEW, "--out", "part.json")[0] == 130
    assert not Path("part.json").exists()


def test_the_table(cli: Cli, run: Path) -> None:
    code, out, err = cli("evaluate", run, run / "seed-5.safetensors", *FEW, "--family", "uniform", "zeros")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["run", "length", "stop", "inputs", "exact", "steps"]
    assert len(lines) == 1 + 2 * 2 * 2
    assert " ± " in lines[1], "two seeds have a standard error"
    assert " to " in lines[-1], "one seed has an interval"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", [7]),
        ("1:4", [1, 2, 3, 4]),
        ("5:7", [5, 6, 7]),
        ("5:20:5", [5, 10, 15, 20]),
        ("10,20,15", [10, 20, 15]),
        ("1:3,2:5,9", [1, 2, 3, 4, 5, 9]),
        (" 1 , 2 ", [1, 2]),
    ],
)
def test_lengths(text: str, expected: list[int]) -> None:
    assert parse_lengths(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a", "0", "0:3", "3:1", "1:5000", "1:4:0", "1:2:3:4", "-1", "1.5", "1:", "1,,2", "9" * 30]
)
def test_lengths_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="lengths are written 1:60, 1:60:5 or 10,20,40"):
        parse_lengths(text)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "needs a RUN"),
        (["nowhere"], "there is no run nowhere"),
        (["."], "holds no trained weights"),
        (["small", "--lengths", "1:9999"], "lengths are written"),
        (["small", "--samples", "0"], "the number of samples must be at least 1"),
        (
            ["small", "--samples", "999999999999"],
            "the number of samples must be at most 100,000,000, not 999,9",
        ),
        (["small", "--stop", "never"], "unknown stopping rule 'never'"),
        (["small", "--family", "primes"], "copy has no input distribution 'primes'"),
        (["small", "--family"], "--family must name at least one input distribution"),
        (["small", "--stop", f"converged={10**20}"], "must stay unchanged for 1 to 1000000000 steps"),
        (["small", "--device", "tpu"], "unknown device 'tpu'"),
        (["small", "--seed", "-1"], "--seed must be between 0"),
        (["small", "--out", "no/where.json"], "--out must name a file in a folder that exists"),
        (["small", "--out", "."], "--out must name a file"),
        (["small", "--out", "/proc/rows.json"], "/proc/rows.json cannot be written"),
        (["small/config.json"], "config.json is truncated, damaged or no safetensors file"),
        (["small/state.safetensors"], "not one of ours of the kind 'looped-seed-1'"),
    ],
)
def test_bad_words(cli: Cli, run: Path, words: list[str], complaint: str) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    code, out, err = cli("evaluate", *words)
    assert (code, out) == (2, "")
    assert complaint in err
    assert err.count("\n") == 1
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    assert [path.name for path in Path().iterdir()] == ["small"]


def test_damaged_checkpoints(cli: Cli, run: Path) -> None:
    path = run / "seed-5.safetensors"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-9] ^= 1
    for content, complaint in [
        (whole[: len(whole) // 2], "is truncated, damaged or no safetensors file"),
        (b"", "is truncated, damaged or no safetensors file"),
        (bytes(flipped), "is damaged: its contents do not match its checksum"),
    ]:
        path.write_bytes(content)
        code, out, err = cli("evaluate", run, *FEW)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"seed-5.safetensors {complaint}" in err
        assert path.read_bytes() == content


def test_seeds_of_two_configurations_in_one_folder(cli: Cli, run: Path) -> None:
    path = run / "seed-5.safetensors"
    metadata, tensors = checkpoints.load(path, runs.SEED_KIND, lambda metadata, shapes: None)
    config = json.loads(metadata["config"])
    config["steps"] = 999
    checkpoints.save(path, runs.SEED_KIND, tensors, {**metadata, "config": json.dumps(config)})
    assert "was trained with another configuration than" in cli("evaluate", run, *FEW)[2]


def test_a_fixed_depth_takes_only_the_oracle(cli: Cli, tmp_path: Path) -> None:
    config = make("parity", "ntp", "quick", (0,))
    model = replace(config.model, width=16, heads=2, bands=(), layers=1)
    config = replace(config, model=model, steps=2, max_length=3, batch=4)
    train(config, tmp_path / "ntp", cadence=Cadence(samples=4))
    code, out, _ = cli("evaluate", tmp_path / "ntp", *FEW, "--json")
    assert code == 0
    assert {row["mean_steps"] for row in json.loads(out)["rows"]} == {1.0}
    code, _, err = cli("evaluate", tmp_path / "ntp", *FEW, "--stop", "confidence")
    assert (code, "has a fixed depth" in err) == (2, True)


def test_weights_survive_the_way_to_the_command(cli: Cli, run: Path) -> None:
    """A model whose answer is always the end mark is never right; the measured zero comes from its weights."""
    path = run / "seed-0.safetensors"
    metadata, tensors = checkpoints.load(path, runs.SEED_KIND, lambda metadata, shapes: None)
    tensors["readout.bias"] = torch.tensor([0.0, 0.0, 0.0, 1e4, 0.0])
    checkpoints.save(path, runs.SEED_KIND, tensors, metadata)
    rows = json.loads(cli("evaluate", path, *FEW, "--json")[1])["rows"]
    assert [row["accuracy"] for row in rows] == [0.0, 0.0]


def test_a_shipped_model_by_its_name(
    trained: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looped.zoo.FOLDER", tmp_path)
    shutil.copy(trained / "seed-0.safetensors", tmp_path / "copy-quick.safetensors")
    code, out, _ = cli("evaluate", "copy", *FEW, "--json")
    assert code == 0
    assert {row["seed"] for row in json.loads(out)["rows"]} == {0}
    code, _, err = cli("evaluate", "parity", *FEW)
    assert (code, "there is no run parity" in err) == (2, True)


def test_a_rule_named_twice_is_one_rule(cli: Cli, run: Path) -> None:
    stops = ["--stop", "converged", "oracle", "converged=3", "oracle"]
    code, out, _ = cli("evaluate", run, *FEW, *stops, "--family", "uniform", "uniform", "--json")
    assert code == 0
    keys = [(row["length"], row["stop"], row["seed"]) for row in json.loads(out)["rows"]]
    assert keys == [(n, stop, seed) for n in (2, 4) for stop in ("converged", "oracle") for seed in (0, 5)]


def test_a_full_disk_loses_no_row(cli: Cli, monkeypatch: pytest.MonkeyPatch, run: Path) -> None:
    def full(path: Path, data: bytes) -> None:
        raise InputError(f"the disk is full: {path} could not be written")

    monkeypatch.setattr("looped.cli.evaluate.checkpoints.write", full)
    code, out, err = cli("evaluate", run, *FEW, "--json", "--out", "rows.json")
    assert code == 2
    assert "the disk is full: rows.json" in err
    assert len(json.loads(out)["rows"]) == 4
