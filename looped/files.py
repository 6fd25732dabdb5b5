"""Open a file once, and only a regular one of bounded size. Standard library only; knows no format.

A named pipe would wait for a writer for ever, a device behind a link never ends, and a sparse file of a terabyte takes
no room on the disk but all of the memory. Every reader of the project comes through here.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from looped.errors import InputError

WITHOUT_WAITING: int = getattr(os, "O_NONBLOCK", 0)  # a pipe is opened at once, to be refused
KINDS = {
    stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


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
