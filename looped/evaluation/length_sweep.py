"""The length sweep: how far past its training length a model is exact. `looped bench ladder` runs it.

**L99** is the longest of a row of lengths such that at it *and at every shorter one* each seed answers at least 99 % of
the problems exactly; L999 asks for 99.9 %: a model that fails at 60 and is right at 100 by luck has not reached 100.
Both are given for each stopping rule, and twice: on uniform inputs, and for the worst input distribution.

    length         20      30      60      100
    seed 0      1.000   1.000    .995    1.000
    seed 1      1.000    .998    .970     .999       L99 = 30 (seed 1 fails at 60), L999 = 20

Shorter lengths of all models come first, and of each length the uniform inputs. Where no seed has `floor` of the
uniform answers right under any rule, longer lengths are not measured; an input distribution below it is left out from
there on. Neither can change L99, which was lost before. Nothing is measured twice: all is kept in a file, written whole
after every length and input distribution, and every now and then during long ones:

    {"provenance": {"looped": …, "runs": [{"key": "copy-long@1f0c9a3e", "config": …}, …]}, "definition": "L99 is …",
     "ladder": [{"run": "copy-long@1f0c9a3e", "task": "copy", "reach": [{"stop": "oracle", "L99": 500, …}, …]}, …],
     "rows": [{"task": "copy", …, "length": 20, "stop": "oracle", "accuracy": 1.0, …, "run": "copy-long@1f0c9a3e"}, …],
     "steps": [{"run": …, "seed": 0, "length": 20, "overrun": {"+1": 1.0, …}, "drift": {…}}, …],
     "unfinished": {"rung": [what was stopped], "state": {its partial counts}} or null}
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped import checkpoints, devices, files, serial
from looped.errors import InputError
from looped.evaluation import measure, stopping
from looped.evaluation.loading import LARGEST_SEED, Precision, SweptModel, load_models
from looped.evaluation.measure import Subject, measure_length, measure_steps
from looped.result_files import LARGEST, Json, an, fits, is_count, is_positive, list_of, optional
from looped.tasks.distributions import UNIFORM

LENGTHS = (20, 30, 40, 60, 100, 200, 500, 1000)  # the training and the paper's length are added
ALL = "all"  # every input distribution of the task
SAVE_EVERY = 30.0  # seconds between two writings of partial counts


# --- settings ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SweepSettings:
    """What is measured of every model."""

    lengths: tuple[int, ...] = ()  # none given: the usual ones, the training length and the paper's
    samples: int = 2000  # problems per length and input distribution
    families: tuple[str, ...] = (ALL,)  # input distributions besides uniform, which always comes first
    stops: tuple[str, ...] = ()  # none given: every rule in `stops_of`
    floor: float = 0.6  # no seed above it: far below exact, and above what guessing one bit gives
    step_samples: int = 500  # problems per length that run on to 3·T, for overrun and drift
    seed: int = 0  # of the test problems

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {self.seed}")
        measure.check_samples(self.step_samples, least=0)
        if not 0 <= self.floor <= LEVELS["L99"] / 1000:
            raise InputError(f"the floor is a share between 0 and 0.99, not {self.floor}")


@dataclass(frozen=True)
class LengthDone:
    """What a listener is told after each length and input distribution."""

    key: str
    length: int
    family: str
    rows: list[Json]
    seconds: float | None  # None: it was in the file already


def lengths_of(subject: Subject, settings: SweepSettings) -> tuple[int, ...]:
    """The lengths of a sweep, ascending."""
    usual = {*LENGTHS, subject.trained_max_length, subject.task.paper.test_length}
    return tuple(sorted(set(settings.lengths) or usual))


def families_of(subject: Subject, settings: SweepSettings) -> tuple[str, ...]:
    """The input distributions, uniform first; `all` stands for every one of the task."""
    named = [subject.task.families if name == ALL else (name,) for name in settings.families]
    return tuple(dict.fromkeys([UNIFORM, *itertools.chain(*named)]))


def stops_of(subject: Subject, settings: SweepSettings) -> tuple[str, ...]:
    """The rules as rows name them; unless given: oracle, converged, and halt where the model has a halting head."""
    if settings.stops:
        return tuple(dict.fromkeys(stopping.get(name).name for name in settings.stops))
    if not subject.method.adaptive or subject.method.universal:
        return measure.usual_stops(subject.method)
    return (measure.ORACLE, "converged", *(["halt"] if subject.model.config.says_done else []))


# --- the sweep ---------------------------------------------------------------------------------------------
def sweep_runs(
    paths: Sequence[Path],
    settings: SweepSettings,
    out: Path,
    *,
    device: str = "auto",
    precision: Precision = "fp32",
    limit: float = float("inf"),
    on_length: Callable[[LengthDone], None] = lambda done: None,
    on_start: Callable[[SweepRecord, Sequence[str]], None] = lambda record, keys: None,
) -> tuple[SweepRecord, bool]:
    """Measure what is missing in the file `out`; what it holds of these runs, and whether all is done.

    No new problems are started `limit` seconds after the start; the same call goes on from there.
    """
    start, where = time.monotonic(), devices.pick(device)
    models = load_models(paths, where, precision, settings.seed)
    keys = [each.key for each in models]

    def enough() -> bool:
        return time.monotonic() - start > limit

    enter(models, settings, SweepRecord(out))  # complains before anything is written, a lock included
    with checkpoints.disk(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = files.lock(out.with_name(f".{out.name}.lock"), patience_s=0)
    if lock is None:  # the file is written whole, so that of two writers one would lose its rows
        other = f"another length sweep is being written to {out}"
        raise InputError(f"{other}: wait for it, or name another file with --out")
    with lock:
        record = SweepRecord(out)
        enter(models, settings, record)
        record.facts = record.facts or dict(devices.facts(where))
        record.write()
        on_start(record, keys)
        ended = sweep(models, settings, record, on_length=on_length, enough=enough)
    return record.only(keys), ended


def enter(models: Sequence[SweptModel], settings: SweepSettings, record: SweepRecord) -> None:
    """Check all that is asked for, before any work, and make the models known to the record."""
    planned: dict[str, Json] = {}
    for each in models:
        subject = each.subject
        lengths, stops = lengths_of(subject, settings), stops_of(subject, settings)
        families = families_of(subject, settings)
        for family in families:
            measure.check(subject, lengths, settings.samples, stops=stops, family=family)
        planned[each.key] = {
            **each.origin, "task": subject.task.name, "method": subject.method.name, "recipe": subject.recipe,
            "trained": subject.trained_max_length, "paper": subject.task.paper.test_length,
            "floor": settings.floor, "lengths": lengths, "stops": stops, "families": families,
        }  # fmt: skip
    for key, about in planned.items():
        record.enter(key, about)


def sweep(
    models: Sequence[SweptModel],
    settings: SweepSettings,
    record: SweepRecord,
    *,
    on_length: Callable[[LengthDone], None] = lambda done: None,
    enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Measure what is missing, a length of all models before the next; False if `enough` said to stop."""
    sweeps = [_ModelSweep(each, settings, record, enough) for each in models]
    for length in sorted({n for each in sweeps for n in each.lengths}):
        for each in sweeps:
            if length not in each.lengths or UNIFORM in each.lost:
                continue
            if not each.measure(length, on_length):
                return False
            if length == each.lengths[-1] or UNIFORM in each.lost:
                record.finish(each.key, lengths=each.lengths, families=each.families, stops=each.stops)
    return True


