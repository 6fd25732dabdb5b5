"""Which signs of a replica predict how far it holds: rank correlations over populations whose replicas were kept.

    looped train addition --recipe long --replicas 8 --hold-out 4 --keep-replicas --out runs/addition
    python -m benchmarks predictors runs/addition runs/copy --out results/predictors.json

Every kept replica is measured by a length sweep (into FILE.sweep.json, which a second call goes on with); its signs are
those of selection.json, recorded before. What the file holds of other tasks stays in it. A cell of the table is
Spearman's rank correlation of a sign with the longest exact length over all replicas of a task, with its 95 % interval
by resampling replicas. Signs count in the direction in which they are better: positive means that a better sign goes
with a longer exact length.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from looped import checkpoints, runs
from looped.errors import InputError
from looped.evaluation.length_sweep import LEVELS, LengthDone, SweepRecord, SweepSettings, reach, sweep_runs
from looped.evaluation.signs import LABEL_FREE, LABELLED
from looped.training import population

SIGNS = {**LABELLED, **LABEL_FREE}
RESAMPLED = 2000  # times, for an interval
FEWEST = 4  # replicas that a correlation needs


@dataclass(frozen=True)
class Replica:
    """One replica: where it comes from, its signs, and the longest lengths at which it is exact."""

    task: str
    run: str
    population: int  # the seed it is a replica of
    replica: int
    seed: int
    chosen: bool
    signs: Mapping[str, float | None]
    reach: Mapping[str, int]  # L99 and L999; 0 where not even the first length holds


def measure(
    folders: Sequence[Path],
    settings: SweepSettings,
    out: Path,
    *,
    device: str = "auto",
    limit: float = float("inf"),
) -> bool:
    """Sweep what is missing of the replicas of these runs, and write the result; False if the limit came first.

    What the file holds of other tasks is kept: their runs may be gone, and their lengths may be others.
    """
    parts = {folder: _parts(folder) for folder in folders}
    began, ended, record = time.monotonic(), True, SweepRecord()
    models: list[dict[str, Any]] = []
    replicas: list[Replica] = []
    for folder in parts:  # each by itself: replicas of the same seed have the same names in every run
        own = settings if settings.stops else replace(settings, stops=runs.read_config(folder).stops)
        left = limit - (time.monotonic() - began)
        record, whole = sweep_runs(
            parts[folder],
            own,
            out.with_suffix(".sweep.json"),
            device=device,
            limit=left,
            on_length=partial(_tell, folder.name),
        )
        ended &= whole
        models += record.runs.values()
        replicas += replicas_of(folder, list(record.runs.values()), record.rows)
    measured = {model["task"]: {"lengths": model["lengths"], **record.facts} for model in models}
    kept = _others(out, set(measured))
    replicas = [Replica(**each) for each in kept["replicas"]] + replicas
    result = {
        "provenance": record.facts,
        "complete": ended and kept["complete"],
        "lengths": sorted({length for each in (kept, *measured.values()) for length in each["lengths"]}),
        "measured": kept["measured"] | measured,
        "input_distributions": kept["input_distributions"]
        | {model["task"]: model["families"] for model in models},
        "stop": kept["stop"] | {model["task"]: model["stops"][0] for model in models},
        "correlations": correlations(replicas),
        "replicas": [vars(each) for each in replicas],
    }
    checkpoints.write(out, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())
    return ended


def _others(out: Path, tasks: Container[str]) -> dict[str, Any]:
    """What a file holds of other tasks than these; of no task, where there is no file."""
    data: dict[str, Any] = read(out) if out.is_file() else {"complete": True, "replicas": []}
    kept: dict[str, Any] = {name: {} for name in ("measured", "input_distributions", "stop")}
    for task in dict.fromkeys(each["task"] for each in data["replicas"] if each["task"] not in tasks):
        own = data.get("measured", {}).get(task) or {"lengths": data["lengths"], **data["provenance"]}
        kept["measured"][task] = own
        for name in ("input_distributions", "stop"):
            kept[name][task] = data[name][task]
    replicas = [each for each in data["replicas"] if each["task"] not in tasks]
    lengths = [length for own in kept["measured"].values() for length in own["lengths"]]
    return {**kept, "complete": data["complete"] or not replicas, "replicas": replicas, "lengths": lengths}


def _parts(folder: Path) -> list[Path]:
    found = sorted((folder / runs.POPULATION).glob("part-*"))
    if not found:
        raise InputError(
            f"{folder} has kept no replicas: train it with --replicas R --hold-out K --keep-replicas"
        )
    return found


def _tell(run: str, done: LengthDone) -> None:
    every = [row["accuracy"] for row in done.rows]
    print(
        f"{run} at {done.length}, {done.family}: best {max(every):.3f}, median {np.median(every):.3f}",
        flush=True,
    )


def replicas_of(
    folder: Path, models: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> list[Replica]:
    """The replicas of a run, each with its signs and what the rows of a length sweep say of it."""
    task, found = runs.read_config(folder).task, []
    for each in population.read(folder)["populations"]:
        for row in each["replicas"]:
            model = next((model for model in models if row["seed"] in model["seeds"]), None)
            if model is None:
                raise InputError(
                    f"{folder}: replica {row['replica']} of seed {each['seed']} has not been measured"
                )
            own = [line for line in rows if (line["run"], line["seed"]) == (model["key"], row["seed"])]
            asked = model["lengths"], [row["seed"]], model["families"], model["stops"][0]
            longest = {level: reach(own, *asked, share)[0] or 0 for level, share in LEVELS.items()}
            chosen = row["replica"] == each["chosen"]
            found.append(
                Replica(
                    task,
                    folder.name,
                    each["seed"],
                    row["replica"],
                    row["seed"],
                    chosen,
                    row["signs"],
                    longest,
                )
            )
    return found


# --- correlations --------------------------------------------------------------------------------------------


def correlations(
    replicas: Sequence[Replica],
) -> dict[str, dict[str, dict[str, dict[str, float | int] | None]]]:
    """By task and level, each sign's rank correlation with the longest exact length."""
    return {
        task: {level: correlate([each for each in replicas if each.task == task], level) for level in LEVELS}
        for task in dict.fromkeys(each.task for each in replicas)
    }


