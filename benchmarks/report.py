"""Measured lines into the tables of a text: every number in `docs/performance.md` comes from here, none by hand.

    python -m benchmarks report results/performance.jsonl docs/performance.md

A text marks the places of tables (`scripts.docs_tables`). Where a measurement was repeated, the last line counts. Knows
nothing of how anything is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import Measured
from scripts import docs_tables
from scripts.docs_tables import markdown, spaced

Lines = list[Measured]


def load(path: Path) -> Lines:
    """The measurements of a file, repeated ones once."""
    found: dict[str, Measured] = {}
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        key = json.dumps([line["bench"], line["options"], line["provenance"]["device"]], sort_keys=True)
        found.pop(key, None)
        found[key] = line
    return list(found.values())


def fill(text: str, lines: Lines) -> str:
    """The text with every generated table made anew."""
    return docs_tables.fill(text, {name: partial(table, lines) for name, table in TABLES.items()})


# --- which lines -------------------------------------------------------------------------------------------


def on_cpu(line: Measured) -> bool:
    """Whether a line was measured on a CPU."""
    return str(line["provenance"]["device"]).startswith("cpu")


def chosen(lines: Lines, bench: str, *, cpu: bool = False) -> Lines:
    """The lines of one bench, of a GPU or a CPU."""
    return [line for line in lines if line["bench"] == bench and on_cpu(line) == cpu]


def stacked(lines: Lines) -> Lines:
    """Training on a GPU, several seeds side by side: one line for each task."""
    return [line for line in chosen(lines, "train") if line["ours"]["seeds"] > 1]


# --- how they look -----------------------------------------------------------------------------------------


def _gigabytes(count: float) -> str:
    return f"{count / 1e9:.2f}"


# --- the tables --------------------------------------------------------------------------------------------


def _training(lines: Lines) -> str:
    columns = (
        "task", "ours, ms", "peer, ms", "times faster", "TFLOP/s", "of the ceiling", "peak GB, all seeds",
        "peer's GB", "compile s", "capture s", "loss apart",
    )  # fmt: skip
    return markdown(columns, (_training_row(line) for line in stacked(lines)))


def _training_row(line: Measured) -> Sequence[object]:
    ours, peer = line["ours"], line["peer"]
    return (
        spaced(line["task"]), f"{ours['ms_per_seed']:.2f}", f"{peer['ms_per_step']:.1f}",
        f"**{line['speedup']:.0f}**", f"{ours['tflops']:.0f}", f"{ours['share_of_ceiling']:.0%}",
        _gigabytes(ours["peak_bytes"]), _gigabytes(peer["peak_bytes"]), f"{ours['compile_seconds']:.1f}",
        f"{ours['capture_seconds']:.1f}", f"{line['loss_difference']:.0e}",
    )  # fmt: skip


def _profile(lines: Lines) -> str:
    found = stacked(lines)
    if not found:
        return markdown((), ())
    kinds = list(found[0]["ours"]["anatomy"]["ms"])
    rows = []
    for line in found:
        ours, seeds = line["ours"], line["ours"]["seeds"]
        spent = ours["anatomy"]["ms"]
        idle = max(0.0, ours["ms_per_step"] - ours["anatomy"]["busy_ms"])
        parts = [*(spent[kind] for kind in kinds), idle]
        rows.append(
            [
                spaced(line["task"]), f"{ours['floor_ms_per_seed']:.2f}", f"{ours['ms_per_seed']:.2f}",
                *(f"{part / seeds:.2f}" for part in parts), ours["anatomy"]["launches"],
            ]
        )  # fmt: skip
    return markdown(("task", "floor", "measured", *kinds, "idle", "launches"), rows)


def _scale(lines: Lines) -> str:
    rows = [
        (
            row["seeds"],
            f"{row['ms_per_step']:.2f}",
            f"{row['ms_per_seed']:.2f}",
            _gigabytes(row["peak_bytes"]),
        )
        for line in chosen(lines, "scale")
        for row in line["rows"]
    ]
    return markdown(("seeds", "ms per step", "ms per step and seed", "peak GB"), rows)


def _equal(lines: Lines) -> str:
    rows: list[Sequence[object]] = []
    for line in [*chosen(lines, "equal"), *chosen(lines, "equal", cpu=True)]:
        where = line["provenance"]["device"]
        for name, value in line["largest_difference"].items():
            half, allowed = line["largest_difference_first_half"][name], line["tolerance"].get(name)
            cells = (f"{half:.1e}", f"{value:.1e}", "" if allowed is None else f"{allowed:.0e}")
            rows.append((f"{where}: losses, {name}", *cells))
        rows.append((f"{where}: gradient norms, in step", "", f"{line['largest_norm_difference']:.1e}", ""))
    return markdown(("largest difference", "first 100 steps", "200 steps", "allowed"), rows)


def _accuracies(lines: Lines) -> str:
    rows = [
        (
            f"{line['provenance']['device']}: {row['precision']}", row["steps"], row["length"],
            ", ".join(f"{value:.3f}" for value in row["accuracy"]),
        )
        for line in [*chosen(lines, "equal"), *chosen(lines, "equal", cpu=True)]
        for row in line.get("accuracies", ())
    ]  # fmt: skip
    return markdown(("trained in", "steps", "length", "exact, by seed"), rows)


def _memory(lines: Lines) -> str:
    rows = []
    for line in [*chosen(lines, "memory"), *chosen(lines, "memory", cpu=True)]:
        where = line["provenance"]["device"]
        for row in line["training"]:
            way = "recomputing" if row["checkpointing"] else "keeping all"
            cells = (row[key] for key in ("peak_bytes", "states_bytes", "beyond_states_bytes"))
            rows.append((f"{where}: training, {way}", row["loops"], *(f"{cell / 1e6:.0f}" for cell in cells)))
        for row in line["answering"]:
            peak = f"{row['peak_bytes'] / 1e6:.1f}"
            rows.append((f"{where}: answering", row["loops"], peak, "0", peak))
    return markdown(("what", "loop steps", "peak MB", "kept states MB", "beyond them MB"), rows)


def _exits(lines: Lines) -> str:
    rows = [
        (
            f"{line['provenance']['device']}: {row['stop']}", f"{row['mean_steps']:.1f}",
            f"{row['per_second']:,.0f}", f"{row['accuracy']:.3f}",
        )
        for line in [*chosen(lines, "infer"), *chosen(lines, "infer", cpu=True)]
        for row in line["exits"]
    ]  # fmt: skip
    return markdown(("stop", "mean steps", "answers per second", "exact"), rows)


def _lengths(lines: Lines) -> str:
    rows: list[Sequence[object]] = []
    for line in [*chosen(lines, "infer"), *chosen(lines, "infer", cpu=True)]:
        where = line["provenance"]["device"]
        both = {(row["heads"], row["length"]): row for row in line["lengths"]}
        for length in sorted({length for _, length in both}):
            cells = [both["global", length], both["banded", length]]
            rows.append(
                (f"{where}: {length}", cells[0]["row_size"], *(f"{cell['ms']:.3g}" for cell in cells))
            )
        rows.append(
            (f"{where}: exponent", "", *(f"{line['exponents'][h]:.2f}" for h in ("global", "banded")))
        )
    return markdown(("length", "row", "global heads, ms per row and step", "banded heads"), rows)


def _cpu(lines: Lines) -> str:
    rows = [
        (
            f"{spaced(line['task'])}, {line['ours']['precision']}", line["provenance"]["device"],
            f"{line['ours']['ms_per_seed'] / 1e3:.2f}", f"{line['peer']['ms_per_step'] / 1e3:.2f}",
            f"**{line['speedup']:.1f}**", f"{line['ours']['share_of_ceiling']:.0%}",
        )
        for line in chosen(lines, "train", cpu=True)
    ]  # fmt: skip
    return markdown(("step", "device", "ours, s", "peer, s", "times faster", "of the ceiling"), rows)


def _commands(lines: Lines) -> str:
    rows = []
    for line in lines:
        made = line["provenance"]
        commit = (made["commit"] or "unknown")[:7]
        rows.append(
            (f"`{made['command']}`", made["device"], made["date"], commit, made["torch"], made["seconds"])
        )
    return markdown(("command", "device", "date", "commit", "torch", "seconds"), rows)


TABLES: dict[str, Callable[[Lines], str]] = {
    "training": _training,
    "anatomy": _profile,
    "scale": _scale,
    "equal": _equal,
    "accuracies": _accuracies,
    "memory": _memory,
    "exits": _exits,
    "lengths": _lengths,
    "cpu": _cpu,
    "commands": _commands,
}