class _ModelSweep:
    """What is measured of one model, and the input distributions that are given up."""

    def __init__(
        self, model: SweptModel, settings: SweepSettings, record: SweepRecord, enough: Callable[[], bool]
    ) -> None:
        self.key, self.subject, self.settings, self.record = model.key, model.subject, settings, record
        self.lengths, self.stops = lengths_of(model.subject, settings), stops_of(model.subject, settings)
        self.families = families_of(model.subject, settings)
        self.lost: set[str] = set()
        self.enough = enough

    def measure(self, length: int, on_length: Callable[[LengthDone], None]) -> bool:
        """One length, without the input distributions that are lost; adds to those. False if it was stopped."""
        settings, record = self.settings, self.record
        for family in self.families:
            if self.lost & {family, UNIFORM}:
                continue
            begun = time.monotonic()
            lacking = []
            if not record.holds(self.key, length, family, self.stops, settings.samples):
                lacking.append("rows")
            looks = family == UNIFORM and measure.has_steps(self.subject) and settings.step_samples > 0
            if looks and not record.holds_steps(self.key, length, settings.step_samples):
                lacking.append("steps")
            if lacking and self.enough():
                return False
            if not all(self._measure(kind, length, family) for kind in lacking):
                return False
            rows = record.found(self.key, length, family, self.stops)
            seconds = time.monotonic() - begun if lacking else None
            on_length(LengthDone(self.key, length, family, rows, seconds))
            if max(row["accuracy"] for row in rows) < self.settings.floor:
                self.lost.add(family)
        return True

    def _measure(self, kind: str, length: int, family: str) -> bool:
        """Measure rows or steps from where they were left; False if that was stopped."""
        subject, settings = self.subject, self.settings
        what = [self.key, length, "steps", settings.step_samples]
        if kind == "rows":
            what = [self.key, length, family, settings.samples, *self.stops]
        part = _Unfinished(self.record, what, self.enough)
        found: list[Json] | None = None
        with part.kept():
            if kind == "rows":
                rows = measure_length(
                    subject, length, settings.samples, seed=settings.seed, rules=list(map(stopping.get, self.stops)),
                    family=family, max_steps=2 * measure.oracle_steps(subject, length), state=part.state,
                    pause=part.pause,
                )  # fmt: skip
                found = None if rows is None else [row.as_dict() for row in rows]
            else:
                found = measure_steps(
                    subject, length, settings.step_samples, seed=settings.seed, state=part.state, pause=part.pause
                )  # fmt: skip
        if found is None:
            return False
        facts = devices.facts(subject.weights.embed.device)
        self.record.put(self.key, **{kind: found}, seconds=part.seconds, facts=facts)
        return True


