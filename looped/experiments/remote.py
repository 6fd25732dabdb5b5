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

LOOK_S = 0.1  # between two looks at the child and at the wish to stop


def work(words: Sequence[str], log: str, folder: str, wish: str) -> int:
    """Runs a worker with these words in a folder until it ends; its exit status.

    Asks it to save and stop, once, when it is interrupted or a file with the name `wish` appears: schedulers
    interrupt as best they can, which may be not at all.
    """
    with open(log, "ab") as file:
        worker = subprocess.Popen(
            [sys.executable, "-m", "looped.experiments.worker", *words, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder,
            env={"OMP_NUM_THREADS": "1", **os.environ}, start_new_session=True,
        )  # fmt: skip
    asked = False
    while True:
        try:
            while (status := worker.poll()) is None:
                if not asked and os.path.exists(wish):
                    raise KeyboardInterrupt
                time.sleep(LOOK_S)
            return status
        except KeyboardInterrupt:
            if not asked:  # a second signal would end the worker before it has saved
                asked = True
                worker.terminate()
