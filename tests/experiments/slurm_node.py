"""A real Slurm of one node on this machine: its own key, ports, folder and configuration, and gone afterwards.

Needs Debian's slurm-wlm and munge, and root: slurmd starts jobs as their users.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
CONFIGURATION = """\
ClusterName=looped
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={first}
SlurmdPort={second}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=20
SchedulerParameters=sched_min_interval=100000
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no {absent[0]} on this machine: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "a Slurm of one's own needs root"


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """While entered, a Slurm with two CPUs runs; yields the environment in which its commands find it."""
    folder.mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o600)
    first, second = _ports()
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(host=host, folder=folder, first=first, second=second)
    )
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    munge = [f"--{name}={folder}/munge.{end}" for name, end in (("socket", "sock"), ("pid-file", "pid"),
             ("log-file", "log"), ("seed-file", "seed"))]  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    try:
        for words in (
            ["munged", "--foreground", "--force", f"--key-file={folder}/key", *munge],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", host],
        ):
            with open(folder / f"{words[0]}.out", "ab") as said:
                started.append(
                    subprocess.Popen(words, stdout=said, stderr=said, env={**os.environ, **environment})
                )
            _until(lambda: (folder / "munge.sock").exists(), "munged", folder)
        _until(lambda: _ask(["sinfo", "-h", "-o", "%T"], environment).strip() == "idle", "slurmd", folder)
        yield environment
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _ask(words: list[str], environment: dict[str, str]) -> str:
    said = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **environment})
    return said.stdout


def _until(ready, what: str, folder: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            logs = {path.name: path.read_text()[-500:] for path in folder.glob("*.out")}
            raise AssertionError(f"{what} did not come up: {logs}")
        time.sleep(0.1)


def _ports() -> tuple[int, int]:
    """Two ports nobody listens at."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _path() -> str:
    """Where daemons are looked for as well."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
