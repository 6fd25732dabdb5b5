"""Result files: rows, metrics and length sweeps, checked before anything is computed or drawn from them. No torch.

`fits` holds an object against a table of checks, one for each field; every reader of results has such a table. Whatever
a file holds, what comes out of here can be compared, summed and drawn. `over_seeds` and `wilson` say how sure it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from looped import files, serial
from looped.errors import InputError

Json = dict[str, Any]
Check = Callable[[Any], bool]
Checks = Mapping[str, Check]
LARGEST = 1 << 28  # bytes


# --- checks ------------------------------------------------------------------------------------------------
def is_text(value: object) -> bool:
    """Whether a value can be printed in a figure."""
    return isinstance(value, str) and len(value) <= 200 and value.isprintable()


def whole(least: int, most: int) -> Check:
    """A whole number within these bounds."""
    return lambda value: type(value) is int and least <= value <= most


def within(least: float, most: float) -> Check:
    """A number within these bounds."""
    return lambda value: type(value) in (int, float) and least <= value <= most


DRAWN, COUNTED = 10**9, serial.LARGEST_WHOLE - 1  # the largest number that can be drawn, or stored
is_whole, is_number = whole(-DRAWN, DRAWN), within(-DRAWN, DRAWN)
is_share = within(0, 1)
is_count = whole(0, COUNTED)
is_positive = whole(1, COUNTED)  # a length, a number of samples
_is_drawn = whole(1, DRAWN)


def optional(check: Check) -> Check:
    """The same, or null."""
    return lambda value: value is None or check(value)


def list_of(check: Check) -> Check:
    """A list of such."""
    return lambda value: isinstance(value, list) and all(map(check, value))


def an(kind: type) -> Check:
    """A value of exactly this type."""
    return lambda value: type(value) is kind


def fits(item: object, checks: Checks) -> bool:
    """Whether an object has these fields, each of its kind; one that may be null may be missing."""
    return isinstance(item, dict) and all(check(item.get(field)) for field, check in checks.items())


# --- rows --------------------------------------------------------------------------------------------------
ROW: Checks = {
    "task": is_text, "method": is_text, "length": is_whole, "accuracy": is_number, "recipe": optional(is_text),
    "stop": optional(is_text), "family": optional(is_text), "variant": optional(is_text),
    "step": optional(is_whole), "chosen": optional(is_whole), "surprise": optional(is_number),
}  # fmt: skip
TRAINING: Checks = {
    "step": optional(is_whole), "seed": optional(is_whole), "loss": optional(is_number),
    "accuracy": optional(is_share),
}  # fmt: skip


def read_rows(paths: Sequence[Path]) -> tuple[list[Json], dict[str, int]]:
    """Rows of result files, and the longest training length of each task the files name."""
    rows: list[Json] = []
    trained: dict[str, int] = {}
    for path in paths:
        whole = _parsed(path)
        found = whole.get("rows") if isinstance(whole, dict) else None
        if not isinstance(found, list) or not list_of(an(dict))(found):
            raise InputError(f'{path} is no file of results: it has no list of "rows"')
        if why := next(filter(None, map(_fault, found)), ""):
            raise InputError(f"{path} is no file of results: {why}")
        rows += found
        trained |= _trained(whole.get("provenance"))
    if not rows:
        raise InputError("there are no rows to draw in " + ", ".join(map(str, paths)))
    return rows, trained


def read_metrics(path: Path) -> list[Json]:
    """The lines of a run's metrics.jsonl; a last line that was cut off is left out."""
    lines = _text(path).splitlines()
    rows: list[Json] = []
    for number, line in enumerate(lines, 1):
        try:
            row = serial.parse(line, f"line {number} of {path}")
        except InputError:
            if number == len(lines):
                break
            raise
        known = isinstance(row, dict) and row.keys() >= TRAINING.keys() and fits(row, TRAINING)
        if not isinstance(row, dict) or (row.get("kind") == "training" and not known):
            raise InputError(f"line {number} of {path} is no line of a run's metrics")
        rows.append(row)
    return rows


