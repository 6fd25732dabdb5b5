"""The result file of length sweeps, and L99 and L999 from its rows. Knows no model.

    {"provenance": {"looped": …, "commit": …, "device": …, "runs": [{"key": "copy-long@1f0c9a3e", "config": …}, …]},
     "definition": "L99 is …",
     "ladder": [{"run": "copy-long@1f0c9a3e", "task": "copy", "reach": [{"stop": "oracle", "L99": 500, …}, …]}, …],
     "rows": [{"task": "copy", …, "length": 20, "stop": "oracle", "accuracy": 1.0, …, "run": "copy-long@1f0c9a3e"}, …],
     "steps": [{"run": …, "seed": 0, "length": 20, "overrun": {"+1": 1.0, …}, "drift": {…}}, …],
     "unfinished": {"rung": [what was stopped], "state": {its partial counts}} or null}

`rows` are result rows as everywhere, with the run they belong to; `ladder` is computed from them each time the file is
written. It is written whole after every length and input distribution, and every now and then during long ones.

A length counts only if every seed and every input distribution asked for was measured there and is good enough, and if
every shorter length counts too: a model that fails at 60 and is right at 100 by luck has not reached 100.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from looped import checkpoints, serial
from looped.errors import InputError
from looped.result_files import LARGEST, Json, an, fits, is_count, is_positive, list_of, optional
from looped.tasks.families import UNIFORM

LEVELS = {"L99": 990, "L999": 999}  # right answers of a thousand, at least
DEFINITION = (
    "L99 (L999) is the longest length of the ladder such that at it and at every shorter length of the ladder "
    "every seed answers at least 99 % (99.9 %) of the problems exactly"
)
MEASURED = {"devices": "device", "measured_by": "commit"}  # of all measurements of a run, each once
_AT = {"run": an(str), "seed": is_count, "length": is_count, "samples": is_positive}
_ROW = {
    **_AT, "task": an(str), "method": an(str), "recipe": an(str), "stop": an(str), "family": optional(an(str)),
    "accuracy": lambda share: type(share) is float and 0 <= share <= 1,
}  # fmt: skip
_STEPS = {**_AT, "needed": is_count, "overrun": an(dict), "drift": an(dict)}
_LEFT = {"rung": an(list), "state": an(dict), "seconds": an(float)}
_RUN = {
    "key": an(str), "run": an(str), "task": an(str), "trained": is_count, "paper": is_count,
    "seeds": list_of(is_count), "lengths": list_of(is_count), "stops": list_of(an(str)),
    "families": list_of(an(str)), "complete": an(bool),
}  # fmt: skip
_FILE = {
    "provenance": lambda origin: fits(origin, {"runs": list_of(lambda run: fits(run, _RUN))}),
    "rows": list_of(lambda row: fits(row, _ROW)),
    "steps": list_of(lambda each: fits(each, _STEPS)),
    "unfinished": optional(lambda left: fits(left, _LEFT)),
}


class SweepRecord:
    """Everything a file holds, and what a sweep adds to it."""

    def __init__(self, path: Path | None = None) -> None:
        """An empty one; with a path, what is in that file, which need not exist yet."""
        self.path = path
        self.facts: Json = {}
        self.runs: dict[str, Json] = {}
        self.rows: list[Json] = []
        self.steps: list[Json] = []
        self.unfinished: Json | None = None
        if path is not None and path.is_dir():
            raise InputError(f"a length sweep is kept in a file, and {path} is a folder")
        if path is not None and path.exists():
            data = read(path)
            self.facts = {key: value for key, value in data["provenance"].items() if key != "runs"}
            self.runs = {run["key"]: run for run in data["provenance"]["runs"]}
            self.rows, self.steps = data["rows"], data["steps"]
            self.unfinished = data.get("unfinished")

    def enter(self, key: str, about: Json) -> None:
        """Make a run known, or widen what is planned for it."""
        old = self.runs.get(key, {})
        lists = {name: _joined(old.get(name, ()), about[name]) for name in ("lengths", "stops", "families")}
        spent = {"wall_seconds": old.get("wall_seconds", 0.0)}
        spent |= {name: old.get(name, []) for name in MEASURED}
        plan = lists | {"lengths": sorted(lists["lengths"])}
        complete = bool(old.get("complete")) and all(old[name] == plan[name] for name in plan)
        self.runs[key] = {**about, **plan, **spent, "complete": complete}

    def found(self, key: str, length: int, family: str, stops: Sequence[str]) -> list[Json]:
        """The rows of one length and input distribution under these rules."""
        return [row for row in self.rows if _place(row) == (key, length, family) and row["stop"] in stops]

    def holds_steps(self, key: str, length: int, samples: int) -> bool:
        """Whether every seed's steps have been looked at with that many samples or more."""
        there = [each for each in self.steps if (each["run"], each["length"]) == (key, length)]
        return {each["seed"] for each in there if each["samples"] >= samples} >= set(self.runs[key]["seeds"])

    def holds(self, key: str, length: int, family: str, stops: Sequence[str], samples: int) -> bool:
        """Whether a length has been measured, for every rule and seed, with that many samples or more."""
        there = [row for row in self.found(key, length, family, stops) if row["samples"] >= samples]
        have = {(row["stop"], row["seed"]) for row in there}
        return have >= {(stop, seed) for stop in stops for seed in self.runs[key]["seeds"]}

    def put(
        self, key: str, rows: Sequence[Json] = (), steps: Sequence[Json] = (), *, seconds: float, facts: Json
    ) -> None:
        """Add the rows of a length, or what its steps show, in place of older ones, and write the file."""
        if rows:
            place, stops = _place({**rows[0], "run": key}), {row["stop"] for row in rows}
            self.rows = [row for row in self.rows if _place(row) != place or row["stop"] not in stops]
            self.rows += [{**row, "run": key} for row in rows]
        if steps:
            at = key, steps[0]["length"]
            self.steps = [each for each in self.steps if (each["run"], each["length"]) != at]
            self.steps += [{"run": key, **each} for each in steps]
        run = self.runs[key]
        run["wall_seconds"] = round(run["wall_seconds"] + seconds, 3)
        for name, fact in MEASURED.items():
            run[name] = _joined(run[name], [facts[fact]])
        self.facts, self.unfinished = dict(facts), None
        self.write()

    def leave(self, what: Sequence[object], state: Json, seconds: float) -> None:
        """Save partial counts, and write the file."""
        self.unfinished = {"rung": [*what], "state": state, "seconds": round(seconds, 3)}
        self.write()

    def left(self, what: Sequence[object]) -> tuple[Json | None, float]:
        """The partial counts of this very measurement, if it was stopped, and the seconds it took."""
        if self.unfinished is None or self.unfinished["rung"] != [*what]:
            return None, 0.0
        return self.unfinished["state"], self.unfinished["seconds"]

    def finish(self, key: str, **swept: Sequence[object]) -> None:
        """Note that a sweep is complete, if that was all that is planned for the run."""
        run = self.runs[key]
        run["complete"] |= all(set(run[name]) == set(values) for name, values in swept.items())
        self.write()

    def only(self, keys: Iterable[str]) -> SweepRecord:
        """The same with nothing but some of the runs, and no file."""
        part, wanted = SweepRecord(), set(keys)
        part.facts = self.facts
        part.runs = {key: run for key, run in self.runs.items() if key in wanted}
        part.rows = [row for row in self.rows if row["run"] in wanted]
        part.steps = [each for each in self.steps if each["run"] in wanted]
        return part

    def as_dict(self) -> Json:
        """What the file holds."""
        order = {key: i for i, key in enumerate(self.runs)}

        def place(row: Json) -> tuple[int, int, int]:
            key, length, family = _place(row)
            families = self.runs[key]["families"]
            return order[key], length, families.index(family) if family in families else -1

        return {
            "provenance": {**self.facts, "runs": list(self.runs.values())},
            "definition": DEFINITION,
            "ladder": [self._ladder(key) for key in self.runs],
            "rows": sorted(self.rows, key=place),
            "unfinished": self.unfinished,
            "steps": sorted(self.steps, key=lambda each: (order[each["run"]], each["length"])),
        }

    def _ladder(self, key: str) -> Json:
        """What is worked out of a run's rows."""
        run = self.runs[key]
        rows = [row for row in self.rows if row["run"] == key]
        measured = {(row["length"], row.get("family", UNIFORM)) for row in rows}
        missing = {n: [name for name in run["families"] if (n, name) not in measured] for n in run["lengths"]}
        replicas = (run.get("config") or {}).get("replicas", 1)  # of each seed, of which this is the best
        return {
            "run": key,
            **{name: run.get(name) for name in ("task", "method", "recipe", "seeds", "trained", "paper")},
            **({"replicas": replicas} if replicas != 1 else {}),
            "samples": min((row["samples"] for row in rows), default=0),
            "lengths": run["lengths"],
            "families": run["families"],
            "complete": run["complete"],
            "reach": reaches(rows, run["lengths"], run["seeds"], run["families"], run["stops"]),
            "not_measured": [{"length": n, "families": names} for n, names in missing.items() if names],
        }

    def write(self) -> None:
        """Put the file in its place, whole; nothing without a path."""
        if self.path is not None:
            checkpoints.write_json(self.path, self.as_dict())


