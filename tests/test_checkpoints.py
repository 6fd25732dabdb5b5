"""Files are whole or not there; a checkpoint that was touched by anything is refused by name."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import signal
import struct
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from looped import checkpoints
from looped.errors import InputError

KIND = "test-1"
TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([True, False]), "c": torch.empty(0, 4)}


def anything(metadata: dict[str, str], shapes: dict[str, tuple[int, ...]]) -> None:
    """Expects nothing."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    checkpoints.save(tmp_path / "x.safetensors", KIND, TENSORS, {"step": "7"})
    return tmp_path / "x.safetensors"


def test_there_and_back(path: Path) -> None:
    metadata, tensors = checkpoints.load(path, KIND, anything)
    assert metadata == {"step": "7", "format": KIND}
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensor.dtype == tensors[name].dtype
        assert torch.equal(tensor, tensors[name])
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"], "nothing temporary is left"


def test_every_truncation_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"x\.safetensors is truncated, damaged or no safetensors file"):
            checkpoints.load(path, KIND, anything)


def test_every_flipped_bit_is_refused_or_harmless(path: Path) -> None:
    whole = path.read_bytes()
    loaded = checkpoints.load(path, KIND, anything)
    refused: list[str] = []
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        try:
            metadata, tensors = checkpoints.load(path, KIND, anything)
        except InputError as error:
            refused.append(str(error))
        else:  # blanks that pad the header mean nothing
            assert metadata == loaded[0]
            assert all(torch.equal(tensors[name], loaded[1][name]) for name in TENSORS)
    assert len(refused) > len(whole) * 0.95
    assert all("x.safetensors" in sentence and "\n" not in sentence for sentence in refused)


@pytest.mark.parametrize("junk", [b"", b"\0" * 100, b"PK\x03\x04 a pickle", os.urandom(4096), b"\xff" * 64])
def test_foreign_files_are_refused(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "x").write_bytes(junk)
    with pytest.raises(InputError, match="no safetensors file"):
        checkpoints.load(tmp_path / "x", KIND, anything)


def test_a_header_that_promises_the_moon_takes_no_memory(tmp_path: Path) -> None:
    tensor = {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}
    header = json.dumps({"__metadata__": {"format": KIND}, "a": tensor}).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 64)
    with pytest.raises(InputError, match="truncated"):
        checkpoints.load(tmp_path / "x", KIND, anything)


def test_a_sparse_file_is_refused_before_it_is_read(path: Path) -> None:
    os.truncate(path, 1 << 35)
    with pytest.raises(InputError, match="larger than what it says to hold"):
        checkpoints.load(path, KIND, anything)
    assert checkpoints.header(path)["format"] == KIND, "the header alone is read"


def test_a_file_replaced_while_it_is_read_is_the_old_one(path: Path, tmp_path: Path) -> None:
    """It is opened once: what is put in its place between the check and the reading is not looked at."""
    (tmp_path / "other").write_bytes(b"no checkpoint")
    metadata, tensors = checkpoints.load(path, KIND, lambda *_: os.replace(tmp_path / "other", path))
    assert metadata["format"] == KIND
    assert set(tensors) == set(TENSORS)


