"""Damaged and forged files, fed to everything that reads one: a sentence, or what the file truly says.

Each case is a file made from a good one by a seeded random blow. A reader may refuse it, in one sentence that
names the file, or read it, if what it gives back is sound. It may not crash, hang, take memory the file does not
have, give back a part, or change the file (a damaged checkpoint of a run is renamed, as documented). Over a
thousand files in all; every test asserts how many were its share.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import TEXTS, blows, changed, contents, feed, forgeries, headers, little_memory, refusal

from looped import runs, serial
from looped.cli import main
from looped.errors import InputError
from looped.training.config import TrainConfig
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

pytestmark = pytest.mark.timeout(120)
__all__ = ["little_memory"]  # a fixture that every test here has


# --- a good run to damage ----------------------------------------------------------------------------------
def config() -> TrainConfig:
    base = make("copy", "fop-loop-adaptive", "quick", (0, 1))
    small = [
        "model.width=8",
        "model.heads=2",
        "model.bands=2",
        "steps=6",
        "max_length=3",
        "interval=2",
        "batch=4",
    ]
    return serial.override(base, small)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run broken off after four of six steps."""
    folder, left = tmp_path_factory.mktemp("good") / "run", iter(range(4))
    often = Cadence(report_steps=1, evaluate_steps=2, save_steps=2, samples=2)
    train(config(), folder, cadence=often, stop=lambda: next(left, None) is None)
    return folder


