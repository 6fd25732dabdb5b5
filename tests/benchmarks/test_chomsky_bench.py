"""`looped bench chomsky` in small: both scores, the file that goes on, rates chosen on training lengths."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import chomsky, recurrent
from looped import batches
from looped.tasks.suites.chomsky import TASKS
from looped.training.config import TrainConfig
from looped.training.recipes import make

Cli = Callable[..., tuple[int, str, str]]
SMALL = ["--steps", "4", "--lengths", "7,9", "--samples", "6", "--seeds", "2", "--device", "cpu"]
FIELDS = ("max_length=4", "batch=4", "model.width=16", "model.heads=8")


def words(folder: Path, *more: str) -> list[str]:
    fields = [word for field in FIELDS for word in ("--set", field)]
    where = ["--runs", str(folder / "runs"), "--out", str(folder / "r.json")]
    return ["bench", "chomsky", *SMALL, *fields, *where, *more]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "WIDTH", 8)


@pytest.mark.usefixtures("quick")
def test_two_tasks_in_small(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = chomsky.tested

    def seen(model: Any, task: Any, length: int, samples: int) -> Any:
        asked.append(length)
        return original(model, task, length, samples)

    monkeypatch.setattr(chomsky, "tested", seen)
    command = words(tmp_path, "parity_check", "stack-manipulation", "--methods", "looped", "lstm")
    code, out, err = cli(*command)
    assert code == 0, err
    data = json.loads((tmp_path / "r.json").read_text())
    rows = data["rows"]
    assert {(row["task"], row["method"], row["stop"]) for row in rows} == {
        (task, *way)
        for task in ("parity_check", "stack_manipulation")
        for way in (("fop-loop-adaptive", "halt"), ("fop-loop-adaptive", "oracle"), ("lstm", "oracle"))
    }
    assert len(rows) == 2 * 3 * 2 * 2
    assert all(0 <= row["accuracy"] <= 1 and 0 <= row["token_accuracy"] <= 1 for row in rows)
    assert data["provenance"]["device"].startswith("cpu")
    assert {
        run["lr"] in chomsky.RATES["lstm"] for run in data["provenance"]["runs"] if run["method"] == "lstm"
    } == {True}
    assert "learning rate" in err
    assert "token best" in out
    assert set(asked) == {1, 2, 3, 4, 7, 9}, "rates are chosen on training lengths"
    asked.clear()
    code, again, _ = cli(*command)
    assert (code, again, asked) == (0, out, []), "what is in the file is not measured again"
    more = [word if word != "7,9" else "7,9,11" for word in command]
    assert cli(*more)[0] == 0
    assert set(asked) <= {1, 2, 3, 4, 11}, "only the new length is tested; nothing is trained again"
    code, table, _ = cli("bench", "chomsky", "--table", "--out", str(tmp_path / "r.json"))
    assert table.startswith("| task | fop-loop-adaptive, halt | fop-loop-adaptive, oracle | lstm, oracle |")
    assert len(table.splitlines()) == 4
    figure = tmp_path / "f.svg"
    assert cli("bench", "chomsky", "--figure", str(figure), "--out", str(tmp_path / "r.json"))[0] == 0
    assert figure.stat().st_size > 1000


@pytest.mark.usefixtures("quick")
def test_methods_without_a_loop(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli(*words(tmp_path, "reverse_string", "--methods", "fop", "ntp", "gru", "--json"))
    assert code == 0, err
    found = {
        (each["method"], each["stop"], each["seeds"], each["lengths"]) for each in json.loads(out)["scores"]
    }
    assert found == {(name, "oracle", 2, 2) for name in ("fop", "ntp", "gru")}


def test_a_limit_stops_it_and_the_same_command_goes_on(cli: Cli, tmp_path: Path) -> None:
    code, _, err = cli(*words(tmp_path, "parity_check", "--limit", "0"))
    assert code == 0
    assert "stopped at the limit" in err
    assert cli(*words(tmp_path, "parity_check"))[0] == 0
    assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == 2 * 2 * 2


def test_stopped_in_the_middle_it_ends_as_if_it_had_not_been(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after two gradient steps of the second task, then without the runs of the first: equal in the end."""
    trained: list[str] = []
    original = chomsky.train

    def stopped(config: TrainConfig, *rest: Any, **more: Any) -> Any:
        trained.append(config.task)
        looks = iter([False, False, True])  # before the first step, after it, after the second
        stop = (lambda: next(looks)) if config.task == "reverse_string" else (lambda: False)
        return original(config, *rest, stop=stop, **more)

    both = ("parity_check", "reverse_string")
    assert cli(*words(tmp_path / "unbroken", *both))[0] == 0
    monkeypatch.setattr(chomsky, "train", stopped)
    code, _, err = cli(*words(tmp_path, *both))
    assert (code, "stopped at the limit" in err) == (0, True)
    assert {row["task"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]} == {"parity_check"}
    shutil.rmtree(tmp_path / "runs" / "parity_check-fop-loop-adaptive-chomsky")
    monkeypatch.setattr(
        chomsky,
        "train",
        lambda config, *rest, **more: trained.append(config.task) or original(config, *rest, **more),
    )
    assert cli(*words(tmp_path, *both))[0] == 0
    assert trained == ["parity_check", "reverse_string", "reverse_string"]
    rows = [
        json.loads((folder / "r.json").read_text())["rows"] for folder in (tmp_path, tmp_path / "unbroken")
    ]
    assert rows[0] == rows[1]
    metrics = tmp_path / "runs" / "reverse_string-fop-loop-adaptive-chomsky" / "metrics.jsonl"
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == sorted(steps)


