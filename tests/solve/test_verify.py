"""`looped verify`: rows that can be repeated, of our models and of adapters; the leaderboard's file and page."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import looped
import looped.zoo as zoo
from looped import runs, tasks
from looped.errors import InputError
from looped.solve import verify as module
from looped.solve.verify import SAMPLES, of_adapter, of_solver, verify
from scripts import leaderboard

ROOT = Path(__file__).parents[2]
QUICK = ("--lengths", "5,20", "--samples", "2", "--json")
BOARD = json.loads(leaderboard.RESULTS.read_text("utf-8"))
ADAPTERS = """
def right(question):
    return question

class Counted:
    parameters, trained_to = 7, 3
    def __call__(self, question):
        return question[:4]

def wrong_type(question):
    return "101"

def breaks(question):
    raise ValueError("no")
"""


def row_of(cli: Any, *words: object) -> dict[str, Any]:
    done = cli("verify", *words)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)["row"]
    return found


def test_a_shipped_model_twice_gives_the_same_row(cli: Any, tmp_path: Path) -> None:
    row = row_of(cli, "copy", "--task", "copy", *QUICK)
    assert row_of(cli, "copy", "--task", "copy", *QUICK) == row
    assert (row["model"], row["exact_to"], row["trained_to"], row["parameters"]) == (
        "copy-long",
        20,
        19,
        13158,
    )
    assert row["right"] == {str(n): dict.fromkeys(tasks.get("copy").families, 2) for n in (5, 20)}
    assert (row["listed"], row["not_listed"]) == (False, "lengths or samples are not the protocol's")
    # the same weights from another place are the same model
    runs.publish(runs.load_seed(zoo.path("copy-long")), tmp_path / "m", "m")
    assert row_of(cli, tmp_path / "m", "--name", "copy-long", *QUICK) == row
    assert of_solver(looped.load("parity"), "p").facts["sha256"] != row["sha256"]


def test_the_whole_protocol_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLES", {4: 2, 6: 1})
    row = verify(of_solver(looped.load("parity"), "parity-long"))
    assert (row["listed"], row["samples"], row["exact_to"], row["ended"]) == (True, {"4": 2, "6": 1}, 6, None)


def test_a_model_without_positions_so_far_ends_with_a_sentence() -> None:
    solver = looped.load("parity-compiled")
    row = verify(of_solver(solver, "p"), {2: 1, 4096: 1})
    assert list(row["right"]) == ["2"]
    assert "4096" in row["ended"]


def test_multiplication_ends_where_a_question_takes_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    entrant = of_adapter(lambda question: [], Path(__file__), "none", tasks.get("multiplication"))
    assert list(verify(entrant)["samples"]) == [str(length) for length in SAMPLES if length < 1000]


def test_adapters(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ADAPTERS, "utf-8")
    row = row_of(cli, "mine.py:right", "--task", "copy", *QUICK)
    assert (row["exact_to"], row["kind"], row["trained_to"], row["parameters"]) == (20, "adapter", None, None)
    assert row["sha256"] == hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest()
    short = row_of(cli, "mine.py:Counted", "--task", "copy", *QUICK)
    assert (short["exact_to"], short["parameters"], short["trained_to"]) == (None, 7, 3)
    assert short["edge_cases"]["right"] == short["edge_cases"]["of"]
    assert sum(short["right"]["5"].values()) == 0
    for words, sentence in [
        (("mine.py:right",), "name what it is asked: --task TASK"),
        (("mine.py:nothing", "--task", "copy"), "has no 'nothing'"),
        (("mine.py:wrong_type", "--task", "copy"), "must give a list of token names"),
        (("mine.py:breaks", "--task", "copy"), "failed on"),
        (("nowhere.py:x", "--task", "copy"), "there is no file nowhere.py"),
        (("copy", "--task", "parity"), "is a model for copy, not for parity"),
        (("copy", "--samples", "0"), "must be at least 1"),
        (("copy", "--lengths", "x"), "lengths are written"),
    ]:
        told = cli("verify", *words)
        assert (told.code, told.out, told.err.count("\n")) == (2, "", 1)
        assert sentence in told.err


def test_an_adapter_that_states_nothing_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLES", {4: 1})
    row = verify(of_adapter(lambda question: question, Path(__file__), "mine", tasks.get("copy")))
    assert row["not_listed"] == "parameters or training length are not stated"


def test_the_lstm_of_the_page_fails_past_its_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "my_lstm", raising=False)
    import my_lstm  # type: ignore[import-not-found]

    monkeypatch.setattr(my_lstm.PlainLSTM, "trained_to", 2)
    small = my_lstm.PlainLSTM(steps=120)
    row = verify(
        of_adapter(small, ROOT / "docs" / "my_lstm.py", "lstm", tasks.get("copy")), {2: 8, 20: 8, 40: 8}
    )
    assert sum(row["right"]["2"].values()) == 8 * len(row["right"]["2"])
    assert (row["exact_to"] or 0) < 20
    assert row["ended"] == "fewer than 90% of the answers are right at 20"
    assert row["parameters"] == sum(each.numel() for each in small.parameters())
    with torch.no_grad():
        small.readout.bias += 1
    again = of_adapter(small, ROOT / "docs" / "my_lstm.py", "lstm", tasks.get("copy"))
    assert again.facts["sha256"] != row["sha256"]


# --- the leaderboard ---------------------------------------------------------------------------------------------


def test_the_page_is_drawn_from_the_file() -> None:
    text = leaderboard.PAGE.read_text("utf-8")
    fresh = leaderboard.docs_tables.fill(text, leaderboard.tables(BOARD))
    assert fresh == text, "run `python -m scripts.leaderboard`, which takes seconds"
    assert leaderboard.dumps(BOARD) + "\n" == leaderboard.RESULTS.read_text("utf-8")


def test_a_listed_row_is_of_the_whole_protocol() -> None:
    for row in (entry["row"] for entry in BOARD["rows"]):
        assert row["listed"]
        assert all(SAMPLES[int(length)] == count for length, count in row["samples"].items())


def test_a_row_of_replaced_weights_is_marked() -> None:
    row = {"kind": "looped", "model": "copy-long", "sha256": leaderboard.shipped_sha256("copy-long")}
    assert leaderboard.named(row) == "copy-long"
    assert leaderboard.named(row | {"sha256": "0"}) == "copy-long (earlier weights)"


def test_every_quoted_row_has_a_source() -> None:
    assert all(each["address"].startswith("https://") and each["source"] for each in BOARD["quoted"])


def test_only_rows_of_the_protocol_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in (("RESULTS", leaderboard.RESULTS), ("PAGE", leaderboard.PAGE)):
        shutil.copy(file, tmp_path)
        monkeypatch.setattr(leaderboard, name, tmp_path / file.name)
    row = verify(of_adapter(lambda question: question, Path(__file__), "mine", tasks.get("copy")), {4: 1})
    (tmp_path / "row.json").write_text(json.dumps({"row": row}), "utf-8")
    assert leaderboard.main([str(tmp_path / "row.json")]) == 2
    with pytest.raises(InputError, match="not the protocol's"):
        leaderboard.add({"rows": []}, {"row": row})
    row |= {"listed": True, "parameters": 1}
    (tmp_path / "row.json").write_text(json.dumps({"row": row}), "utf-8")
    for _ in range(2):  # the second time in place of the first
        assert leaderboard.main([str(tmp_path / "row.json")]) == 0
    board = json.loads((tmp_path / "leaderboard.json").read_text("utf-8"))
    assert [each["row"]["model"] for each in board["rows"]].count("mine") == 1
    assert "| mine |" in (tmp_path / "leaderboard.md").read_text("utf-8")
