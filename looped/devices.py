"""Which device to compute on, by name, and where a result comes from: version, commit, device."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path

import torch

from looped import __version__
from looped.errors import InputError


def pick(name: str) -> torch.device:
    """The device a person means, to compute on: a numbered one becomes the current one.

    Kernels and graphs go to the current device, whatever device their tensors are on.
    """
    device = find(name)
    if device.index is not None:
        torch.cuda.set_device(device)
    return device


def find(name: str) -> torch.device:
    """The device a person means by `auto`, `cpu`, `cuda` or `cuda:1`; raises if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, number = name.partition(":")
    if kind != "cuda" or (":" in name and not number.isdecimal()):
        raise InputError(f"unknown device {name[:40]!r}; the devices are auto, cpu, cuda and cuda:N")
    count = torch.cuda.device_count()
    if int(number or 0) >= count:
        raise InputError(f"there is no device {name[:40]!r} here: {count or 'no'} CUDA devices were found")
    return torch.device(name)


def describe(device: torch.device | str) -> str:
    """The device as people know it: `NVIDIA H200`, `cpu (x86_64, 2 threads)`."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.device(device).type} ({platform.machine()}, {torch.get_num_threads()} threads)"


@cache
def commit() -> str | None:
    """The commit of the checkout this package runs from, with a `+` if its files differ; None if unknown.

    A copy without its history may be told by the environment variable `LOOPED_COMMIT`.
    """
    if "LOOPED_COMMIT" in os.environ:
        return os.environ["LOOPED_COMMIT"][:64]
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--", "looped") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def facts(device: torch.device | str) -> dict[str, str | None]:
    """What every file of results says once about how it was made."""
    return {"looped": __version__, "commit": commit(), "device": describe(device), "torch": torch.__version__}


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
