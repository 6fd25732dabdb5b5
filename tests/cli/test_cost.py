"""`looped cost`: facts about a run that was never started."""

from __future__ import annotations

import json

import pytest

from looped.cli.train import seconds
from looped.model.weights import Layout
from looped.training.recipes import make


def test_facts_as_json(cli) -> None:
    code, out, err = cli("cost", "copy", "--json", "--set", "model.width=512")
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts["config"]["model"]["width"] == 512
    assert facts["memory_bytes"] == facts["weights_bytes"] + facts["tape_bytes"]
    assert facts["device"] == "h200"
    assert facts["fits"] is True
    assert "NVIDIA H200" in facts["origin"]
    small = json.loads(cli("cost", "copy", "--json")[1])
    assert small["parameters"] == Layout(make("copy", "fop-loop-adaptive", "fast", (0,)).model).parameters
    assert 3 * small["flops"] < facts["flops"] < 4 * small["flops"]


def test_a_table_for_people(cli) -> None:
    code, out, err = cli("cost", "parity", "--seeds", "0,1", "--device", "tflops=100")
    assert code == 0
    assert out.startswith("parity fop-loop-adaptive fast, 2 × 793,606 parameters, on tflops=100\n")
    assert "rows of 22 positions, up to 20 loop steps; 100 TFLOP/s assumed" in err
    assert len(out.splitlines()) == 9


def test_what_does_not_fit_is_said(cli) -> None:
    _, out, err = cli("cost", "copy", "--set", "max_length=1000", "--set", "interval=4")
    assert "whole run" in out
    assert "this does not fit 139 GiB" in err


def test_bad_words(cli) -> None:
    for words in (
        ["nothing"],
        ["copy", "--device", "a100"],
        ["copy", "--set", "x=1"],
        ["copy", "--recipe", "slow"],
    ):
        code, out, err = cli("cost", *words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.00874, "8.74 ms"), (20.3, "20.3 s"), (102, "1.7 min"), (11520, "3.2 h"), (1.08e6, "12.5 days")],
)
def test_times_as_people_read_them(value: float, shown: str) -> None:
    assert seconds(value) == shown
