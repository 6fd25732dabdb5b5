"""A run's folder: made once, held by one, cut back after a kill, and never mistaken for another."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped import checkpoints, runs
from looped.errors import InputError
from looped.model.weights import Layout
from looped.runs import Run
from looped.training.config import TrainConfig
from looped.training.recipes import make

STATE = {"weights": torch.arange(4.0)}


def config(**changes: object) -> TrainConfig:
    base = make("copy", "fop-loop-adaptive", "quick", (0, 1))
    small = replace(base.model, layers=2, width=16, heads=2, bands=(2,))
    return replace(base, model=small, **{"steps": 1000, **changes})


def anything(metadata: dict[str, str], shapes: dict[str, tuple[int, ...]]) -> None:
    """Expects nothing."""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run with two checkpoints and some metrics."""
    with Run(tmp_path / "run", config()) as run:
        for step in (1, 2):
            run.log([{"step": step, "loss": 0.5}])
            run.save_state(STATE, {"step": str(step)})
        run.log([{"step": 3, "loss": 0.25}])
    return tmp_path / "run"


def test_a_folder_remembers_its_configuration(folder: Path) -> None:
    assert runs.read_config(folder) == config()
    with Run(folder, config()) as run:
        found, aside = run.load_state(anything)
    assert found is not None
    assert (found[0]["step"], aside) == ("2", [])
    assert torch.equal(found[1]["weights"], STATE["weights"])


def test_another_configuration_is_refused_and_nothing_changes(folder: Path) -> None:
    before = contents(folder)
    other = config(steps=5, lr=(1e-3,), batch=3, interval=7)
    with pytest.raises(
        InputError, match=r"another configuration \(steps: 1000 → 5; interval: \d+ → 7; .* and 1 more"
    ):
        Run(folder, other)
    assert contents(folder) == before


def test_two_at_once_are_refused(folder: Path) -> None:
    with Run(folder, config()), pytest.raises(InputError, match=r"another process is training in .* already"):
        Run(folder, config())
    Run(folder, config()).close()


def test_whoever_only_looks_at_the_lock_is_waited_for(folder: Path) -> None:
    with open(folder / "lock", "rb") as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        leaving = threading.Timer(runs.LOOKING_S / 3, lambda: fcntl.flock(looker, fcntl.LOCK_UN))
        leaving.start()
        Run(folder, config()).close()
        leaving.join()


@pytest.mark.parametrize("name", ["thesis.txt", "seed-0.safetensors", "metrics.jsonl"])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    with pytest.raises(InputError, match=f"is no run's folder .it holds {name}"):
        Run(tmp_path, config())
    assert contents(tmp_path) == {name: b"precious"}
    with pytest.raises(InputError, match="is a file"):
        Run(tmp_path / name, config())


def test_a_start_cut_off_before_its_configuration_was_written_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    (tmp_path / "config.json.tmp").write_text('{"loop')
    checkpoints.own_name(tmp_path / "config.json").write_text('{"loop')
    Run(tmp_path, config()).close()
    assert runs.read_config(tmp_path) == config()


def test_what_a_killed_writer_left_is_removed_by_whoever_goes_on(folder: Path) -> None:
    before, foreign = contents(folder), checkpoints.own_name(folder / "results.json").name
    for name in ("config.json", "state.safetensors", "state.previous.safetensors", "seed-12.safetensors"):
        checkpoints.own_name(folder / name).write_bytes(b"half")
    for name in (foreign, "mine.tmp"):
        (folder / name).write_bytes(b"theirs")
    Run(folder, config()).close()
    assert contents(folder) == {**before, foreign: b"theirs", "mine.tmp": b"theirs"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not JSON"),
        ("[]", "must hold 'looped' and 'config'"),
        ('{"config": {}}', "must hold 'looped' and 'config'"),
        ('{"looped": "0", "config": {}}', "lacks the field 'task'"),
        ('{"looped": "0", "config": {"taks": 1}}', "unknown field 'taks'"),
        ('{"looped": "0", "config": NaN}', "NaN"),
        (" " * 2**21, "too large"),
        ("\udcff", "not a text"),
    ],
)
def test_a_damaged_configuration_is_named(folder: Path, text: str, complaint: str) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(InputError, match=rf"config\.json .*{complaint}"):
        Run(folder, config())


@pytest.mark.parametrize(
    ("tail", "step", "kept"),
    [
        (b"", 3, [1, 2, 3]),
        (b"", 2, [1, 2]),
        (b"", 0, []),
        (b'{"step": 3, "lo', 3, [1, 2, 3]),
        (b'{"step": 3}', 3, [1, 2, 3]),  # whole, but its end of line is missing
        (b"\0" * 4096, 3, [1, 2, 3]),
        (b'{"step": 4}\n{"step": 5}\n', 4, [1, 2, 3, 4]),
    ],
)
def test_metrics_are_cut_back_to_the_checkpoint(
    folder: Path, tail: bytes, step: int, kept: list[int]
) -> None:
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(tail)
    with Run(folder, config()) as run:
        run.rewind(step)
        run.log([{"step": 9}])
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [*kept, 9]
    assert [row["step"] for row in runs.read_metrics(folder)] == [*kept, 9]


