"""The far end of a task on somebody else's machine: a worker as a child process. Imports nothing but Python.

The process that calls this belongs to a scheduler, which may end it at any moment; the worker then notices that its
parent is gone, saves and stops. A process of its own also gives every job a fresh torch, and its memory back.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

LOOK_S = 0.1  # between two looks at the child; an interrupt is noticed in between


def work(words: Sequence[str], log: str, folder: str) -> int:
    """Runs a worker with these words in a folder until it ends; its exit status. Interrupted, it lets it save."""
    with open(log, "ab") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", "looped.experiments.worker", *words, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder,
            env={"OMP_NUM_THREADS": "1", **os.environ}, start_new_session=True,
        )  # fmt: skip
    try:
        return _wait(worker)
    except KeyboardInterrupt:
        worker.terminate()
        return _wait(worker)


def _wait(worker: subprocess.Popen[bytes]) -> int:
    """Waits in short naps: schedulers interrupt between two lines of Python, not in a system call."""
    while (status := worker.poll()) is None:
        time.sleep(LOOK_S)
    return status