def _text(path: Path) -> str:
    try:
        return files.read_text(path, "a file of results", LARGEST)
    except OSError as error:
        why = error.strerror or "no reason given"
        raise InputError(f"{path} cannot be read as a file of results: {why}") from None


def _parsed(path: Path) -> Any:
    """What a file holds; rows may also stand one on a line."""
    text = _text(path)
    try:
        return serial.parse(text, str(path))
    except InputError:
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) == 1:
            raise
        return {"rows": [serial.parse(line, str(path)) for line in lines]}


def _fault(row: Json) -> str:
    """Why a row cannot be drawn; empty if it can."""
    for field, check in ROW.items():
        if not check(row.get(field)):
            return f"a row has no valid {field!r}"
    if not is_share(row["accuracy"]):
        return "an accuracy lies outside 0 to 1"
    return "a length lies below 1" if row["length"] < 1 else ""


def _trained(provenance: Any) -> dict[str, int]:
    """Longest training length by task, where the provenance's configurations tell."""
    about = provenance if isinstance(provenance, dict) else {}
    runs = about.get("runs")
    configs = [run.get("config") for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    return {
        str(config.get("task")): config["max_length"]
        for config in configs or [about.get("config")]
        if isinstance(config, dict) and is_whole(config.get("max_length"))
    }


# --- length sweeps -----------------------------------------------------------------------------------------
_REACH: Checks = {
    "stop": is_text, "inputs": is_text, "L99": optional(_is_drawn), "L999": optional(_is_drawn),
    "L99_ended_by": optional(an(dict)),
}  # fmt: skip
_SUMMARY: Checks = {
    "task": is_text, "run": is_text, "trained": _is_drawn, "paper": _is_drawn, "lengths": list_of(_is_drawn),
    "reach": list_of(lambda entry: fits(entry, _REACH)),
}  # fmt: skip


def read_length_sweeps(paths: Sequence[Path]) -> list[Json]:
    """The summaries in files that `looped bench ladder` wrote."""
    found: list[Json] = []
    for path in paths:
        try:
            whole = serial.read(path, "a file of ladders", LARGEST)
        except InputError as error:
            raise InputError(f"{path} is no file of length sweeps: {error}") from None
        sweeps = whole.get("ladder") if isinstance(whole, dict) else None
        if not isinstance(sweeps, list) or not all(fits(s, _SUMMARY) and s["lengths"] for s in sweeps):
            how = "`looped bench ladder RUN --out FILE` writes one"
            raise InputError(f"{path} is no file of length sweeps; {how}")
        found += sweeps
    if not found:
        raise InputError("there is no length sweep to draw in " + ", ".join(map(str, paths)))
    return found


def reach_text(entry: Mapping[str, Any], level: str = "L99", nowhere: str = "–") -> str:
    """`500`, `≥ 200` where the next length was not measured, `–` or `?` where not even the first holds."""
    end = entry[f"{level}_ended_by"]
    open_end = end is not None and end.get("accuracy") is None
    if entry[level] is None:
        return "?" if open_end else nowhere
    return f"≥ {entry[level]}" if open_end else str(entry[level])


# --- how sure a measured accuracy is -------------------------------------------------------------------------
Z95 = 1.959963984540054  # standard deviations that hold 95 % of a normal distribution


def wilson(accuracy: float, samples: int, z: float = Z95) -> tuple[float, float]:
    """The interval that holds the true accuracy 95 times of 100 (with the default z), given a measured one.

    Unlike the normal interval it is honest at the ends: 6,400 right of 6,400 give (.9994, 1).
    """
    assert samples > 0
    assert 0 <= accuracy <= 1
    shrink = 1 + z * z / samples
    middle = (accuracy + z * z / (2 * samples)) / shrink
    half = z / shrink * math.sqrt(accuracy * (1 - accuracy) / samples + z * z / (4 * samples * samples))
    return 0.0 if accuracy == 0 else middle - half, 1.0 if accuracy == 1 else middle + half


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and its standard error, which one seed alone does not have."""

    mean: float
    error: float | None


def over_seeds(values: Sequence[float]) -> Spread:
    """Mean ± standard error (sample deviation over the root of the number of seeds)."""
    assert values
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Spread(fmean(values), error)