class _Unfinished:
    """The partial counts of a measurement that was stopped, the time spent on it, and when to save it again."""

    def __init__(self, record: SweepRecord, what: Sequence[object], enough: Callable[[], bool]) -> None:
        self.state, self._before = record.left(what)
        self._record, self._what, self._enough = record, what, enough
        self._begun = self._written = time.monotonic()
        self._last: Json | None = None  # counts that are not written yet

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """While entered, Ctrl-C or SIGTERM writes the last whole counts first."""
        try:
            yield
        except KeyboardInterrupt:
            if self._last is not None:
                self._record.leave(self._what, self._last, self.seconds)
            raise

    @property
    def seconds(self) -> float:
        """Spent on the measurement, over all its beginnings."""
        return self._before + time.monotonic() - self._begun

    def pause(self, state: Json) -> bool:
        """Whether to stop; the partial counts are saved then, and every now and then."""
        stop = self._enough()
        self._last = {**state}  # the next part puts other lists in place of these
        if stop or time.monotonic() - self._written > SAVE_EVERY:
            self._record.leave(self._what, self._last, self.seconds)
            self._written, self._last = time.monotonic(), None
        return stop


# --- the result file ----------------------------------------------------------------------------------------

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
        self.facts, self.unfinished = {**facts}, None
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


# --- L99 and L999 -------------------------------------------------------------------------------------------

UNIFORM_INPUTS, ALL_INPUTS = "uniform", "all families"


def reach(
    rows: Iterable[Mapping[str, Any]], lengths: Iterable[int], seeds: Sequence[int], families: Sequence[str],
    stop: str, thousandths: int,
) -> tuple[int | None, Json | None]:  # fmt: skip
    """The longest length that counts (None: not even the first) and what failed after it (None: nothing).

    What failed is the worst accuracy at the first length that does not count, None where it was not measured.
    """
    own = [row for row in rows if row["stop"] == stop]
    cells = {(row["length"], row.get("family", UNIFORM), row["seed"]): row for row in own}
    best = None
    for length in sorted(lengths):
        ends = []
        for family, seed in itertools.product(families, seeds):
            row = cells.get((length, family, seed))
            if row is None or not _holds(row, thousandths):
                share = None if row is None else row["accuracy"]
                ends.append({"length": length, "family": family, "seed": seed, "accuracy": share})
        if ends:
            return best, min(ends, key=lambda end: 2.0 if end["accuracy"] is None else end["accuracy"])
        best = length
    return best, None


def _holds(row: Mapping[str, Any], thousandths: int) -> bool:
    """Whether enough answers are right, counted as whole answers: 1,980 of 2,000 are 99 %, 1,979 are not."""
    samples = int(row["samples"])
    return round(float(row["accuracy"]) * samples) * 1000 >= thousandths * samples


def reaches(
    rows: Sequence[Json], lengths: Sequence[int], seeds: Sequence[int], families: Sequence[str], stops: Sequence[str]
) -> list[Json]:  # fmt: skip
    """L99 and L999 of one model for every rule, on uniform inputs and on all, as result files hold them."""
    found: list[Json] = []
    for inputs, drawn in ((UNIFORM_INPUTS, (UNIFORM,)), (ALL_INPUTS, families)):
        if inputs == ALL_INPUTS and len(families) < 2:
            continue
        for stop in stops:
            entry: Json = {"stop": stop, "inputs": inputs}
            for name, thousandths in LEVELS.items():
                entry[name], entry[f"{name}_ended_by"] = reach(rows, lengths, seeds, drawn, stop, thousandths)
            by_seed = {seed: reach(rows, lengths, [seed], drawn, stop, LEVELS["L99"])[0] for seed in seeds}
            entry["L99_by_seed"] = {str(seed): longest for seed, longest in by_seed.items()}
            found.append(entry)
    return found
