"""Which signs of a replica predict how far it holds: rank correlations over populations whose replicas were kept.

    looped train addition --recipe long --replicas 8 --hold-out 4 --keep-replicas --out runs/addition
    python -m benchmarks predictors runs/addition runs/copy --out results/predictors.json

Every kept replica is measured by a length sweep (into FILE.sweep.json, which a second call goes on with); its signs are
those of selection.json, recorded before. A cell of the table is Spearman's rank correlation of a sign with the longest
exact length over all replicas of a task, with its 95 % interval by resampling replicas. Signs count in the direction
in which they are better: positive means that a better sign goes with a longer exact length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from looped import checkpoints, runs
from looped.errors import InputError
from looped.evaluation.length_sweep import LengthDone, SweepSettings, sweep_runs
from looped.evaluation.length_sweep.record import LEVELS, reach
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
    """Sweep what is missing of the replicas of these runs, and write the result; False if the limit came first."""
    parts = [part for folder in folders for part in _parts(folder)]
    record, ended = sweep_runs(
        parts, settings, out.with_suffix(".sweep.json"), device=device, limit=limit, on_length=_tell
    )
    models = list(record.runs.values())
    replicas = [each for folder in folders for each in replicas_of(folder, models, record.rows)]
    correlations = {
        task: {level: correlate([each for each in replicas if each.task == task], level) for level in LEVELS}
        for task in dict.fromkeys(each.task for each in replicas)
    }
    result = {
        "provenance": record.facts,
        "complete": ended,
        "lengths": sorted({length for model in models for length in model["lengths"]}),
        "input_distributions": {model["task"]: model["families"] for model in models},
        "stop": {model["task"]: model["stops"][0] for model in models},
        "correlations": correlations,
        "replicas": [vars(each) for each in replicas],
    }
    checkpoints.write(out, (json.dumps(result, indent=1, allow_nan=False) + "\n").encode())
    return ended


def _parts(folder: Path) -> list[Path]:
    found = sorted((folder / runs.POPULATION).glob("part-*"))
    if not found:
        raise InputError(
            f"{folder} has kept no replicas: train it with --replicas R --hold-out K --keep-replicas"
        )
    return found


def _tell(done: LengthDone) -> None:
    best = max(row["accuracy"] for row in done.rows)
    print(f"{done.key} length {done.length} {done.family}: the best replica has {best:.4f}", flush=True)


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
    tasks = list(data["correlations"])
    lines = [["sign", *(task.replace("_", " ") for task in tasks)], ["---"] * (1 + len(tasks))]
    lines += [
        [f"`{name}`", *(_cell(data["correlations"][task][level][name]) for task in tasks)] for name in SIGNS
    ]
    gains = [["task", "replicas", "median", "of the chosen, mean", "best"], ["---"] * 5]
    for task in tasks:
        own = [each for each in data["replicas"] if each["task"] == task]
        every = [each["reach"][level] for each in own]
        chosen = [each["reach"][level] for each in own if each["chosen"]]
        gains.append(
            [
                task.replace("_", " "),
                *(f"{n:g}" for n in (len(own), np.median(every), np.mean(chosen), max(every))),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" if line else "" for line in [*lines, [], *gains])


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