def test_a_damaged_line_among_good_ones_is_set_aside_and_named(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    first, second, *_ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b'{"st\xffp": 1}\n' + second)
    with Run(folder, config()) as run:
        (sentence,) = run.rewind(2)
        assert "a damaged line was taken out of" in sentence
        assert run.rewind(2) == []
        run.log([{"step": 3}])
    assert path.read_bytes() == first + second + b'{"step": 3}\n'
    assert (folder / "metrics.damaged.jsonl").read_bytes() == b'{"st\xffp": 1}\n'


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_used(folder: Path) -> None:
    (folder / "state.safetensors").write_bytes(b"half")
    with Run(folder, config()) as run:
        found, aside = run.load_state(anything)
        assert found is not None
        assert found[0]["step"] == "1"
        assert len(aside) == 1
        assert "state.safetensors is truncated" in aside[0]
        assert "set aside as state.safetensors.damaged" in aside[0]
    assert (folder / "state.safetensors.damaged").read_bytes() == b"half"


def test_no_good_checkpoint_left(folder: Path) -> None:
    for name in ("state.safetensors", "state.previous.safetensors", "state.safetensors.damaged"):
        (folder / name).write_bytes(name.encode())
    with Run(folder, config()) as run, pytest.raises(InputError, match="has no good checkpoint left: "):
        run.load_state(anything)
    assert (folder / "state.safetensors.damaged").read_bytes() == b"state.safetensors.damaged"
    assert (folder / "state.safetensors.damaged-2").read_bytes() == b"state.safetensors"
    with Run(folder, config()) as run:
        assert run.load_state(anything) == (None, [])


def test_a_checkpoint_of_another_run_is_not_taken(folder: Path, tmp_path: Path) -> None:
    with Run(tmp_path / "other", config(steps=5)) as other:
        other.save_state(STATE, {"step": "4"})
    os.replace(tmp_path / "other" / "state.safetensors", folder / "state.safetensors")
    with Run(folder, config()) as run:
        found, aside = run.load_state(anything)
    assert found is not None
    assert found[0]["step"] == "1"
    assert "belongs to a run of another configuration" in aside[0]


def test_a_checkpoint_from_before_a_field_was_added_still_fits(folder: Path) -> None:
    path = folder / "state.safetensors"
    metadata, tensors = checkpoints.load(path, runs.STATE_KIND, anything)
    old = json.loads(metadata["config"])
    del old["window"], old["model"]["halt"]
    checkpoints.save(path, runs.STATE_KIND, tensors, {**metadata, "config": json.dumps(old)})
    with Run(folder, config()) as run:
        found, aside = run.load_state(anything)
    assert (found is not None, aside) == (True, [])


def test_a_full_disk_keeps_both_checkpoints(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(folder)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Run(folder, config()) as run:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(InputError, match="the disk is full"):
            run.save_state(STATE, {"step": "3"})
        monkeypatch.undo()
    assert contents(folder) == before


# --- one seed's weights ------------------------------------------------------------------------------------


@pytest.fixture
def seed_file(folder: Path) -> Path:
    row = Layout(config().model).initialise([7])[0]
    with Run(folder, config()) as run:
        return run.save_seed(1, row, 2)


def test_a_seed_goes_there_and_back(seed_file: Path) -> None:
    trained = runs.load_seed(seed_file)
    assert (trained.config, trained.seed, trained.step) == (config(), 1, 2)
    assert torch.equal(trained.row, Layout(config().model).initialise([7])[0])
    assert runs.seed_files(seed_file.parent) == [seed_file]


def test_a_folder_without_weights(folder: Path) -> None:
    (folder / "seed-x.safetensors").touch()
    with pytest.raises(InputError, match="holds no trained weights"):
        runs.seed_files(folder)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"config": "{"}, "is not JSON"),
        ({"config": "{}"}, "lacks the field 'task'"),
        ({"seed": "../../x"}, "does not say its seed"),
        ({"step": "-1"}, "does not say its seed and step"),
    ],
)
def test_foreign_metadata(seed_file: Path, changes: dict[str, str], complaint: str) -> None:
    metadata, tensors = checkpoints.load(seed_file, runs.SEED_KIND, anything)
    checkpoints.save(seed_file, runs.SEED_KIND, tensors, {**metadata, **changes})
    with pytest.raises(InputError, match=rf"seed-1\.safetensors: .*{complaint}"):
        runs.load_seed(seed_file)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"layers": 10**9}, "a model's layers must be at most 10,000"),
        ({"layers": 10**4}, "says it has 10000 layers"),
        ({"before": 10**4}, "says it has 10002 layers"),
        ({"width": 10**6}, "weights do not fit"),
        ({"width": 18}, "weights do not fit"),
        ({"positions": "learned"}, "weights do not fit its configuration: 'position' is of shape None"),
    ],
)
def test_weights_that_do_not_fit_their_configuration(
    seed_file: Path, changes: dict[str, object], complaint: str
) -> None:
    metadata, tensors = checkpoints.load(seed_file, runs.SEED_KIND, anything)
    data = json.loads(metadata["config"])
    data["model"].update(changes)
    checkpoints.save(seed_file, runs.SEED_KIND, tensors, {**metadata, "config": json.dumps(data)})
    with pytest.raises(InputError, match=complaint):
        runs.load_seed(seed_file)
