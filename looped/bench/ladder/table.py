"""What a person reads of a ladder: how far each run reaches, what the steps show, and the table for the README.

Everything is taken from what a ladder's file holds; nothing is measured here. A cell of the README's table:

    500 / 200     L99 / L999
    –             not even the first length of the ladder
    ≥ 200 / 60    the ladder has not been climbed to its end: L99 may turn out longer
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from looped.bench.ladder import LEVELS
from looped.evaluation.statistics import over_seeds
from looped.tasks.families import UNIFORM

Json = dict[str, Any]
Table = tuple[Sequence[str], list[Sequence[object]]]
NOWHERE, UNKNOWN = "–", "?"


def reach_table(ladders: Iterable[Json]) -> Table:
    """A line for each run, kind of inputs and rule."""
    columns = ["run", "seeds", "samples", "trained", "paper", "inputs", "stop", *LEVELS, "L99 ended by"]
    rows: list[Sequence[object]] = [
        [
            ladder["run"], len(ladder["seeds"]), ladder["samples"], ladder["trained"], ladder["paper"], entry["inputs"],
            entry["stop"], *(_length(entry, level) for level in LEVELS), _end(entry["L99_ended_by"]),
        ]
        for ladder in ladders
        for entry in ladder["reach"]
    ]  # fmt: skip
    return columns, rows


def steps_table(steps: Iterable[Json]) -> Table:
    """A line for each run and length: means over the seeds, the widest quantiles and the narrowest window of them."""
    groups: dict[tuple[str, int], list[Json]] = {}
    for each in steps:
        groups.setdefault((each["run"], each["length"]), []).append(each)
    extras = list(next(iter(groups.values()))[0]["overrun"]) if groups else []
    columns = [
        "run",
        "length",
        "T",
        "first right − T",
        "best − T",
        "99 % from … to",
        *(f"at T{e}" for e in extras),
    ]
    return columns, [_steps_line(key, group, extras) for key, group in groups.items()]


def _steps_line(key: tuple[str, int], group: Sequence[Json], extras: Sequence[str]) -> Sequence[object]:
    drifts = [each["drift"] for each in group]
    ever = [drift for drift in drifts if drift["mean"] is not None]
    late, best, held = NOWHERE, [drift["best"] for drift in drifts], NOWHERE
    if ever:
        mean = over_seeds([drift["mean"] for drift in ever]).mean
        late = f"{mean:+.1f} ({min(d['low'] for d in ever):+d} to {max(d['high'] for d in ever):+d})"
    if all(drift["from"] is not None for drift in drifts):
        held = f"{max(d['from'] for d in drifts):+d} … {min(d['to'] for d in drifts):+d}"
    overrun = [f"{over_seeds([each['overrun'][extra] for each in group]).mean:.4f}" for extra in extras]
    spread = f"{min(best):+d}" if min(best) == max(best) else f"{min(best):+d} to {max(best):+d}"
    return [*key, group[0]["needed"], late, spread, held, *overrun]


def markdown(ladders: Sequence[Json]) -> str:
    """The README's table: the training length, the paper's length and ours, for each rule and kind of inputs."""
    ways = list(
        dict.fromkeys((entry["inputs"], entry["stop"]) for ladder in ladders for entry in ladder["reach"])
    )
    heads = [stop if inputs == UNIFORM else f"{stop}, {inputs}" for inputs, stop in ways]
    lines = [
        ["task", "recipe", "seeds", "samples", "trained to", "the paper", *heads],
        ["---"] * (6 + len(heads)),
    ]
    for ladder in ladders:
        cells = {
            (e["inputs"], e["stop"]): " / ".join(_length(e, level) for level in LEVELS)
            for e in ladder["reach"]
        }
        about = [ladder["task"].replace("_", " "), ladder["recipe"], len(ladder["seeds"]), ladder["samples"]]
        about += [ladder["trained"], ladder["paper"]]
        lines.append([*map(str, about), *(cells.get(way, "") for way in ways)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _length(entry: Json, level: str) -> str:
    """`500`, `≥ 200` where the next length was not measured, `–` where not even the first holds."""
    end = entry[f"{level}_ended_by"]
    open_end = end is not None and end["accuracy"] is None
    if entry[level] is None:
        return UNKNOWN if open_end else NOWHERE
    return f"≥ {entry[level]}" if open_end else str(entry[level])


def _end(end: Json | None) -> str:
    if end is None:
        return "the ladder's top"
    if end["accuracy"] is None:
        return f"{end['length']} not measured"
    where = "" if end["family"] == UNIFORM else f" on {end['family']}"
    return f"{end['accuracy']:.4f} at {end['length']}{where}, seed {end['seed']}"
