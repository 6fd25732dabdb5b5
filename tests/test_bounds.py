"""Values of any size: each is refused where it is read, in one short sentence."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import looped.zoo as zoo
from looped import runs, serial
from looped.errors import InputError, quoted
from looped.evaluation import length_sweep
from looped.experiments import queue
from looped.training.config import TrainConfig
from looped.training.recipes import make

HUGE = 10**20
LONG = "x" * 1_000_000
CONFIG = make("copy", "fop-loop-adaptive", "quick", (0, 1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seeds", list(range(5000))),
        ("backprop", HUGE), ("backprop", 10**9), ("extra", HUGE), ("extra", 10**9), ("steps", HUGE), ("steps", 10**15),
        ("interval", HUGE), ("hold", HUGE), ("warmup", HUGE), ("max_length", HUGE), ("start_length", HUGE),
        ("stage_steps", [HUGE]), ("batch", HUGE),
        ("model.expansion", HUGE), ("model.expansion", 10**6), ("model.max_positions", HUGE),
        ("model.max_positions", 10**12), ("model.bands", [HUGE]), ("model.bands", [2**63]), ("model.bands", [2**40]),
        ("model.width", HUGE), ("model.layers", HUGE), ("model.heads", HUGE), ("model.vocab", HUGE),
        ("model.init_std", -0.5), ("model.init_std", 1e300), ("model.embedding_std", -1.0),
    ],
)  # fmt: skip
def test_every_field_of_a_configuration_is_bounded(field: str, value: object) -> None:
    data = serial.to_json(CONFIG)
    *outer, last = field.split(".")
    here = data[outer[0]] if outer else data
    here[last] = value
    with pytest.raises(InputError, match=last) as caught:
        serial.from_json(TrainConfig, data)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "words",
    [
        ["train", "copy", "--bands", str(HUGE)],
        ["train", "copy", "--set", f"backprop={HUGE}"],
        ["train", "copy", "--set", f"extra={HUGE}"],
        ["train", "copy", "--set", f"model.expansion={HUGE}"],
        ["train", "copy", "--set", f"model.max_positions={HUGE}"],
        ["train", "copy", "--seeds", ",".join(map(str, range(5000)))],
        ["train", "copy", "--set", LONG], ["train", "copy", "--set", f"{LONG}=1"],
        ["train", "copy", "--set", f"steps={LONG}"],
        ["train", "copy", "--steps", LONG], ["train", "copy", f"--{LONG}"], ["train", "copy", f"--steps={LONG}"],
        ["train", LONG], [LONG], [f"--{LONG}"], ["tasks", LONG], ["solve", "copy", LONG],
        ["solve", "copy", "1", "--model", LONG],
        ["solve", "copy", "1", "--stop", LONG], ["evaluate", LONG], ["evaluate", "copy", "--lengths", LONG],
        ["evaluate", "copy", "--device", LONG], ["trace", LONG], ["check", LONG], ["sample", LONG], ["cost", LONG],
        ["figure", LONG, "--out", "x.svg"], ["sweep", LONG], ["status", LONG], ["cancel", LONG], ["reproduce", LONG],
        ["compile", LONG], ["bench", LONG], ["explore", LONG, "--no-open"],
    ],
)  # fmt: skip
def test_an_argument_of_any_size_is_quoted_in_short(
    words: list[str], tmp_path: Path, cli, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err[:300]
    assert len(err) < 1200, err[:1500]
    assert "x" * 61 not in err
    assert not list(tmp_path.iterdir()), "nothing was begun"


MEASURE = ["copy-long", "--lengths", "2", "--samples", "2", "--device", "cpu"]
# every option that takes a number, by command, with words that make it a whole command
NUMBERS: dict[str, tuple[list[str], str]] = {
    "demo": ([], "samples"),
    "sample": (["copy"], "length count seed"),
    "compile": (["copy", "--out", "x.safetensors"], "max-length"),
    "compare": (["copy", "--device", "cpu"], "length samples seed"),
    "explore": (["--no-open"], "port"),
    "train": (
        ["copy", "--device", "cpu"],
        "steps lr width heads layers bands batch interval max-length backprop seeds",
    ),
    "evaluate": (MEASURE, "lengths samples seed"),
    "discover": (MEASURE, "lengths samples seed"),
    "reproduce": (["main", "--dry-run"], "seeds samples lengths"),
    "sweep": (["sweep.json", "--dry-run"], "workers"),
    "cost": (["copy"], "steps width batch max-length seeds"),
    "bench train": (["--task", "copy"], "seeds steps length width batch"),
    "bench ladder": (["copy-long", "--out", "x.json"], "lengths samples seed step-samples floor"),
}
TIMES = {
    "train": "time-limit save-every",
    "reproduce": "time-limit save-every",
    "sweep": "time-limit",
    "cancel": "wait",
}


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        *((name, option, value) for name, (_, options) in NUMBERS.items() for option in options.split()
          for value in (HUGE, -HUGE, "nan")),
        *((name, option, value) for name, options in TIMES.items() for option in options.split()
          for value in (-HUGE, -1, "nan")),
    ],
)  # fmt: skip
def test_a_number_of_any_size_is_refused(
    command: str, option: str, value: object, tmp_path: Path, cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded where it is read, before any work; seconds may be as many as one likes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.json").write_text(json.dumps([{"task": "copy", "recipe": "quick"}]))
    words, _ = NUMBERS.get(command, (["."], ""))
    words = [str(zoo.path("copy-long")) if word == "copy-long" else word for word in words]
    code, out, err = cli(*command.split(), *words, f"--{option}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1), err[:300]
    assert len(err) < 400, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep.json"], "nothing was begun"


def test_what_is_quoted_in_full() -> None:
    assert quoted("steps=3") == "'steps=3'"
    assert len(quoted(LONG)) == 62


ROW: dict[str, Any] = {
    "task": "copy", "method": "m", "recipe": "r", "seed": 0, "length": 3, "stop": "oracle", "accuracy": 1.0,
    "samples": 10, "run": "k",
}  # fmt: skip
LADDER: dict[str, Any] = {
    "provenance": {
        "runs": [
            {"key": "k", "run": "r", "task": "copy", "trained": 3, "paper": 3, "seeds": [0], "lengths": [3],
             "stops": ["oracle"], "families": ["uniform"], "complete": True}
        ]
    },
    "rows": [ROW], "steps": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [("lengths", ["a"]), ("lengths", [HUGE]), ("lengths", [[]]), ("seeds", ["0"]), ("stops", [3]), ("families", [[]]),
     ("trained", -1)],
)  # fmt: skip
def test_a_forged_run_of_a_length_sweep_is_refused(field: str, value: object, tmp_path: Path) -> None:
    forged, path = copy.deepcopy(LADDER), tmp_path / "ladder.json"
    path.write_text(json.dumps(forged))
    length_sweep.read(path)
    forged["provenance"]["runs"][0][field] = value
    path.write_text(json.dumps(forged))
    with pytest.raises(InputError, match=r"ladder\.json holds no length sweep"):
        length_sweep.read(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("accuracy", 1e300), ("accuracy", -0.1), ("samples", 0), ("samples", HUGE), ("length", HUGE), ("length", -3),
     ("family", 3)],
)  # fmt: skip
def test_a_forged_row_is_refused(field: str, value: object, tmp_path: Path) -> None:
    forged, path = copy.deepcopy(LADDER), tmp_path / "ladder.json"
    forged["rows"][0][field] = value
    path.write_text(json.dumps(forged))
    with pytest.raises(InputError, match=r"ladder\.json holds no length sweep"):
        length_sweep.read(path)
    if field != "family":
        assert not queue.is_row(forged["rows"][0])


def test_metrics_with_steps_of_any_size_are_damaged_lines(tmp_path: Path) -> None:
    rows = [{"step": 1}, {"step": HUGE}, {"step": -1}, {"step": 2}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert runs.read_metrics(tmp_path) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("accuracy", [1e300, -0.5, 1.5])
def test_a_share_outside_0_to_1_is_not_drawn(accuracy: float, tmp_path: Path, cli) -> None:
    row = {"kind": "training", "step": 1, "seed": 0, "loss": 1.0, "accuracy": accuracy}
    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    code, _, err = cli("figure", path, "--out", tmp_path / "x.svg")
    assert (code, err.count("\n")) == (2, 1)
    assert "metrics.jsonl" in err