@pytest.fixture
def run(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, in a folder where a `pwned` would show."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(good, tmp_path / "run")
    return tmp_path / "run"


# --- every reader ------------------------------------------------------------------------------------------
def test_checkpoints_of_a_seed(run: Path) -> None:
    path = run / "seed-0.safetensors"
    data, loaded = path.read_bytes(), runs.load_seed(path)

    def same(found: runs.Trained) -> bool:
        return found.config == loaded.config and found.row.equal(loaded.row)

    def sound(found: runs.Trained) -> bool:
        return found.row.shape == loaded.row.shape and bool(found.row.isfinite().all())

    damaged = [*blows(data, 0, 200), *headers(data, 1, 200)]
    forged = list(forgeries(path, runs.SEED_KIND, 2, 200))
    assert len(damaged) + len(forged) >= 600
    refused = sum(feed(path, blow, lambda: runs.load_seed(path), same) for blow in damaged)
    assert refused >= 0.9 * len(damaged)
    refused = sum(feed(path, blow, lambda: runs.load_seed(path), sound) for blow in forged)
    assert refused >= 0.5 * len(forged)


@pytest.mark.slow
def test_states_of_a_run(run: Path) -> None:
    """A damaged state is set aside whole, and training says so; a sound one is taken up where it stands."""
    path = run / "state.safetensors"
    (run / "state.previous.safetensors").unlink()
    data, kept = path.read_bytes(), contents(run)
    every = [*blows(data, 3, 60), *headers(data, 4, 60), *forgeries(path, runs.STATE_KIND, 5, 120)]
    assert len(every) >= 250
    refused = 0
    for blow in every:
        path.write_bytes(blow)
        complaint = refusal(lambda: train(config(), run, stop=lambda: True))
        if complaint is not None:
            refused += 1
            if "it was made on 'cuda'" in complaint:
                continue
            assert "has no good checkpoint left" in complaint
            assert "set aside as state.safetensors.damaged" in complaint
            aside = run / "state.safetensors.damaged"
            assert aside.read_bytes() == blow
            aside.unlink()
        path.write_bytes(data)
        for name, text in kept.items():
            if name == path.name:
                continue
            found = (run / name).read_bytes()
            if complaint is None and name.startswith("seed-") and found != text:
                runs.load_seed(
                    run / name
                )  # written anew from a forged state that passed for sound: whole all the same
            else:  # a forged step may have cut the metrics back
                assert found == text[: len(found)]
            (run / name).write_bytes(text)
        if complaint is None:  # taken up, and perhaps saved again
            (run / "state.previous.safetensors").unlink(missing_ok=True)
        assert contents(run) == kept
    assert refused >= 0.7 * len(every)
    assert not Path("pwned").exists()


def test_configurations(run: Path) -> None:
    path, rng = run / "config.json", random.Random(6)
    data = path.read_bytes()
    texts = [changed(data.decode(), rng) for _ in range(250)] + TEXTS + [text * 2 for text in TEXTS]
    every = [*blows(data, 7, 100), *(text.encode("utf-8", "surrogatepass") for text in texts), b" " * 2**21]

    def sound(found: TrainConfig) -> bool:
        return serial.from_json(TrainConfig, serial.to_json(found)) == found

    refused = [feed(path, blow, lambda: runs.read_config(run), sound) for blow in every]
    assert len(every) >= 400
    assert sum(refused) >= 0.7 * len(every)


def test_metrics(run: Path) -> None:
    """A damaged line is left out, and only it."""
    path, rng = run / "metrics.jsonl", random.Random(8)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    whole = [json.loads(line) for line in lines]

    def without(rows: list[dict[str, Any]], at: int) -> list[dict[str, Any]]:
        """The rows less the one that was put in, if it was read at all."""
        return rows if len(rows) == len(whole) else [*rows[:at], *rows[at + 1 :]]

    for text in [*TEXTS, *(changed(lines[0].decode(), rng) for _ in range(60))]:
        raw, at = text.encode("utf-8", "surrogatepass"), rng.randrange(len(lines))
        blow = b"".join([*lines[:at], raw + b"\n", *lines[at:]])
        assert not feed(
            path, blow, lambda: runs.read_metrics(run), lambda rows, at=at: without(rows, at) == whole
        )
    damaged = list(blows(data, 9, 100))
    assert len(damaged) >= 100
    for blow in damaged:
        assert not feed(
            path, blow, lambda: runs.read_metrics(run), lambda rows: all("step" in row for row in rows)
        )
        path.write_bytes(blow)
        assert train(config(), run, stop=lambda: True).step == 4, "and training goes on all the same"
        for name in ("metrics.jsonl", "metrics.damaged.jsonl"):
            (run / name).unlink(missing_ok=True)


@pytest.mark.parametrize("thing", ["folder", "nothing", "loop", "pipe", "absent"])
def test_other_things_in_place_of_files(run: Path, good: Path, thing: str) -> None:
    readers: dict[str, Callable[[], object]] = {
        "seed-0.safetensors": lambda: runs.load_seed(run / "seed-0.safetensors"),
        "config.json": lambda: runs.read_config(run),
        "lock": lambda: train(config(), run, stop=lambda: True),
    }
    if thing != "absent":  # without metrics a run begins them anew
        readers["metrics.jsonl"] = lambda: train(config(), run, stop=lambda: True)
    for name, read in readers.items():
        path = run / name
        path.unlink()
        match thing:
            case "folder":
                path.mkdir()
            case "nothing":
                path.symlink_to(run.parent / "nowhere")
            case "loop":
                path.symlink_to(path)
            case "pipe":
                os.mkfifo(path)
        if thing == "absent" and name == "lock":
            read()
        else:
            with pytest.raises(InputError, match=rf"{name}|is no run's folder"):
                read()
        path.rmdir() if thing == "folder" else path.unlink(missing_ok=True)
        shutil.copy(good / name, path)
    assert not (run.parent / "nowhere").exists()


def test_nothing_is_written_through_a_link(run: Path) -> None:
    precious = run.parent / "precious"
    for name in ("metrics.jsonl", "lock", "config.json.tmp", "state.safetensors.tmp", "seed-0.safetensors"):
        precious.write_bytes(b"precious")
        path = run / name
        path.unlink(missing_ok=True)
        path.symlink_to(precious)
        complaint = refusal(lambda: train(config(), run))
        assert complaint is None or f"{name} must be a plain file" in complaint
        if complaint is not None:
            path.unlink()
        assert precious.read_bytes() == b"precious", name


def test_names_of_files_cannot_leave_the_command(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (
        "../../etc/passwd",
        "/etc/passwd",
        "/dev/null",
        "/proc/self/mem",
        "a\0b",
        "x" * 5000,
        "",
        "\udcff",
    ):
        assert main(["evaluate", name, "--lengths", "2", "--samples", "2"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
