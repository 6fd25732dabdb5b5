"""The blocks of docs/my_blocks.py: trained by both doors, interrupted, resumed, measured, asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import looped
from looped import registry, runs
from looped.errors import InputError
from looped.evaluation import loading
from looped.experiments import queue

FILE = Path(__file__).parents[2] / "docs" / "my_blocks.py"
BLOCKS = ("SwiGLU", "StickBreaking", "Shifted")
STEPS = 60
SMALL = ("--recipe", "quick", "--steps", str(STEPS), "--max-length", "3", "--batch", "8", "--seeds", "0,1")


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.KINDS, "block", replace(registry.KINDS["block"], known={}, files={}))


def test_the_file_is_short() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_from_the_command_line(
    name: str, cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(FILE, tmp_path)
    monkeypatch.chdir(tmp_path)
    block = ("--block", f"my_blocks.py:{name}")
    done = cli("train", "copy", *SMALL, *block, "--out", "whole", "--json")
    assert done.code == 0, done.err
    assert "trained by the plain engine" in done.err
    assert runs.read_config(Path("whole")).block == f"my_blocks.py:{name}"
    # killed in the middle, then resumed: the same weights bit for bit
    assert 0 < killed("train", "copy", *SMALL, *block, "--out", "parts", "--save-every", "0.01") < STEPS
    assert cli("train", "copy", *SMALL, *block, "--out", "parts").code == 0
    one, other = (runs.load_seed(Path(run) / "seed-1.safetensors") for run in ("whole", "parts"))
    assert torch.equal(one.row, other.row)
    found = cli("evaluate", "whole", *block, "--lengths", "4,6", "--samples", "16", "--json")
    assert found.code == 0, found.err
    assert len(json.loads(found.out)["rows"]) == 4
    asked = cli("solve", "copy", "101", "--model", "whole", *block, "--json")
    assert asked.code == 0, asked.err
    assert json.loads(asked.out)["steps"] == 3
    from looped.explorer.queries import (  # here: a bare GPU machine has not what it needs
        WatchedLoop,
        _given,
        read_query,
    )

    watched = WatchedLoop(read_query(_given(Path("whole")), "101"))
    while not watched.over:
        assert watched.advance(10.0)
    assert "oracle" in [rule["name"] for rule in watched.rules()]
    # without the file, a run is not run: the sentence says what to pass
    monkeypatch.setitem(registry.KINDS, "block", replace(registry.KINDS["block"], known={}, files={}))
    for words in (("evaluate", "whole"), ("solve", "copy", "101", "--model", "whole")):
        refused = cli(*words)
        assert refused.code == 2
        assert f"needs the block {name} of my_blocks.py: pass --block FILE.py:{name}" in refused.err


def killed(*words: str) -> int:
    """Start a training, kill it with SIGKILL after its first checkpoint; the step of its last one."""
    state = Path(words[words.index("--out") + 1]) / runs.STATE
    environment = os.environ | {"PYTHONPATH": str(FILE.parents[1]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "looped", *words], env=environment, stderr=subprocess.DEVNULL
    ) as run:
        while not state.exists():
            assert run.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        run.kill()
    assert run.returncode == -signal.SIGKILL
    return queue.saved_step(state) or 0


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_from_python(name: str, tmp_path: Path) -> None:
    block = registry.find("block", registry.resolve("block", f"{FILE}:{name}"))
    given: dict[str, object] = {"recipe": "quick", "steps": 6, "max_length": 4, "device": "cpu"}
    run = looped.train("copy", block=block, seeds=range(5), out=tmp_path / "run", **given)  # type: ignore[arg-type]
    assert run.ending == "finished"
    rows = looped.evaluate(run, lengths=[4, 6], samples=16)
    assert len(rows) == 10
    solver = looped.load(tmp_path / "run")
    assert solver.solve("101").steps == 3
    assert "parameters" in repr(solver)


def test_next_token_methods_decode_with_any_block(tmp_path: Path) -> None:
    run = looped.train(
        "copy", block=f"{FILE}:Shifted", method="ntp-loop", recipe="quick", steps=4, max_length=3,
        out=tmp_path / "run", device="cpu",
    )  # fmt: skip
    loaded = loading.load(tmp_path / "run", torch.device("cpu"))
    assert looped.evaluate(run, lengths=[3], samples=8)
    assert loaded.subject.model.config.layers == 1
    assert looped.load(tmp_path / "run").solve("101").steps == 20


def test_plain_and_auto_backends_agree_for_the_stock_block(tmp_path: Path) -> None:
    rows = [
        looped.train("copy", recipe="quick", steps=10, max_length=3, device="cpu", backend=backend,
                     out=tmp_path / backend).seeds[0]["loss"]
        for backend in ("auto", "plain")
    ]  # fmt: skip
    assert rows[0] == pytest.approx(rows[1], abs=1e-4)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nowhere.py:Name", "there is no file nowhere.py"),
        (f"{FILE}:Missing", "has no 'Missing'; it has SwiGLU, StickBreaking, Shifted"),
        ("unheard-of", "pass --block FILE.py:Name"),
    ],
)
def test_unknown_blocks_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        registry.resolve("block", text)


def test_a_file_that_fails_says_how(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match="could not be run: ZeroDivisionError"):
        registry.resolve("block", f"{tmp_path / 'broken.py'}:Name")
