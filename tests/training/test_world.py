"""Several processes take the steps of one: over gloo on the CPU, to rounding."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from distance import apart

from looped import checkpoints, runs
from looped.errors import InputError
from looped.fast.engine import Engine
from looped.training.__main__ import main
from looped.training.config import TrainConfig
from looped.training.engine import World, find_world
from looped.training.trainer import Cadence, train

STEPS = 20
# What remains is rounding: gradients are added in another order. AdamW turns a gradient that should be 0 into a step of
# up to the learning rate, so the tolerance is a thousandth of the way that 20 steps of 1e-3 can go (5e-6 measured).
TOLERANCE = 2e-5

CASES: dict[str, dict[str, Any]] = {
    "stratified": {"ema": 0.9},
    "independent": {"lengths": "iid", "interval": 4},
    "odd": {"task_name": "multiplication", "batch": 7, "max_length": 3, "interval": 5},
    "random window": {
        "backprop": 2, "window": "random", "model": {"positions": "randomised", "max_positions": 40},
    },
    "noise": {"noise": 0.1, "extra": 2, "batch": 3},
    "next token": {"method_name": "ntp", "checkpointing": True},
    "own size": {"padding_loss": "own", "noise": 0.1, "batch": 3},
    "many own sizes": {"padding_loss": "own", "noise": 0.1, "batch": 9, "growth_clip": 0.5},
}  # fmt: skip


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def join(rank: int, port: int) -> None:
    """Makes this process one of two, as torchrun would."""
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )


def together(target: Callable[..., None], *args: object) -> list[int | None]:
    """Calls `target(rank, port, *args)` in two processes; their exit statuses."""
    context, port = multiprocessing.get_context("fork"), free_port()
    members = [context.Process(target=target, args=(rank, port, *args)) for rank in range(2)]
    for process in members:
        process.start()
    for process in members:
        process.join(120)
    return [process.exitcode for process in members]


def member(rank: int, port: int, configs: dict[str, TrainConfig], folder: Path) -> None:
    """One of two processes: trains every configuration and leaves what it found."""
    join(rank, port)
    world, device = find_world(torch.device("cpu"))
    for name, config in configs.items():
        engine = Engine(config, device, world=world)
        readings = [engine.step() for _ in range(STEPS)]
        left = {
            "weights": engine.evaluated_weights,
            "loss": torch.stack([each.loss for each in readings]),
            "accuracy": torch.stack([each.accuracy for each in readings]),
            "longest": torch.stack([each.accuracy_longest for each in readings]),
            "generators": torch.stack([generator.get_state() for generator in engine.generators]),
        }
        checkpoints.save(folder / f"{name}-{rank}", "found-1", left, {})
    world.close()


@pytest.fixture(scope="module")
def found(tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, TrainConfig], Path]:
    """What two processes found, for each case."""
    folder = tmp_path_factory.mktemp("world")
    configs = {name: tiny(**changes) for name, changes in CASES.items()}
    assert together(member, configs, folder) == [0, 0]
    return configs, folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_take_the_steps_of_one(found, name: str) -> None:
    configs, folder = found
    two = [checkpoints.load(folder / f"{name}-{rank}", "found-1", lambda *_: None)[1] for rank in range(2)]
    engine = Engine(configs[name])
    readings = [engine.step() for _ in range(STEPS)]
    for key in two[0]:
        assert torch.equal(two[0][key].nan_to_num(-1), two[1][key].nan_to_num(-1)), (
            f"both know the same {key}"
        )
    generators = torch.stack([generator.get_state() for generator in engine.generators])
    assert torch.equal(two[0]["generators"], generators)
    losses = torch.stack([each.loss for each in readings])
    torch.testing.assert_close(two[0]["loss"], losses, rtol=1e-4, atol=1e-6)
    exact = torch.stack([each.accuracy for each in readings])
    torch.testing.assert_close(two[0]["accuracy"], exact)
    longest = torch.stack([each.accuracy_longest for each in readings])
    torch.testing.assert_close(two[0]["longest"], longest, equal_nan=True)
    assert apart(configs[name], two[0]["weights"], engine.evaluated_weights) <= TOLERANCE
    assert apart(configs[name], engine.weights, Engine(configs[name]).weights) > 100 * TOLERANCE, (
        "they have gone far"
    )


def test_torchrun_makes_one_run(tmp_path: Path) -> None:
    """The command itself: one folder, one summary, and one process goes on where two have stopped."""
    small = [
        "model.width=16",
        "model.heads=2",
        "model.bands=2",
        "max_length=3",
        "interval=4",
        "batch=6",
        "lr=1e-3",
    ]
    words = ["-m", "looped.training", "copy", "--recipe", "quick", "--seeds", "0,1", "--device", "cpu"]
    words += ["--set", "steps=20", *small]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def call(*start: str, out: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *start, *words, "--out", str(tmp_path / out)]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=120, check=False
        )

    two = call("-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}", out="two")
    assert two.returncode == 0, two.stderr
    summary = json.loads(two.stdout)
    assert (summary["ending"], summary["step"]) == ("finished", 20)
    config = runs.read_config(tmp_path / "two")
    train(config, tmp_path / "one", cadence=Cadence(samples=8))
    for ours, theirs in zip(
        runs.seed_files(tmp_path / "one"), runs.seed_files(tmp_path / "two"), strict=True
    ):
        assert runs.load_seed(theirs).step == 20
        rows = (runs.load_seed(file).row[None] for file in (ours, theirs))
        assert apart(config, *rows) <= TOLERANCE
    assert train(config, tmp_path / "two").step == 20, "one process goes on where two have stopped"


def refused(rank: int, port: int, folder: Path) -> None:
    """One of two processes that are asked to train in a folder of something else."""
    join(rank, port)
    words = ["copy", "--recipe", "quick", "--device", "cpu", "--out", str(folder), "--set", "batch=4"]
    with open(folder.parent / f"said-{rank}", "w") as said, contextlib.redirect_stderr(said):
        sys.exit(main(words))


def test_a_complaint_of_the_leader_ends_them_all(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("precious")
    assert together(refused, tmp_path / "precious") == [2, 2]
    said = [(tmp_path / f"said-{rank}").read_text() for rank in range(2)]
    assert "is no run's folder (it holds thesis.txt)" in said[0]
    assert said[0].count("\n") == 1
    assert said[1] == "", "one sentence is enough"


def test_one_process_is_a_world_of_its_own() -> None:
    world, device = find_world(torch.device("cpu"), {})
    tensor = torch.arange(6).view(2, 3)
    assert (world.rank, world.size, device) == (0, 1, torch.device("cpu"))
    assert torch.equal(tensor[world.rows], tensor)
    assert world.sum(tensor) is tensor
    assert world.join(tensor, 3) is tensor
    assert world.from_leader(lambda: 7) == 7


@pytest.mark.parametrize(
    "words", [{"WORLD_SIZE": "x"}, {"WORLD_SIZE": "2"}, {"WORLD_SIZE": "2", "LOCAL_RANK": "-1"}]
)
def test_half_an_environment_is_refused(words: dict[str, str]) -> None:
    with pytest.raises(InputError, match="are not what torchrun sets"):
        find_world(torch.device("cpu"), words)


def test_more_processes_than_rows_are_refused(tiny) -> None:
    class Many(World):
        size = 9

    with pytest.raises(InputError, match="9 processes cannot share a batch of 8"):
        Engine(tiny(batch=8), world=Many())
