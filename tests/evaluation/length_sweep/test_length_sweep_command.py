"""`looped bench ladder` from its words to its file, with runs that are exact because their weights are a program."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from looped import files

Cli = Callable[..., tuple[int, str, str]]
SaveRun = Callable[..., Path]
FEW = ["--lengths", "3,6", "--samples", "20", "--step-samples", "10", "--device", "cpu"]
ZEROS = ["--families", "zeros"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_ladder_and_its_file(cli: Cli, here: Path, save_run: SaveRun) -> None:
    save_run(here / "good")
    code, out, err = cli("bench", "ladder", "good", *FEW, *ZEROS, "--json")
    assert (code, err) == (0, "wrote results/ladder.json\n")
    data = json.loads(out)
    assert json.loads(Path("results/ladder.json").read_text()) == data
    (ladder,) = data["ladder"]
    assert ladder["run"].startswith("good@")
    assert (ladder["task"], ladder["seeds"], ladder["trained"], ladder["paper"]) == ("copy", [0, 1], 4, 35)
    assert [(e["inputs"], e["stop"], e["L99"], e["L999"]) for e in ladder["reach"]] == [
        (inputs, stop, 6, 6)
        for inputs in ("uniform", "all families")
        for stop in ("oracle", "converged", "halt")
    ]
    keys = ["task", "method", "recipe", "seed", "length", "stop", "accuracy", "samples", "mean_steps", "run"]
    assert list(data["rows"][0]) == keys
    assert [list(row) for row in data["rows"] if row.get("family") == "zeros"] == [
        [*keys[:-1], "family", "run"]
    ] * 12
    assert [(e["seed"], e["length"], e["samples"]) for e in data["steps"]] == [
        (seed, length, 10) for length in (3, 6) for seed in (0, 1)
    ]
    (run,) = data["provenance"]["runs"]
    assert run["config"] == json.loads(Path("good/config.json").read_text())["config"]
    assert (run["precision"], run["problem_seed"], len(run["checksum"])) == ("fp32", 0, 64)
    assert {"looped", "commit", "device", "torch"} <= set(data["provenance"])
    assert (run["devices"], run["measured_by"]) == (
        [data["provenance"]["device"]],
        [data["provenance"]["commit"]],
    )


def test_one_bad_seed_ends_the_ladder(cli: Cli, here: Path, save_run: SaveRun) -> None:
    save_run(here / "mixed", seeds=(0, 7), broken=(7,))
    code, out, _ = cli("bench", "ladder", "mixed", *FEW, *ZEROS, "--stop", "oracle")
    assert code == 0
    lines = [line.split() for line in out.split("\n\n")[0].splitlines()]
    assert lines[1][5:] == ["uniform", "oracle", "–", "–", "0.0000", "at", "3,", "seed", "7"]
    (ladder,) = json.loads(Path("results/ladder.json").read_text())["ladder"]
    assert ladder["reach"][0]["L99_by_seed"] == {"0": 6, "7": None}


def test_the_tables(cli: Cli, here: Path, save_run: SaveRun) -> None:
    save_run(here / "good")
    _, out, _ = cli("bench", "ladder", "good", *FEW, *ZEROS)
    reach, steps = out.split("\n\n")
    assert reach.splitlines()[1].endswith("the longest length")
    assert steps.splitlines()[2].split()[1:3] == ["6", "6"]
    assert "+0.0 (+0 to +0)  +0        +0 … +12" in steps.splitlines()[2]
    code, out, err = cli("bench", "ladder", "--table", "results/ladder.json")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "| task | recipe | seeds | samples | trained to | the paper | oracle | converged | halt "
        "| oracle, all inputs | converged, all inputs | halt, all inputs |",
        "| " + " | ".join(["---"] * 12) + " |",
        "| copy | quick | 2 | 20 | 4 | 35 | 6 / 6 | 6 / 6 | 6 / 6 | 6 / 6 | 6 / 6 | 6 / 6 |",
    ]


def test_it_goes_on_after_a_limit(cli: Cli, here: Path, save_run: SaveRun) -> None:
    save_run(here / "good")
    code, out, err = cli("bench", "ladder", "good", *FEW, *ZEROS, "--limit", "0")
    assert (code, err) == (
        0,
        "stopped at the limit; the same command again goes on\nwrote results/ladder.json\n",
    )
    assert "3 not measured" in out
    data = json.loads(Path("results/ladder.json").read_text())
    assert (data["rows"], data["ladder"][0]["complete"]) == ([], False)
    assert cli("bench", "ladder", "good", *FEW, *ZEROS)[0] == 0
    assert json.loads(Path("results/ladder.json").read_text())["ladder"][0]["complete"]


# --- whose ladder ------------------------------------------------------------------------------------------


def seeds_of(cli: Cli, *paths: object) -> list[tuple[str, list[int]]]:
    """Names and seeds of the ladders that some paths give."""
    done = cli("bench", "ladder", *paths, *FEW, "--families", "uniform", "--limit", "0", "--json")
    assert done[0] == 0, done[2]
    return [(ladder["run"].partition("@")[0], ladder["seeds"]) for ladder in json.loads(done[1])["ladder"]]


def test_two_ladders_do_not_write_one_file(cli: Cli, here: Path, save_run: SaveRun) -> None:
    run = save_run(here / "run")
    asked = ["bench", "ladder", str(run), *FEW, "--families", "uniform"]
    lock = files.lock(here / ".both.json.lock")
    assert lock is not None
    code, _, complaint = cli(*asked, "--out", "both.json")
    assert (code, "another length sweep is being written to both.json" in complaint) == (2, True)
    assert not (here / "both.json").exists()
    lock.close()
    assert cli(*asked, "--out", "both.json")[0] == 0


def test_seeds_that_belong_together(cli: Cli, here: Path, save_run: SaveRun) -> None:
    for name, seeds, lr in (("a", (0, 1), 1e-4), ("b", (2, 5), 1e-4), ("c", (1, 2), 1e-4), ("d", (8,), 1e-3)):
        save_run(here / name, seeds=seeds, lr=lr)
    files = [Path("a/seed-1.safetensors"), Path("a/seed-0.safetensors")]
    assert seeds_of(cli, "a") == [("a", [0, 1])]
    assert seeds_of(cli, *files) == [("a", [0, 1])]
    assert seeds_of(cli, "a", *files) == [("a", [0, 1])], "a file named twice counts once"
    assert seeds_of(cli, files[0]) == [("a", [1])]
    assert seeds_of(cli, "b", "a") == [("b", [0, 1, 2, 5])], "one configuration, other seeds"
    assert seeds_of(cli, "a", "c") == [("a", [0, 1]), ("c", [1, 2])], "the same seed twice is two models"
    assert seeds_of(cli, "a", "d") == [("a", [0, 1]), ("d", [8])], "another configuration"
    files[0].rename(here / "mine.safetensors")
    assert seeds_of(cli, "mine.safetensors") == [("mine", [1])]


def test_other_weights_are_another_ladder(cli: Cli, here: Path, save_run: SaveRun) -> None:
    save_run(here / "x" / "same")
    save_run(here / "y" / "same", broken=(1,))

    def key(*words: str) -> str:
        out = cli("bench", "ladder", *words, *FEW, "--families", "uniform", "--limit", "0", "--json")[1]
        return str(json.loads(out)["ladder"][0]["run"])

    keys = [key("x/same"), key("y/same"), key("x/same", "--seed", "1"), key("x/same", "--precision", "bf16")]
    assert len(set(keys)) == 4
    assert key("x/same") == keys[0]


# --- what cannot be ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "a length sweep needs a RUN"),
        (["nowhere"], "there is no run nowhere"),
        (["."], "holds no trained weights"),
        (["good", "--lengths", "20-30"], "lengths are written 1:60"),
        (["good", "--lengths", "200"], "position"),
        (["good", "--samples", "0"], "the number of samples must be at least 1"),
        (["good", "--stop", "never"], "unknown stopping rule 'never'"),
        (["good", "--families", "carry"], "copy has no input distribution 'carry'"),
        (["good", "--device", "tpu"], "unknown device 'tpu'"),
        (["good", "--seed", "-1"], "--seed must be between 0"),
        (["good", "--limit", "-1"], "--limit must be 0 seconds or more, not -1.0"),
        (["good", "--limit", "nan"], "--limit must be 0 seconds or more, not nan"),
        (["good", "--floor", "2"], "the floor is a share between 0 and 0.99"),
        (["good", "--out", "."], "a length sweep is kept in a file"),
        (["good", "--out", "good/config.json"], "holds no length sweep"),
        (["good", "--out", "good/seed-0.safetensors"], "seed-0.safetensors"),
        (["--table", "none.json"], "there is no file none.json"),
        (["good", "--table", "none.json"], "--table measures nothing: leave out good"),
        (["--table", "good/config.json"], "holds no length sweep"),
        (["good", "--lenghts", "20"], "did you mean --lengths?"),
    ],
)
def test_bad_words(cli: Cli, here: Path, save_run: SaveRun, words: list[str], complaint: str) -> None:
    save_run(here / "good")
    before = {path: path.read_bytes() for path in here.rglob("*.*")}
    few = [] if "--lengths" in words or "--table" in words else ["--lengths", "3"]
    code, out, err = cli("bench", "ladder", *words, *few)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert complaint in err
    assert {path: path.read_bytes() for path in here.rglob("*.*")} == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data["rows"][0].pop("seed"),
        lambda data: data["rows"][0].update(accuracy="1"),
        lambda data: data["rows"][0].update(run="somebody"),
        lambda data: data["provenance"].pop("runs"),
        lambda data: data["provenance"]["runs"][0].update(lengths=20),
        lambda data: data["steps"][0].update(drift=3),
        lambda data: data.update(rows={}),
    ],
)
def test_a_file_that_is_no_ladder(
    cli: Cli, here: Path, save_run: SaveRun, damage: Callable[[dict[str, object]], object]
) -> None:
    save_run(here / "good")
    cli("bench", "ladder", "good", *FEW, "--families", "uniform", "--out", "l.json")
    data = json.loads(Path("l.json").read_text())
    damage(data)
    Path("l.json").write_text(json.dumps(data))
    for asked in (["good", *FEW, "--out", "l.json"], ["--table", "l.json"]):
        code, out, err = cli("bench", "ladder", *asked)
        assert (code, out) == (2, "")
        assert "l.json holds no length sweep" in err


# --- a bare machine ----------------------------------------------------------------------------------------


def test_progress_is_told_in_a_pipe(
    cli: Cli, here: Path, save_run: SaveRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looped.output.QUIET_S", -1.0)
    save_run(here / "good")
    words = ["bench", "ladder", "good", *FEW, *ZEROS, "--stop", "oracle", "converged", "--json"]
    code, out, err = cli(*words)
    assert code == 0
    assert json.loads(out)["ladder"][0]["reach"][0]["L99"] == 6
    told = [line.partition(": good@")[2].split()[1:3] for line in err.splitlines()[:-1]]
    assert told == [[n, family] for n in ("3", "6") for family in ("uniform", "zeros")]
    assert err.startswith("measured 1 of 4: good@")
    assert all("oracle 1.0000  converged 1.0000" in line for line in err.splitlines()[:-1])
    _, _, err = cli(*words)
    assert all(line.endswith("measured before") for line in err.splitlines()[:-1])


def test_nothing_but_torch_is_imported(here: Path, save_run: SaveRun) -> None:
    """The whole command runs on a machine without rich and matplotlib."""
    save_run(here / "good")
    script = (
        "import sys\nfrom looped.cli import main\n"
        "assert main(sys.argv[1:]) == 0\nprint(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "bench", "ladder", "good", *FEW, "--families", "uniform"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {"rich", "matplotlib", "starlette"}.isdisjoint(done.stderr.split())
