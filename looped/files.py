"""Open a file once, and only a regular one of bounded size; lock a file. Standard library only; knows no format.

A named pipe would wait for a writer for ever, a device behind a link never ends, and a sparse file of a terabyte takes
no room on the disk but all of the memory. Every reader of the project comes through here. A lock is freed when it is
closed or when its process ends in any way; it works between machines on file systems that pass locks on.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import IO

from looped.errors import InputError

if sys.platform != "win32":
    import fcntl

WITHOUT_WAITING: int = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened at once, to be refused
KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip
LARGEST_LOCK = 1 << 20  # bytes of a lock's file, of which nothing is read
PATIENCE_S = 2.0  # a look at a lock takes far less


def open_regular(path: Path, kind: str, largest: int) -> IO[bytes]:
    """A regular file of at most `largest` bytes, open for reading; `kind` says what it should be: `a card`."""
    return os.fdopen(_checked(path, os.O_RDONLY, kind, largest), "rb")


def open_appending(path: Path, kind: str) -> IO[bytes]:
    """A regular file, made if it is not there, open for writing at its end."""
    try:
        handle = _checked(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, kind, None)
    except OSError as error:
        if path.is_fifo():  # without a reader it cannot even be opened
            raise InputError(_refusal(path, kind, stat.S_IFIFO)) from None
        raise error
    return os.fdopen(handle, "ab")


def read_bytes(path: Path, kind: str, largest: int) -> bytes:
    """What a regular file of at most `largest` bytes holds."""
    with open_regular(path, kind, largest) as file:
        data = file.read(largest + 1)
    if len(data) > largest:  # it has grown since it was opened
        raise InputError(f"{path} is too large for {kind}")
    return data


def read_text(path: Path, kind: str, largest: int) -> str:
    """The text of a regular file of at most `largest` bytes."""
    try:
        return read_bytes(path, kind, largest).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text") from None


def _checked(path: Path, flags: int, kind: str, largest: int | None) -> int:
    """An open file's number, if it is a regular file and small enough."""
    handle = os.open(path, flags | WITHOUT_WAITING | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(_refusal(path, kind, stat.S_IFMT(found.st_mode)))
        if largest is not None and found.st_size > largest:
            raise InputError(
                f"{path} is too large for {kind}: {found.st_size} bytes, and {largest} are allowed"
            )
    except BaseException:
        os.close(handle)
        raise
    return handle


def _refusal(path: Path, kind: str, mode: int) -> str:
    return f"{path} is {KINDS.get(mode, 'something else')}, not a regular file, so it cannot be {kind}"


def lock(path: Path, patience_s: float | None = None) -> IO[bytes] | None:
    """Take a lock, freed when it is closed or its process ends; None if another process has it."""
    file = open_appending(path, "a lock")
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while not _flock(file):
        if time.monotonic() > deadline:
            file.close()
            return None
        time.sleep(0.05)
    return file


def is_locked(path: Path) -> bool:
    """Whether a process has a lock; the look shares it for a moment, which `lock` waits out.

    A shared lock is enough to meet a holder. Others may look at the same time, and over NFS, where an exclusive one
    needs a file open for writing, nothing has to be.
    """
    try:
        with open_regular(path, "a lock", LARGEST_LOCK) as file:
            return not _flock(file, shared=True)
    except (OSError, InputError):
        return False


def _flock(file: IO[bytes], shared: bool = False) -> bool:
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
