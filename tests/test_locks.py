"""Locks between processes: a holder is seen, a process that only looks is not, and looking needs no right to write."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from looped import files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A lock that nobody has."""
    (tmp_path / "a.lock").touch()
    return tmp_path / "a.lock"


def test_a_holder_is_seen_until_it_lets_go(path: Path) -> None:
    assert not files.is_locked(path.with_name("none"))
    assert not path.with_name("none").exists(), "looking makes no file"
    with files.lock(path) as lock:
        assert lock is not None
        assert files.is_locked(path)
        assert files.lock(path, patience_s=0) is None
    assert not files.is_locked(path)


def test_whoever_looks_is_no_holder_to_another_who_looks(path: Path) -> None:
    with open(path, "rb") as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        assert not files.is_locked(path)


def test_whoever_looks_is_waited_for(path: Path) -> None:
    with open(path, "rb") as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        assert files.lock(path, patience_s=0) is None
        leaving = threading.Timer(0.2, lambda: fcntl.flock(looker, fcntl.LOCK_UN))
        leaving.start()
        started = time.monotonic()
        with files.lock(path) as lock:
            assert lock is not None
        assert time.monotonic() - started < files.PATIENCE_S
        leaving.join()


def test_a_free_lock_is_free_where_flock_becomes_a_lock_on_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over NFS, where an exclusive lock needs a file that is open for writing."""
    monkeypatch.setattr(fcntl, "flock", fcntl.lockf)
    assert not files.is_locked(path)
    with files.lock(path) as lock:
        assert lock is not None


def test_looking_never_opens_a_file_for_writing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    plain = os.open

    def watched(file: Path, flags: int, mode: int = 0o777) -> int:
        modes.append(flags & os.O_ACCMODE)
        return plain(file, flags, mode)

    monkeypatch.setattr(os, "open", watched)
    assert not files.is_locked(path)
    assert modes == [os.O_RDONLY]
