"""File locks that are freed when closed, or when the process ends in any way.

Works between processes and, on file systems that pass locks on, between machines. Knows nothing of what is locked.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import IO

from looped import files
from looped.errors import InputError

if sys.platform != "win32":
    import fcntl

LARGEST = 1 << 20  # bytes of a lock's file, of which nothing is read
PATIENCE_S = 2.0  # a look at a lock takes far less


def hold(path: Path, patience_s: float | None = None) -> IO[bytes] | None:
    """Take a lock, freed when it is closed or its process ends; None if another process has it."""
    file = files.open_appending(path, "a lock")
    deadline = time.monotonic() + (PATIENCE_S if patience_s is None else patience_s)
    while not _flock(file):
        if time.monotonic() > deadline:
            file.close()
            return None
        time.sleep(0.05)
    return file


def is_held(path: Path) -> bool:
    """Whether a process has a lock; the look shares it for a moment, which `hold` waits out.

    A shared lock is enough to meet a holder. Others may look at the same time, and over NFS, where an exclusive one
    needs a file open for writing, nothing has to be.
    """
    try:
        with files.open_regular(path, "a lock", LARGEST) as file:
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