def correlate(replicas: Sequence[Replica], level: str) -> dict[str, dict[str, float | int] | None]:
    """Each sign's rank correlation with the longest exact length; None where either does not vary."""
    found: dict[str, dict[str, float | int] | None] = {}
    for name, better in SIGNS.items():
        pairs = [
            (better * value, each.reach[level])
            for each in replicas
            if (value := each.signs.get(name)) is not None
        ]
        signs, lengths = (
            np.array(values, float) for values in (zip(*pairs, strict=True) if pairs else ((), ()))
        )
        rho = spearman(signs, lengths)
        if rho is None:
            found[name] = None
            continue
        low, high = interval(signs, lengths)
        found[name] = {"rho": rho, "low": low, "high": high, "replicas": len(pairs)}
    return found


def ranks(values: np.ndarray) -> np.ndarray:
    """The place of each value, from 0; equal ones share the mean of their places."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts + 1) / 2)[which]


def spearman(a: np.ndarray, b: np.ndarray) -> float | None:
    """The rank correlation; None for few values, or where one side does not vary."""
    if len(a) < FEWEST:
        return None
    x, y = (each - each.mean() for each in (ranks(a), ranks(b)))
    size = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / size if size > 0 else None


def interval(a: np.ndarray, b: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """The middle 95 % of the rank correlation when pairs are drawn again with replacement."""
    random = np.random.default_rng(seed)
    drawn = (random.integers(len(a), size=len(a)) for _ in range(RESAMPLED))
    values = [rho for index in drawn if (rho := spearman(a[index], b[index])) is not None]
    low, high = np.quantile(values, [0.025, 0.975]) if values else (-1.0, 1.0)
    return float(low), float(high)


# --- tables --------------------------------------------------------------------------------------------------


def tables(data: Mapping[str, Any], level: str) -> str:
    """Two tables in Markdown: sign by task, and what choosing gave."""
    return f"{signs_table(data, level)}\n\n{gains_table(data, level)}"


def of_text(data: Mapping[str, Any], level: str) -> dict[str, Callable[[], str]]:
    """The same for a text, by the names of their places (`scripts.docs_tables`)."""
    made = {"predictors-signs": signs_table, "predictors-gains": gains_table}
    return {name: partial(table, data, level) for name, table in made.items()}


def signs_table(data: Mapping[str, Any], level: str) -> str:
    """The rank correlation of each sign with the longest exact length, for every task."""
    found = {task.replace("_", " "): levels[level] for task, levels in data["correlations"].items()}
    return _markdown(
        ["sign", *found], [[f"`{name}`", *(_cell(own[name]) for own in found.values())] for name in SIGNS]
    )


def gains_table(data: Mapping[str, Any], level: str) -> str:
    """The longest exact lengths of all replicas of a task, and of those that a rule picks of each seed."""
    columns = ["task", "replicas", "of them exact when held out", "median", "best"]
    columns += ["chosen, mean", "lowest loss, mean", "most robust, mean"]
    rows = []
    for task in data["correlations"]:
        own = [each for each in data["replicas"] if each["task"] == task]
        every = [each["reach"][level] for each in own]
        held = sum(each["signs"]["exact"] == 1 for each in own)
        picked = [
            [each["reach"][level] for each in own if each["chosen"]],
            *([each["reach"][level] for each in _best(own, sign)] for sign in ("loss", "robust")),
        ]
        numbers = len(own), held, np.median(every), max(every), *map(np.mean, picked)
        rows.append([task.replace("_", " "), *(f"{n:g}" for n in numbers)])
    return _markdown(columns, rows)


def _best(replicas: Sequence[Mapping[str, Any]], sign: str) -> list[Mapping[str, Any]]:
    """Of each seed of each run, the replica with the best value of a sign; of equal ones, the first."""
    found: dict[tuple[str, int], Mapping[str, Any]] = {}
    for each in replicas:
        value, key = each["signs"].get(sign), (each["run"], each["population"])
        if value is None:
            continue
        if key not in found or SIGNS[sign] * (value - found[key]["signs"][sign]) > 0:
            found[key] = each
    return list(found.values())


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [columns, ["---"] * len(columns), *rows])


def _cell(found: Mapping[str, float] | None) -> str:
    return "–" if found is None else f"{found['rho']:+.2f} ({found['low']:+.2f} to {found['high']:+.2f})"


def read(path: Path) -> dict[str, Any]:
    """A result that `measure` has written."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not {"correlations", "replicas"} <= data.keys():
        raise InputError(
            f"{path} holds no correlations of signs: `python -m benchmarks predictors` writes them"
        )
    return data