def test_seeds_are_added_to_those_that_are_there(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One seed, then three: two are trained; then another length: nothing is."""
    trained: list[tuple[int, ...]] = []
    original = chomsky.train

    def seen(config: TrainConfig, *rest: Any, **more: Any) -> Any:
        trained.append(config.seeds)
        return original(config, *rest, **more)

    monkeypatch.setattr(chomsky, "train", seen)
    first = words(tmp_path, "parity_check", "--lengths", "7", "--seeds", "1")
    assert cli(*first)[0] == 0
    before = json.loads((tmp_path / "r.json").read_text())
    assert cli(*words(tmp_path, "parity_check", "--lengths", "7", "--seeds", "3"))[0] == 0
    after = json.loads((tmp_path / "r.json").read_text())
    assert trained == [(0,), (1, 2)]
    assert [row for row in after["rows"] if row["seed"] == 0] == before["rows"], "what was there stays"
    assert {row["seed"] for row in after["rows"]} == {0, 1, 2}
    (run,) = after["provenance"]["runs"]
    assert run["settings"]["seeds"] == [0, 1, 2]
    assert run["train_seconds"] > before["provenance"]["runs"][0]["train_seconds"] > 0
    for state in (tmp_path / "runs").glob("*/state*.safetensors"):
        state.unlink()  # weights are enough
    assert cli(*words(tmp_path, "parity_check", "--lengths", "7,9", "--seeds", "3"))[0] == 0
    assert trained == [(0,), (1, 2)]
    assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == 2 * 2 * 3


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("method", ["fop", "gru"])
def test_a_rate_is_chosen_once(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The result file alone is enough to go on: its rate is taken, without a trial, even where no run was carried."""
    chosen: list[str] = []
    original = chomsky.SuiteBench._tried

    def seen(bench: Any, tried: Any, *rest: Any) -> Any:
        chosen.append(tried)
        return original(bench, tried, *rest)

    monkeypatch.setattr(chomsky.SuiteBench, "_tried", seen)
    command = words(tmp_path, "reverse_string", "--methods", method)
    assert cli(*command)[0] == 0
    shutil.rmtree(tmp_path / "runs")
    assert cli(*command, "--seeds", "3")[0] == 0
    assert chosen == [method]
    data = json.loads((tmp_path / "r.json").read_text())
    assert {row["seed"] for row in data["rows"]} == {0, 1, 2}
    (run,) = data["provenance"]["runs"]
    assert run["lr"] in chomsky.RATES[method]
    other = [word if word != "4" else "8" for word in command]  # other settings: chosen anew, rows replaced
    assert cli(*other)[0] == 0
    assert chosen == [method, method]
    assert {row["seed"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]} == {0, 1}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["parity"], "'parity' is no task of the suite"),
        (["parity_check", "--seeds", "0"], "--seeds and --samples must be at least 1"),
        (["--table"], "there are no rows in"),
        (["--methods", "rnn"], "--methods takes"),
    ],
)
def test_bad_input(cli: Cli, tmp_path: Path, more: Sequence[str], sentence: str) -> None:
    code, _, err = cli("bench", "chomsky", *more, "--out", str(tmp_path / "none.json"))
    assert (code, sentence in err) == (2, True), err


