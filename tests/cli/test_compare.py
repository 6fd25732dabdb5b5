"""`looped compare`: the variables of a program in a model's states."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import looped.zoo as zoo

Cli = Callable[..., tuple[int, str, str]]


def test_a_compiled_model_holds_its_program(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    cli("compile", "copy", "--out", file)
    code, out, _ = cli("compare", "copy", "--model", file, "--length", 4, "--samples", 64, "--json")
    assert code == 0
    found = [json.loads(line) for line in out.splitlines()]
    lines, said = found[:4], found[4:]
    assert [(line["variable"], line["step"]) for line in lines] == [("seq", step) for step in (1, 2, 3, 4)]
    assert all(line["accuracy"] > 0.99 for line in lines)
    assert lines[-1]["from_token"] < 0.9
    assert [(line["step"], line["as_program"]) for line in said] == [(step, 1.0) for step in (1, 2, 3, 4)]
    assert said[0]["as_answer"] < 0.9
    assert said[-1]["as_answer"] == said[-1]["begun"] == 1.0
    code, out, _ = cli("compare", "copy", "--model", file, "--length", 2, "--samples", 16, "--no-controls")
    assert out.splitlines()[0].split() == ["variable", "step", "from", "state", "from", "token"]


def test_controls_know_less_than_the_model(cli: Cli) -> None:
    code, out, _ = cli("compare", "copy", "--model", "compiled", "--length", 8, "--samples", 200, "--json")
    assert code == 0
    last = json.loads(out.splitlines()[7])
    assert last["accuracy"] > 0.99
    for control in ("from_token", "untrained"):
        assert last[control] < 0.9, control
    assert last["shuffled"] < 0.65  # another row's bits are as good as tossed


def test_the_shipped_model_is_compared_by_default(cli: Cli) -> None:
    code, out, _ = cli("compare", "parity", "--length", 2, "--samples", 8, "--no-controls", "--json")
    assert code == 0
    assert {json.loads(line)["model"] for line in out.splitlines()} == {zoo.find("parity")}


def test_what_cannot_be_compared(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    cli("compile", "copy", "--out", file)
    for words, sentence in (
        (("parity",), "is a model for copy, not for parity"),
        (("copy", "--samples", 1), "--samples must be between 2 and 65536"),
        (("copy", "--length", 0), "length must be between 1"),
    ):
        code, _, err = cli("compare", *words, "--model", file)
        assert code == 2
        assert sentence in err


def test_a_seed_no_generator_takes(cli: Cli) -> None:
    for seed in (-1, 2**32, 10**30):
        code, out, err = cli(
            "compare", "copy", "--model", "compiled", "--length", 2, "--samples", 8, "--seed", seed
        )
        assert (code, out) == (2, "")
        assert "--seed must be between 0 and 4294967295" in err


def test_it_ends_with_an_answer(cli: Cli) -> None:
    words = ["compare", "copy", "--length", "5", "--samples", "64"]
    said = cli(*words, "--model", "compiled").out.splitlines()[-1]
    assert said.startswith("copy-compiled computes as the program does: ")
    other = cli(*words, "--model", "fast", "--no-controls").out.splitlines()[-1]
    assert other.startswith(
        "copy-fast does not compute as the program does: of 5 pairs of variable and step, "
    )
    assert "are read better from its states than from its input token, `seq` after step " in other
