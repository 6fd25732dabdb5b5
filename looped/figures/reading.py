"""Rows and metrics from files, checked before anything is drawn: whatever a file holds, a figure cannot choke on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from looped import files, serial
from looped.errors import InputError

ResultRow = Mapping[str, Any]
LARGEST_FILE = 256 * 2**20


def read_rows(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Rows of result files, and the longest training length of each task the files name."""
    rows: list[dict[str, Any]] = []
    trained: dict[str, int] = {}
    for path in paths:
        found = _parse(path, _text(path))
        rows += found[0]
        trained |= found[1]
    if not rows:
        raise InputError("there are no rows to draw in " + ", ".join(map(str, paths)))
    return rows, trained


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl; a last line that was cut off is left out."""
    lines = _text(path).splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = serial.parse(line, f"line {number} of {path}")
        except InputError:
            if number == len(lines):
                break
            raise
        if not isinstance(row, dict) or (row.get("kind") == "training" and not _fits(row, _TRAINING)):
            raise InputError(f"line {number} of {path} is no line of a run's metrics")
        rows.append(row)
    return rows


def _text(path: Path) -> str:
    try:
        return files.read_text(path, "a file of results", LARGEST_FILE)
    except OSError as error:
        why = error.strerror or "no reason given"
        raise InputError(f"{path} cannot be read as a file of results: {why}") from None


def _parse(path: Path, text: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    lines = [line for line in text.splitlines() if line.strip()]
    whole: Any
    try:
        whole = serial.parse(text, str(path))
    except InputError:  # rows may also stand one on a line
        if len(lines) == 1:
            raise
        whole = {"rows": [serial.parse(line, str(path)) for line in lines]}
    rows = whole.get("rows") if isinstance(whole, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f'{path} is no file of results: it has no list of "rows"')
    for row in rows:
        for field, check in _NEEDED.items():
            if not check(row.get(field)):
                raise InputError(f"{path} is no file of results: a row has no valid {field!r}")
        for field, check in _OPTIONAL.items():
            if row.get(field) is not None and not check(row[field]):
                raise InputError(f"{path} is no file of results: a row has no valid {field!r}")
        if not 0 <= row["accuracy"] <= 1:
            raise InputError(f"{path} is no file of results: an accuracy lies outside 0 to 1")
        if row["length"] < 1:
            raise InputError(f"{path} is no file of results: a length lies below 1")
    return rows, _trained(whole.get("provenance"))


def is_text(value: object) -> bool:
    """Whether a value can be printed in a figure."""
    return isinstance(value, str) and len(value) <= 200 and value.isprintable()


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of a size that can be drawn."""
    return type(value) is int and abs(value) <= 10**9


def is_number(value: object) -> bool:
    """Whether a value is a number of a size that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e9


def is_share(value: object) -> bool:
    """Whether a value is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


_NEEDED = {"task": is_text, "method": is_text, "length": is_whole, "accuracy": is_number}
_OPTIONAL = {
    "recipe": is_text, "stop": is_text, "family": is_text, "variant": is_text,
    "step": is_whole, "chosen": is_whole, "surprise": is_number,
}  # fmt: skip
_TRAINING = {"step": is_whole, "seed": is_whole, "loss": is_number, "accuracy": is_share}


def _fits(row: ResultRow, checks: Mapping[str, Callable[[object], bool]]) -> bool:
    """Whether a line has these fields, each of its kind or null."""
    return all(field in row and (row[field] is None or check(row[field])) for field, check in checks.items())


def _trained(provenance: Any) -> dict[str, int]:
    """Longest training length by task, where the provenance's configurations tell."""
    found: dict[str, int] = {}
    runs = provenance.get("runs") if isinstance(provenance, dict) else None
    single = provenance.get("config") if isinstance(provenance, dict) else None
    configs = (
        [run.get("config") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else [single]
    )
    for config in configs:
        if isinstance(config, dict) and is_whole(config.get("max_length")):
            found[str(config.get("task"))] = config["max_length"]
    return found