def read(path: Path) -> Json:
    """A length sweep's file; raises if it is something else."""
    data = serial.read(path, "a length sweep", LARGEST)
    if isinstance(data, dict) and fits(data, _FILE):
        keys = {run["key"] for run in data["provenance"]["runs"]}
        if all(row["run"] in keys for row in [*data["rows"], *data["steps"]]):
            return data
    raise InputError(f"{path} holds no length sweep; `looped bench ladder RUN --out FILE` writes one")


def _place(row: Json) -> tuple[str, int, str]:
    return row["run"], row["length"], row.get("family", UNIFORM)


def _joined(old: Iterable[Any], new: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys([*old, *new]))


MeasuredRow = Mapping[str, Any]
UNIFORM_INPUTS, ALL_INPUTS = "uniform", "all families"


@dataclass(frozen=True)
class FirstFailure:
    """What ended a sweep: the worst accuracy at the first length that does not count."""

    length: int
    family: str
    seed: int
    accuracy: float | None  # None: it was not measured


def reach(
    rows: Iterable[MeasuredRow], lengths: Iterable[int], seeds: Sequence[int], families: Sequence[str], stop: str,
    thousandths: int,
) -> tuple[int | None, FirstFailure | None]:  # fmt: skip
    """The longest length that counts (None: not even the first) and what failed after it (None: nothing)."""
    own = [row for row in rows if row["stop"] == stop]
    cells = {(row["length"], row.get("family", UNIFORM), row["seed"]): row for row in own}
    best = None
    for length in sorted(lengths):
        ends = []
        for family, seed in itertools.product(families, seeds):
            row = cells.get((length, family, seed))
            if row is None or not _holds(row, thousandths):
                ends.append(FirstFailure(length, family, seed, None if row is None else row["accuracy"]))
        if ends:
            return best, min(ends, key=lambda end: 2.0 if end.accuracy is None else end.accuracy)
        best = length
    return best, None


