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


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of a size that can be drawn."""
    return type(value) is int and abs(value) <= 10**9


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 0 on."""
    return type(value) is int and 0 <= value < serial.LARGEST_WHOLE


def is_positive(value: object) -> bool:
    """Whether a value is a whole number from 1 on: a length, a number of samples."""
    return is_count(value) and value != 0


def is_number(value: object) -> bool:
    """Whether a value is a number of a size that can be drawn."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e9


def is_share(value: object) -> bool:
    """Whether a value is a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1  # type: ignore[operator]


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
NEEDED: Checks = {"task": is_text, "method": is_text, "length": is_whole, "accuracy": is_number}
FURTHER: Checks = {
    "recipe": is_text, "stop": is_text, "family": is_text, "variant": is_text,
    "step": is_whole, "chosen": is_whole, "surprise": is_number,
}  # fmt: skip
TRAINING: Checks = {"step": is_whole, "seed": is_whole, "loss": is_number, "accuracy": is_share}


def read_rows(paths: Sequence[Path]) -> tuple[list[Json], dict[str, int]]:
    """Rows of result files, and the longest training length of each task the files name."""
    rows: list[Json] = []
    trained: dict[str, int] = {}
    for path in paths:
        whole = _parsed(path)
        found = whole.get("rows") if isinstance(whole, dict) else None
        if not isinstance(found, list) or not list_of(an(dict))(found):
            raise InputError(f'{path} is no file of results: it has no list of "rows"')
        for row in found:
            _check_row(row, path)
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
        told = isinstance(row, dict) and row.keys() >= TRAINING.keys()
        known = told and fits(row, {field: optional(check) for field, check in TRAINING.items()})
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


def _check_row(row: Json, path: Path) -> None:
    checks = {**NEEDED, **{field: optional(check) for field, check in FURTHER.items()}}
    odd = next((field for field, check in checks.items() if not check(row.get(field))), None)
    why = "" if odd is None else f"a row has no valid {odd!r}"
    if not why and not is_share(row["accuracy"]):
        why = "an accuracy lies outside 0 to 1"
    if not why and row["length"] < 1:
        why = "a length lies below 1"
    if why:
        raise InputError(f"{path} is no file of results: {why}")


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
_is_drawn = optional(lambda value: is_whole(value) and value > 0)
_REACH: Checks = {
    "stop": is_text, "inputs": is_text, "L99": _is_drawn, "L999": _is_drawn, "L99_ended_by": optional(an(dict)),
}  # fmt: skip
_SUMMARY: Checks = {
    "task": is_text, "run": is_text, "trained": lambda n: is_whole(n) and n > 0,
    "paper": lambda n: is_whole(n) and n > 0, "lengths": list_of(lambda n: is_whole(n) and n > 0),
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
