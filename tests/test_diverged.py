"""Runs that have diverged, their weights no numbers or too large to compute with: a sentence, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from looped import checkpoints, runs, serial
from looped.errors import InputError
from looped.explorer import queries
from looped.explorer.queries import WatchedLoop, read_query
from looped.explorer.security import LIMITS
from looped.model.weights import Layout
from looped.runs import Run
from looped.training.recipes import make

SMALL = ["model.width=8", "model.heads=2", "model.bands=2", "max_length=3"]
NAN, HUGE = float("nan"), 1e30


def diverged(folder: Path, *scales: float, method: str = "fop-loop-adaptive") -> Path:
    """A run whose seeds have random weights times each of these."""
    config = serial.override(make("copy", method, "quick", tuple(range(len(scales)))), SMALL)
    with Run(folder, config) as run:
        for seed, scale in enumerate(scales):
            flat = torch.randn(Layout(config.model).size, generator=torch.Generator().manual_seed(seed))
            run.save_seed(seed, flat * scale, 10)
    return folder


@pytest.mark.parametrize("scale", [NAN, HUGE])
@pytest.mark.parametrize("method", ["fop-loop-adaptive", "ntp"])
@pytest.mark.parametrize(
    "words",
    [
        "solve copy 101 --model RUN --json",
        "solve copy 101 --model RUN",
        "solve copy 101 --model RUN --show-steps",
        "evaluate RUN --lengths 2 --samples 2 --json",
        "evaluate RUN --lengths 2 --samples 2",
        "discover RUN --lengths 2 --samples 2",
    ],
)
def test_a_command_says_that_the_run_has_diverged(
    words: str, method: str, scale: float, tmp_path: Path, cli
) -> None:
    run = diverged(tmp_path / "run", scale, method=method)
    code, out, err = cli(*words.replace("RUN", str(run)).split(), "--device", "cpu")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "diverged" in err or (method == "ntp" and words.startswith("discover")), err


def test_one_seed_of_two_is_told_of_and_the_other_measured(tmp_path: Path, cli) -> None:
    run = diverged(tmp_path / "run", 0.1, HUGE)
    code, out, err = cli("evaluate", run, "--lengths", "2", "--samples", "2", "--json", "--device", "cpu")
    assert (code, [row["seed"] for row in json.loads(out)["rows"]]) == (0, [0, 1])
    assert "seed 1 computes values that are no finite numbers" in err


def test_the_explorer_says_so_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"seed-0\.safetensors.*diverged"):
        queries.all_models([diverged(tmp_path / "nan", NAN)], shipped=())
    registry = queries.all_models([diverged(tmp_path / "huge", HUGE)], shipped=())
    (key,) = [key for key in registry if "huge" in key]
    asked = read_query(registry[key], "101", 1.0, LIMITS)
    with pytest.raises(InputError, match=r"huge.*diverged"):
        WatchedLoop(asked).advance(1.0)
    with pytest.raises(InputError, match=r"huge.*diverged"):
        queries.attention_map(asked, None, registry[key].solver.model.config.layers - 1, 0)


def test_the_checksum_of_such_weights_is_right(tmp_path: Path) -> None:
    path = diverged(tmp_path / "run", NAN) / "seed-0.safetensors"
    assert checkpoints.header(path)["format"] == runs.SEED_KIND