def test_a_file_of_something_else(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"rows": [{"task": 3}], "provenance": {"runs": []}}')
    code, _, err = cli("bench", "chomsky", "--table", "--out", str(tmp_path / "r.json"))
    assert (code, "holds no results of `looped bench chomsky`" in err) == (2, True)


BARE = """
import sys
from pathlib import Path

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"rich", "matplotlib", "transformers", "starlette"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from looped.cli import main

sys.exit(main(sys.argv[1:]))
"""


def test_measuring_needs_torch_alone(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", BARE, *words(tmp_path, "parity_check", "--methods", "looped", "gru")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(json.loads((tmp_path / "r.json").read_text())["rows"]) == 3 * 2 * 2


class Parrot:
    """Says the right answer but for its last token."""

    def answers(self, task: Any, length: int, samples: int) -> Any:
        problems = task.problems([task.parse(task.example)] * samples)
        batch = batches.lay_out(problems, task.vocab, task.row_size(length))
        said = batch.targets.clone()
        said[:, int(problems.question_length[0]) + int(problems.answer_length[0]) - 1] = 0
        yield batch, {"oracle": (said[None], torch.full((1, samples), 3))}


def test_both_scores_by_hand() -> None:
    """The last token is said as 0. 1110 ends so anyway; of a sum the `#` after its five digits counts too."""
    (row,) = chomsky.tested(Parrot(), TASKS["reverse_string"], 4, 5)["oracle"]  # type: ignore[arg-type]
    assert row == {"token_accuracy": 1.0, "accuracy": 1.0, "mean_steps": 3.0}
    task = TASKS["bucket_sort"]
    (row,) = chomsky.tested(Parrot(), task, 9, 5)["oracle"]  # type: ignore[arg-type]
    assert row == {"token_accuracy": 8 / 9, "accuracy": 0.0, "mean_steps": 3.0}
    (row,) = chomsky.tested(Parrot(), TASKS["binary_addition"], 9, 2)["oracle"]  # type: ignore[arg-type]
    assert row == {"token_accuracy": 5 / 6, "accuracy": 0.0, "mean_steps": 3.0}


def test_a_figure_marks_the_shortest_training_length_of_a_task(tmp_path: Path) -> None:
    record = chomsky.SuiteFile(tmp_path / "r.json")
    for method, longest in (("looped", 14), ("lstm", 40)):
        record.runs[method] = {"task": "reverse_string", "settings": {"max_length": longest}}
    assert record.trained_to() == {"reverse_string": 14}


SMALL_BLOCK = {  # steps, at each new length, loop steps, longest training length; rate; width
    "parity_check": ((2_000, 40, "q", 40), 3e-3, 32),
    "cycle_navigation": ((2_400, 80, "q", 16), 3e-3, 32),
    "even_pairs": ((3_000, 60, "2q", 10), 3e-3, 32),
    "reverse_string": ((1_500, 60, "2q", 14), 3e-3, 32),
    "duplicate_string": ((5_000, 200, "2q", 13), 2e-3, 48),
    "missing_duplicate": ((6_000, 300, "2q", 12), 2e-3, 48),
}


@pytest.mark.parametrize("name", TASKS)
def test_one_recipe_for_all(name: str) -> None:
    config = make(name, "fop-loop-adaptive", "chomsky", (0, 1))
    schedule = config.steps, config.interval, config.loops, config.max_length
    shape = config.model.layers, config.model.width, config.model.heads, config.model.bands
    if name in SMALL_BLOCK:
        wanted, rate, width = SMALL_BLOCK[name]
        assert (schedule, config.lr, shape) == (wanted, (rate,), (1, width, 4, (2, 2, 3, 3)))
    else:
        assert (schedule, config.lr, shape) == ((20_000, 250, "q", 40), (5e-4,), (2, 128, 8, (2, 2, 3, 3)))
    assert config.model.sharpen == (name not in SMALL_BLOCK)
    assert config.stops == ("halt",)
    assert config.family.split("+")[0] == "uniform"
    plain = make(name, "fop", "chomsky", (0,))
    assert (plain.model.layers, plain.model.width, plain.steps) == (20, 128, 20_000)