def _holds(row: MeasuredRow, thousandths: int) -> bool:
    """Whether enough answers are right, counted as whole answers: 1,980 of 2,000 are 99 %, 1,979 are not."""
    samples = int(row["samples"])
    return round(float(row["accuracy"]) * samples) * 1000 >= thousandths * samples


def reaches(
    rows: Sequence[MeasuredRow], lengths: Sequence[int], seeds: Sequence[int], families: Sequence[str],
    stops: Sequence[str],
) -> list[dict[str, object]]:  # fmt: skip
    """L99 and L999 of one model for every rule, on uniform inputs and on all, as result files hold them."""
    found: list[dict[str, object]] = []
    for inputs, drawn in ((UNIFORM_INPUTS, (UNIFORM,)), (ALL_INPUTS, families)):
        if inputs == ALL_INPUTS and len(families) < 2:
            continue
        for stop in stops:
            entry: dict[str, object] = {"stop": stop, "inputs": inputs}
            for name, thousandths in LEVELS.items():
                longest, end = reach(rows, lengths, seeds, drawn, stop, thousandths)
                entry[name] = longest
                entry[f"{name}_ended_by"] = None if end is None else asdict(end)
            entry["L99_by_seed"] = {
                str(seed): reach(rows, lengths, [seed], drawn, stop, LEVELS["L99"])[0] for seed in seeds
            }
            found.append(entry)
    return found
