"""L99 and L999 from measured rows. Knows rows as result files hold them, no model and no file.

A length counts only if every seed and every family asked for was measured there and is good enough, and if every
shorter length of the ladder counts too: a model that fails at 60 and is right at 100 by luck has not reached 100.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from looped.bench.ladder import LEVELS
from looped.tasks.families import UNIFORM

Row = Mapping[str, Any]
UNIFORM_INPUTS, ALL_INPUTS = "uniform", "all families"


@dataclass(frozen=True)
class End:
    """What ended a ladder: the worst cell of the first length that does not count."""

    length: int
    family: str
    seed: int
    accuracy: float | None  # None: it was not measured

    def as_dict(self) -> dict[str, object]:
        """As result files hold it."""
        return {"length": self.length, "family": self.family, "seed": self.seed, "accuracy": self.accuracy}


def reach(
    rows: Iterable[Row],
    lengths: Iterable[int],
    seeds: Sequence[int],
    families: Sequence[str],
    stop: str,
    thousandths: int,
) -> tuple[int | None, End | None]:
    """The longest length that counts (None: not even the first) and what ended the ladder (None: its top)."""
    cells = {
        (row["length"], row.get("family", UNIFORM), row["seed"]): row for row in rows if row["stop"] == stop
    }
    best = None
    for length in sorted(lengths):
        ends = []
        for family in families:
            for seed in seeds:
                row = cells.get((length, family, seed))
                if row is None or not _holds(row, thousandths):
                    ends.append(End(length, family, seed, None if row is None else row["accuracy"]))
        if ends:
            return best, min(ends, key=lambda end: 2.0 if end.accuracy is None else end.accuracy)
        best = length
    return best, None


def _holds(row: Row, thousandths: int) -> bool:
    """Whether enough answers are right, counted as whole answers: 1,980 of 2,000 are 99 %, 1,979 are not."""
    samples = int(row["samples"])
    return round(float(row["accuracy"]) * samples) * 1000 >= thousandths * samples


def reaches(
    rows: Sequence[Row],
    lengths: Sequence[int],
    seeds: Sequence[int],
    families: Sequence[str],
    stops: Sequence[str],
) -> list[dict[str, object]]:
    """L99 and L999 of one model for every rule, on uniform inputs and on all families, as result files hold them."""
    found: list[dict[str, object]] = []
    for inputs, drawn in ((UNIFORM_INPUTS, (UNIFORM,)), (ALL_INPUTS, families)):
        if inputs == ALL_INPUTS and len(families) < 2:
            continue
        for stop in stops:
            entry: dict[str, object] = {"stop": stop, "inputs": inputs}
            for name, thousandths in LEVELS.items():
                longest, end = reach(rows, lengths, seeds, drawn, stop, thousandths)
                entry[name] = longest
                entry[f"{name}_ended_by"] = None if end is None else end.as_dict()
            entry["L99_by_seed"] = {
                str(seed): reach(rows, lengths, [seed], drawn, stop, LEVELS["L99"])[0] for seed in seeds
            }
            found.append(entry)
    return found
