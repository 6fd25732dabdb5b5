"""Where a result comes from: version, commit, device. Knows no result."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import torch

from looped import __version__, devices


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
    return {
        "looped": __version__,
        "commit": commit(),
        "device": devices.describe(device),
        "torch": torch.__version__,
    }


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()
