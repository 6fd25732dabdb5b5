"""How a worker is started: its words, its environment, and one as a child of a scheduler's process.

Imports Python alone, so that this process stays small. The scheduler may end it at any moment; the worker then notices
that its parent is gone, saves and stops. A process of its own also gives every job a fresh torch, and frees its memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Python's words for a worker, for every backend. `-P`: the current folder is not searched for modules.
WORKER = ("-P", "-m", "looped.experiments.worker")
LOOK_S = 0.1  # between two looks at the child and for a request to stop


def run_worker(words: Sequence[str], log: str, folder: str, stop_file: str) -> int:
    """Run a worker with these words in a folder until it ends; its exit status.

    It is asked to save and stop, once, when this process is interrupted or the file `stop_file` appears: not every
    scheduler interrupts reliably.
    """
    appending = (
        os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NONBLOCK", 0)
    )  # never waits for a pipe
    with os.fdopen(os.open(log, appending, 0o644), "ab") as file:
        worker = subprocess.Popen(
            [sys.executable, *WORKER, *words, "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONSAFEPATH": "1"}, start_new_session=True,
        )  # fmt: skip
    asked = False
    while True:
        try:
            while (status := worker.poll()) is None:
                if not asked and os.path.exists(stop_file):
                    raise KeyboardInterrupt
                time.sleep(LOOK_S)
            return status
        except KeyboardInterrupt:
            if not asked:  # a second signal would end the worker before it has saved
                asked = True
                worker.terminate()


def environment(root: Path) -> dict[str, str]:
    """A worker's environment: this very package, and one thread for each worker unless told otherwise."""
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": safe_path(root), "PYTHONSAFEPATH": "1"}


def safe_path(root: Path) -> str:
    """The PYTHONPATH of workers on the jobs of a folder: this package first, then the absolute folders of ours.

    Whatever others may have put beside a sweep file or among the runs is no module: neither the current folder (which
    an empty or a relative entry would mean) nor the folder of runs or one below it is on the path.
    """
    here, runs_folder = Path.cwd().resolve(), root.resolve()
    package = str(Path(__file__).resolve().parents[2])  # the folder that it is imported from
    paths = [package]
    for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        folder = Path(entry).resolve() if os.path.isabs(entry) else here
        if folder != here and not folder.is_relative_to(runs_folder) and str(folder) != package:
            paths.append(entry)
    return os.pathsep.join(paths)
