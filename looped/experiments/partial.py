"""What was measured before somebody had to stop: rows by input family and length, in one small file.

Lengths are measured independently of each other, so whoever goes on takes these rows and measures the rest. They
count only for the very weights that they were measured with, measured the same way; a file that cannot be read counts
for nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from looped import checkpoints, serial
from looped.runs import Trained

Rows = list[dict[str, Any]]


class Partial:
    """Rows measured so far; kept in a file if it is given one."""

    def __init__(self, path: Path | None, seeds: Sequence[Trained], way: str) -> None:
        self._path, self._weights, self._way = path, _fingerprint(seeds), way
        self._parts: dict[str, Rows] = {}
        self.seconds = 0.0  # that the rows took
        if path is not None and path.is_file():
            self._read(path)

    def get(self, family: str, length: int) -> Rows | None:
        """The rows of a family and length, if they were measured."""
        return self._parts.get(f"{family} {length}")

    def put(self, family: str, length: int, rows: Rows, seconds: float) -> None:
        """Keeps them, on the disk as well."""
        self._parts[f"{family} {length}"] = rows
        self.seconds += seconds
        if self._path is not None:
            data = {
                "weights": self._weights, "way": self._way, "seconds": self.seconds, "parts": self._parts,
            }  # fmt: skip
            checkpoints.write(self._path, json.dumps(data).encode())

    def _read(self, path: Path) -> None:
        match _data(path):
            case {
                "weights": self._weights, "way": self._way, "parts": dict(parts), "seconds": float(seconds)
            } if all(
                isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
                for rows in parts.values()
            ):  # fmt: skip
                self._parts, self.seconds = parts, seconds


def kept(path: Path) -> int:
    """How many lengths such a file holds, of whatever weights."""
    match _data(path):
        case {"parts": dict(parts)}:
            return len(parts)
    return 0


def _data(path: Path) -> object:
    """What a file holds; nothing if it is not there or cannot be read: half a file is no measurement."""
    try:
        return serial.parse(path.read_bytes().decode("utf-8"), str(path))
    except (ValueError, OSError):
        return None


def _fingerprint(seeds: Sequence[Trained]) -> str:
    """Tells weights apart."""
    sha = hashlib.sha256()
    for seed in seeds:
        sha.update(f"{seed.seed} {seed.step} ".encode())
        sha.update(seed.row.numpy().tobytes())
    return sha.hexdigest()
