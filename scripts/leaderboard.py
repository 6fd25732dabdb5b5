"""The leaderboard: rows of `looped verify` into `results/leaderboard.json`, and from there into `docs/leaderboard.md`.

    looped verify MODEL --out row.json
    python -m scripts.leaderboard row.json …     adds the rows, or replaces those of the same model and task
    python -m scripts.leaderboard                fills the tables of the page anew

Only a row of the whole protocol is added. Numbers that others have published are kept under "quoted", written by hand,
each with its source. A row of a shipped model whose weights were replaced is marked. Measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import looped.zoo as zoo
from looped import checkpoints, serial
from looped.errors import InputError
from looped.solve import load
from looped.solve.verify import PROTOCOL, of_solver
from looped.tasks import TASKS
from scripts import docs_tables
from scripts.docs_tables import markdown, spaced

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "leaderboard.json", ROOT / "docs" / "leaderboard.md"
LARGEST = 1 << 24  # bytes
Json = dict[str, Any]


def main(words: Sequence[str] | None = None) -> int:
    """Add the rows of some files, and fill the page."""
    parser = argparse.ArgumentParser(prog="python -m scripts.leaderboard", description=main.__doc__)
    parser.add_argument(
        "rows", nargs="*", type=Path, metavar="ROW.json", help="what `looped verify --out` wrote"
    )
    try:
        board = read(RESULTS)
        for path in parser.parse_args(words).rows:
            add(board, read(path))
        checkpoints.write(RESULTS, (dumps(board) + "\n").encode())
        checkpoints.write(PAGE, docs_tables.fill(PAGE.read_text(encoding="utf-8"), tables(board)).encode())
    except InputError as error:
        print(f"leaderboard: {error}", file=sys.stderr)
        return 2
    return 0


def read(path: Path) -> Json:
    """A file of the leaderboard, or of one row."""
    data = serial.read(path, "a file of rows", LARGEST)
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no rows")
    return data


def add(board: Json, entry: Json) -> None:
    """Put a row in its place: those that hold furthest first, by task."""
    row = entry.get("row", {})
    if row.get("protocol") != PROTOCOL or not row.get("listed"):
        raise InputError(f"this row is not listed: {row.get('not_listed', f'it is no row of {PROTOCOL}')}")
    same = (row["task"], row["model"])
    kept = [each for each in board["rows"] if (each["row"]["task"], each["row"]["model"]) != same]
    board["rows"] = sorted([*kept, entry], key=lambda each: place(each["row"]))


def place(row: Json) -> tuple[Any, ...]:
    """What rows are sorted by: task, then how far exact, then how many are right at the longest length, then name."""
    tasks = list(TASKS)
    known = tasks.index(row["task"]) if row["task"] in tasks else len(tasks)
    return known, -(row["exact_to"] or 0), -len(row["right"]), -last_share(row), row["model"]


def last_share(row: Json) -> float:
    """The share of right answers at the longest length that was measured."""
    return share(row, list(row["right"])[-1]) if row["right"] else 0.0


def share(row: Json, length: str) -> float:
    """Right answers of a length, over all distributions."""
    right = row["right"][length]
    return float(sum(right.values()) / (row["samples"][length] * len(right)))


@cache
def shipped_sha256(name: str) -> str:
    """The hash of a shipped model's weights."""
    return str(of_solver(load(name), name).facts["sha256"])


def named(row: Json) -> str:
    """A model's name; where weights of that name have been replaced since, the row says so."""
    stale = (
        row["kind"] == "looped"
        and row["model"] in zoo.names()
        and shipped_sha256(row["model"]) != row["sha256"]
    )
    return f"{row['model']}{' (earlier weights)' * stale}"


def first_failure(row: Json) -> str:
    """The distribution with the fewest right answers at the first length that is not exact."""
    for length, right in row["right"].items():
        if share(row, length) < 1:
            return f"{min(right, key=lambda name: right[name])}, {length}"
    return ""


def dumps(board: Json) -> str:
    """The file's text: a line for each row."""
    lines = [
        f' "{key}": [\n  ' + ",\n  ".join(map(json.dumps, board[key])) + "\n ]" for key in ("rows", "quoted")
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


def tables(board: Json) -> dict[str, Any]:
    """The tables of the page by name."""
    made: dict[str, Any] = {task: (lambda task=task: of_task(board, task)) for task in TASKS}
    return {**made, "quoted": lambda: quoted(board)}


def of_task(board: Json, task: str) -> str:
    """All rows of a task."""
    rows = [each["row"] for each in board["rows"] if each["row"]["task"] == task]
    lengths = list(dict.fromkeys(length for row in rows for length in row["samples"]))
    columns = [
        "model",
        "trained to",
        "parameters",
        "stops by",
        "exact to",
        "edge cases",
        *lengths,
        "fails first on",
        "sha256",
    ]
    return markdown(columns, [[
        named(row), row["trained_to"] or "not trained", f"{row['parameters']:,}", row["stop"], row["exact_to"] or "–",
        f"{row['edge_cases']['right']}/{row['edge_cases']['of']}",
        *(f"{share(row, length):.3f}" if length in row["right"] else "" for length in lengths),
        first_failure(row), f"`{row['sha256'][:8]}`",
    ] for row in rows])  # fmt: skip


def quoted(board: Json) -> str:
    """What others have published, as they say it."""
    columns = ["system", "task", "trained to", "tested at", "accuracy", "source", "remark"]
    return markdown(columns, [[
        each["system"], spaced(each["task"]), each["trained_to"], each["length"], each["accuracy"],
        f"[{each['source']}]({each['address']})", f"not verified here; {each['remark']}",
    ] for each in board["quoted"]])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