def test_other_kinds_are_told_apart(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not one of ours of the kind 'other'"):
        checkpoints.load(path, "other", anything)
    save_file(TENSORS, tmp_path / "plain")
    with pytest.raises(InputError, match="not one of ours"):
        checkpoints.load(tmp_path / "plain", KIND, anything)
    with pytest.raises(InputError, match="there is no checkpoint"):
        checkpoints.load(tmp_path / "nothing", KIND, anything)
    with pytest.raises(InputError, match="there is no checkpoint"):
        checkpoints.load(tmp_path, KIND, anything)


def test_shapes_are_checked_before_anything_is_read(path: Path) -> None:
    def refuse(metadata: dict[str, str], shapes: dict[str, tuple[int, ...]]) -> None:
        assert metadata["step"] == "7"
        assert shapes == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
        raise InputError("too wide")

    with pytest.raises(InputError, match=r"x\.safetensors: too wide"):
        checkpoints.load(path, KIND, refuse)


def test_the_file_before_can_be_kept(path: Path) -> None:
    before = path.read_bytes()
    other = path.with_name("y.safetensors")
    for step in ("8", "9"):
        checkpoints.save(path, KIND, TENSORS, {"step": step}, keep=other)
    assert checkpoints.load(other, KIND, anything)[0]["step"] == "8"
    assert checkpoints.load(path, KIND, anything)[0]["step"] == "9"
    assert path.read_bytes() != before
    assert sorted(p.name for p in path.parent.iterdir()) == ["x.safetensors", "y.safetensors"]


def test_keeping_goes_on_where_it_was_cut_off(path: Path) -> None:
    """Killed after the old file had its second name and before the new one had the first."""
    other = path.with_name("y.safetensors")
    os.link(path, other)
    checkpoints.save(path, KIND, TENSORS, {"step": "8"}, keep=other)
    assert checkpoints.load(other, KIND, anything)[0]["step"] == "7"
    assert checkpoints.load(path, KIND, anything)[0]["step"] == "8"
    assert sorted(p.name for p in path.parent.iterdir()) == ["x.safetensors", "y.safetensors"]


def test_many_may_write_the_same_file(tmp_path: Path) -> None:
    path, wanted = tmp_path / "x", {bytes([k]) * 200_000 for k in range(3)}

    def write(data: bytes) -> None:
        for _ in range(60):
            checkpoints.write(path, data, keep=tmp_path / "y")
            assert path.read_bytes() in wanted

    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(data,)) for data in wanted]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert {p.name for p in tmp_path.iterdir()} == {"x", "y"}


def test_nothing_that_lies_in_the_way_is_written_to(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, precious = path.read_bytes(), path.with_name("precious")
    precious.write_bytes(b"precious")
    monkeypatch.setattr(checkpoints, "own_name", lambda path: path.with_name("guessed"))
    path.with_name("guessed").symlink_to(precious)
    with pytest.raises(FileExistsError):
        checkpoints.write(path, b"new")
    assert path.with_name("guessed").is_symlink(), "it belongs to somebody else"
    assert (path.read_bytes(), precious.read_bytes()) == (before, b"precious")


def test_what_killed_writers_left_is_removed_once_it_is_old(path: Path) -> None:
    names = [checkpoints.own_name(other).name for other in (path, path, path.with_name("z"))]
    names += ["notes.tmp", "x.safetensors.tmp"]
    for name in names:
        path.with_name(name).write_bytes(b"half")
    for name in (names[0], *names[2:]):
        os.utime(path.with_name(name), (0, time.time() - 2 * checkpoints.OLD_S))
    checkpoints._clean.cache_clear()  # as in a new process
    checkpoints.save(path, KIND, TENSORS, {"step": "8"})
    left = {p.name for p in path.parent.iterdir()}
    assert left == {path.name, names[1], *names[3:]}, (
        "a writer may still be at work, and the others are not ours"
    )


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failing_disk_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    before = path.read_bytes()

    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    expected = OSError if code == errno.EIO else InputError
    with pytest.raises(expected) as caught:
        checkpoints.save(path, KIND, TENSORS, {"step": "8"})
    if expected is InputError:
        assert "the disk is full: " in str(caught.value)
        assert "x.safetensors could not be written" in str(caught.value)
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]


def test_a_file_that_may_not_grow(path: Path) -> None:
    """The real thing, as far as a test may go: the kernel refuses to write more."""
    before = path.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
        with pytest.raises(InputError, match=r"the disk is full: .*x\.safetensors could not be written"):
            checkpoints.save(path, KIND, {"a": torch.zeros(1 << 20)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["x.safetensors"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with a name here")
def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for attempt in (checkpoints.check_writable, lambda at: checkpoints.write(at, b"x")):
        with pytest.raises(InputError, match="is no plain file"):
            attempt(pipe)
    assert pipe.is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]
