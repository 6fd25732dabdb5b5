"""The engine for a Ray cluster: one Ray task for each job, on whatever node has a GPU or a core free.

Ray places the tasks and tells when a node is lost; when to try again is decided as for every backend, so
Ray's own retries are off. A task starts a worker as a child (`run_worker`). The folder of the runs must be one that
all nodes share, under the same path, and the package must be installed on each. Ray passes the words of a command
between its processes; no pickle is ever written to the folders.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray import exceptions as lost

from looped import devices
from looped.errors import InputError
from looped.experiments import backends, queue
from looped.experiments.backends import LOST, Backend, BackendOptions, WorkerEnd
from looped.experiments.worker import CRASHED

KNOCK_S = 5.0


class Ray(Backend):
    """Jobs as tasks of a Ray cluster."""

    def __init__(self, root: Path, options: BackendOptions) -> None:
        super().__init__(root.resolve(), options)
        address = options.address or os.environ.get("RAY_ADDRESS", "")
        if not address:
            devices.find(options.device)  # a cluster on this machine has what this machine has
        connect(address, options.workers, backends.safe_path(root))
        self.share = share(options, ray.cluster_resources().get("GPU", 0.0))
        self._stop_request = queue.queue_file(self.root, f"_stop-{secrets.token_hex(8)}")  # of this driver

    def start(self, names: Sequence[str]) -> dict[str, Any]:
        """A task for each."""
        device = "cuda" if "num_gpus" in self.share else "cpu"
        # By value: Ray searches the driver's current folder first, where a folder `looped` may lie.
        ray.cloudpickle.register_pickle_by_value(backends)
        task = ray.remote(backends.run_worker)
        refs = {}
        for name in names:
            log = str(queue.queue_file(self.root, f"{name}.log"))
            placed = task.options(name=name, max_retries=0, **self.share)
            words = self.worker_words(name, device)
            refs[name] = placed.remote(words, log, str(Path.cwd()), str(self._stop_request))
        return refs

    def ended(self) -> dict[str, WorkerEnd]:
        """Tasks that returned, and those that are lost."""
        if not self.workers:
            return {}
        names = {ref: name for name, ref in self.workers.items()}
        ready, _ = ray.wait(list(names), num_returns=len(names), timeout=0)
        return {names[ref]: _end(ref) for ref in ready}

    def request_stop(self) -> None:
        """Tasks that run see the stop file, or an interrupt; those that wait in Ray never start."""
        if self.workers:
            self._stop_request.touch()
        for ref in self.workers.values():
            ray.cancel(ref, force=False)

    def release(self) -> None:
        """Leave the cluster; one that was started here ends."""
        for ref in self.workers.values():
            with contextlib.suppress(lost.RayError):
                ray.cancel(ref, force=True)
        ray.shutdown()
        self._stop_request.unlink(missing_ok=True)

    def waiting_for(self, name: str) -> str | None:
        """Ray does not say which tasks run, the run's lock does."""
        return ""


def connect(address: str, workers: int, path: str) -> None:
    """Join the cluster at an address; without one, starts one of this machine alone."""
    if address:
        _knock(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    safe = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    local: dict[str, Any] = {"include_dashboard": False, "num_cpus": workers or None}
    before = dict(os.environ)
    try:
        os.environ.update(safe)  # Ray's own processes take it from here, those of ours from what follows
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR,
            runtime_env={"env_vars": safe}, **({} if address else local),
        )  # fmt: skip
    except (OSError, ValueError, RuntimeError, AssertionError, lost.RayError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"no Ray cluster at {address or 'this machine'}: {why}") from None
    finally:
        for name in safe:
            del os.environ[name]
        os.environ.update((name, before[name]) for name in safe if name in before)


def _knock(address: str) -> None:
    """Raise if nothing listens at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), KNOCK_S).close()
        except (OSError, OverflowError) as error:
            raise InputError(f"no Ray cluster at {address}: {error}") from None


def share(options: BackendOptions, gpus: float) -> dict[str, float]:
    """What a task asks of Ray: a core, and a GPU or, where there are more workers than GPUs, a part of one.

    `share(Options(workers=16), gpus=8)` is `{"num_cpus": 1, "num_gpus": 0.5}`.
    """
    if options.device == "cpu" or (options.device == "auto" and not gpus):
        return {"num_cpus": 1}
    each = math.ceil(options.workers / gpus) if gpus else 1
    part = math.floor(1e4 / each) / 1e4 if each > 1 else 1  # Ray counts in ten-thousandths
    return {"num_cpus": 1, "num_gpus": part}


def _end(ref: Any) -> WorkerEnd:
    """How a task ended."""
    try:
        return WorkerEnd(ray.get(ref))
    except lost.TaskCancelledError:
        return WorkerEnd(128 + signal.SIGTERM)
    except lost.RayTaskError as error:
        return WorkerEnd(CRASHED, " ".join(f"{type(error.cause).__name__}: {error.cause}".split())[:400])
    except lost.OutOfMemoryError:
        return WorkerEnd(LOST, "its node ran out of memory")
    except lost.NodeDiedError:
        return WorkerEnd(LOST, "its node was lost")
    except lost.RayError as error:
        return WorkerEnd(LOST, f"lost by Ray ({type(error).__name__})")
