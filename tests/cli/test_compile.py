"""`looped compile`: from a program to a file, and from that file to answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from looped import tasks
from looped.compiler import compiled
from looped.solve import load
from looped.vocab import EOS

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def parity(cli: Cli, tmp_path: Path) -> Path:
    file = tmp_path / "p.safetensors"
    code, out, err = cli("compile", "parity", "--out", file)
    assert (code, err) == (0, f"wrote {file}\n")
    assert out.startswith("parity: 1 layer a step and 3 before the loop")
    return file


def test_a_thousand_bits_from_program_to_answer(cli: Cli, parity: Path) -> None:
    bits = "".join(random.Random(0).choices("01", k=1000))
    code, out, _ = cli("solve", "parity", bits, "--model", parity, "--stop", "halt", "--json")
    assert code == 0
    found = json.loads(out)
    assert list(found) == [
        *("task", "question", "answer", "steps", "stop"),
        *("confidence", "model", "expected", "correct"),
    ]
    assert found["answer"] == found["expected"] == str(bits.count("1") % 2)
    assert (found["correct"], found["steps"], found["stop"]) == (True, 1000, "halt")
    assert 0.99 < found["confidence"] <= 1


def test_a_file_holds_all_of_a_model(parity: Path) -> None:
    made, again = compiled.load(parity), compiled.load(parity)
    assert made.card == again.card
    assert torch.equal(made.row, again.row)
    assert made.card.variables[-1][0] == "output"
    assert load(parity).rule == "halt"


def test_the_card_as_json(cli: Cli) -> None:
    _, out, _ = cli("compile", "long_multiplication", "--json")
    card = json.loads(out)
    assert card["program"] == "long_multiplication"
    assert [name for name, _ in card["variables"]] == ["first", "second", "turned", "sum", "carry", "output"]
    assert card["bits"] < 53


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("compile", "sorting"), "no program is named 'sorting'"),
        (("compile", "none.py"), "cannot read none.py"),
        (("compile", "parity", "--out", "nowhere/p.safetensors"), "--out must name a file"),
        (("compile", "parity", "--max-length", "5000"), "--max-length must be between 2 and 4096"),
        (("solve", "parity", "1", "--model", "none.safetensors"), "there is no model none.safetensors"),
        (("solve", "copy", "1", "--model", "P"), "is a model for parity, not for copy"),
        (("solve", "parity", "1", "--model", "P", "--stop", "soon"), "unknown stopping rule 'soon'"),
        (("solve", "parity", "2", "--model", "P"), "parity"),
        (("solve", "parity", "1" * 4096, "--model", "P"), "rows of 4098 tokens are longer"),
    ],
)
def test_one_sentence_for_what_is_wrong(
    words: tuple[str, ...], sentence: str, cli: Cli, parity: Path
) -> None:
    code, out, err = cli(*(str(parity) if word == "P" else word for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_trained_seed_answers_too(cli: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sets = [word for each in ("steps=2", "interval=1", "batch=4", "max_length=2") for word in ("--set", each)]
    code, _, err = cli(
        "train", "copy", "--recipe", "quick", "--seeds", "0", "--out", run, "--device", "cpu", *sets
    )
    assert code == 0, err
    code, out, err = cli("solve", "copy", "01", "--model", run, "--device", "cpu", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["stop"], found["steps"], found["expected"]) == ("oracle", 2, "01")
    assert EOS not in found["answer"]
    code, _, err = cli("solve", "copy", "01", "--model", run, "--stop", "halt")
    assert code == 2
    assert "halt is for models that say when they are done" in err


def test_the_tasks_own_parser_reads_the_question(cli: Cli, parity: Path) -> None:
    assert tasks.get("parity").parse("1 1") == ["1", "1"]
    code, out, _ = cli("solve", "parity", "1 1", "--model", parity, "--json")
    assert code == 0
    assert json.loads(out)["question"] == "11"


def test_what_cannot_be_meant(cli: Cli, tmp_path: Path) -> None:
    for words, said in (
        (["--picture", tmp_path / "p.png"], "a picture's name ends in .svg, not '.png'"),
        (["--name", "foo"], "--name picks a program of a FILE.py; 'parity' is one already"),
    ):
        code, out, err = cli("compile", "parity", *words)
        assert (code, out) == (2, "")
        assert said in err
    assert list(tmp_path.iterdir()) == []


def test_one_file_cannot_be_both(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "p.svg"
    code, out, err = cli("compile", "parity", "--out", file, "--picture", file)
    assert (code, out) == (2, "")
    assert err == f"looped: --out and --picture are two files, not both {file}\n"
    assert not file.exists()
