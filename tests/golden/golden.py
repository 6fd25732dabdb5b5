"""Golden cases: what the commands and the shipped models answer, recorded so that a refactoring cannot change it.

A case runs one command in this process, inside a temporary working folder that the cases share in their order:
`train` writes the run that `evaluate`, `status` and others read. Recorded are the exit status, every JSON line of
stdout and, for bad input, the sentence on stderr. Values that legitimately differ between two machines or moments
are masked. `python -m tests.golden.make` writes the files again.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import looped
from looped.cli import COMMANDS, main

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ARCHIVE = "results/archive/first-start"  # a complete set of the figures' runs
FIGURES = ("main", "ablation", "stopping", "rules")
FILES = ("answers", "commands", "errors", "help", "figures", "slow")

MASKED = {
    "commit", "config", "date", "device", "devices", "looped", "measured_by", "seconds", "steps_per_second",
    "threads", "torch", "version", "wall_seconds",
}  # fmt: skip
DIGITS = 3  # of a real number that is compared

TINY = (
    "--steps", "2", "--interval", "1", "--width", "16", "--heads", "2", "--bands", "2,2", "--layers", "1",
    "--max-length", "3", "--batch", "4",
)  # fmt: skip
CPU = ("--device", "cpu")


@dataclass(frozen=True)
class Case:
    """One command, and how much of its output is compared."""

    name: str
    words: tuple[str, ...]
    shape: bool = False  # compare the keys and types alone: its numbers are measured times or fresh weights
    stdin: str = ""


def case(line: str, *more: str, name: str = "", shape: bool = False, stdin: str = "") -> Case:
    """`case("solve parity 1101 --json")`."""
    return Case(name or line, (*line.split(), *more), shape, stdin)


# --- the working folder ------------------------------------------------------------------------------------

LEGAL = """
from looped.rasp.library import shift_right


def copy_step(x):
    return shift_right(x, 1, 0)
"""
ILLEGAL = """
import numpy as np
from looped.rasp.core import indices


def step(x):
    return indices(x) + 2
"""
SWEEP = {
    "tasks": ["parity"],
    "recipes": ["quick"],
    "seeds": [0],
    "set": {
        "steps": 2, "interval": 1, "max_length": 3, "batch": 4,
        "model.width": 16, "model.heads": 2, "model.bands": [2, 2], "model.layers": 1,
    },
    "measure": {"lengths": "2:3", "samples": 4},
}  # fmt: skip


@contextlib.contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """The folder the cases run in, with the small files they read."""
    (folder / "legal.py").write_text(LEGAL, encoding="utf-8")
    (folder / "illegal.py").write_text(ILLEGAL, encoding="utf-8")
    (folder / "sweep.json").write_text(json.dumps(SWEEP), encoding="utf-8")
    (folder / "broken.json").write_text('{"tasks": ["parity"', encoding="utf-8")
    (folder / "questions.txt").write_text("1101\n\n10\n", encoding="utf-8")
    for name in ("results", ARCHIVE):
        (folder / name).mkdir(parents=True)
        for file in (ROOT / name).glob("*.json"):
            (folder / name / file.name).symlink_to(file)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


# --- the cases ---------------------------------------------------------------------------------------------

# inside the training length, and past it
QUESTIONS = {
    "parity": ("1", "1101", "10110111010110111011010111010011"),
    "copy": ("0", "1011", "110100111010010110100101101001011010"),
    "addition": ("1+1", "1011+0110", "110100111010010110100101+101001011010010110100101"),
    "binary_sum": ("1", "10110", "110100111010010110100101"),
    "multiplication": ("1*1", "11*110", "11*10110101101011"),
    "unique_set": ("1", "1 4 2 2 4 3", "1 4 2 2 4 3 7 9 11 4 2 25 13 14 9 30 31 1 6 5 4 8 8 17 33 2"),
    "even_pairs": ("1", "0111", "110100111010010110100101"),
    "cycle_navigation": ("R", "RLSLL", "RLSRRSLLLRSRRRSLLSRLRRLSRRLL"),
    "reverse_string": ("1", "0111", "110100111010010110100101001101011010"),
    "missing_duplicate": ("011_11-", "01100_10", "11010011101001011101001_10100101"),
    "duplicate_string": ("1", "0111", "11010011101001011010010100110101"),
}
RULES = ("oracle", "confidence", "threshold=0.001", "converged=3", "settled", "halt")


COMMAND_CASES = (
    case("tasks --json"),
    case("sample parity --length 5 --count 3 --seed 1 --json"),
    case("sample copy --length 4 --count 2 --json"),
    case("sample addition --length 3 --count 2 --family carry --json"),
    case("sample multiplication --length 3 --count 2 --json"),
    case("sample unique_set --length 5 --count 2 --seed 9 --json"),
    case("trace copy 10 --json"),
    case("trace parity 101 --model compiled --device cpu --json"),
    case("trace copy 10 --model copy-long --device cpu --json"),
    case("check legal.py --json"),
    case("check illegal.py --json"),
    case("solve parity 1101 --device cpu --json"),
    case("solve copy 1011 --device cpu --show-steps --json"),
    case("solve addition 1011+0110 --model compiled --device cpu --json"),
    case("solve parity --file questions.txt --device cpu --json"),
    case("solve copy --device cpu --json", name="solve copy from stdin", stdin="101\n0\n"),
    *(case(f"solve parity 11011 --stop {rule} --device cpu --json") for rule in RULES),
    case("compile parity --json"),
    case("compile copy --out compiled.safetensors --json"),
    case("solve copy 110 --model compiled.safetensors --device cpu --json"),
    case("compare copy --model compiled --length 3 --samples 8 --no-controls --device cpu --json"),
    case("compare copy --model copy-long --length 3 --samples 8 --device cpu --json", shape=True),
    case("train parity --recipe quick --seeds 0,1 --out runs/a --json", *TINY, *CPU, name="train", shape=True),
    case("train parity --recipe quick --seeds 0,1 --out runs/a --json", *TINY, *CPU, name="train again", shape=True),
    case("evaluate runs/a --lengths 2,3 --samples 4 --stop oracle converged --json", *CPU, shape=True),
    case("evaluate parity-long copy-long --lengths 5,30 --samples 8 --family uniform zeros --json", *CPU),
    case("evaluate parity-long --lengths 5,30 --samples 8 --out parity.json --json", *CPU),
    case("evaluate runs/a/seed-1.safetensors --lengths 2 --samples 4 --json", *CPU, shape=True),
    case("discover parity-long --lengths 3,25 --samples 8 --out halting.json --json", *CPU),
    case("figure parity.json --out parity.svg --json"),
    case("figure halting.json --out halting.svg --json"),
    case("figure runs/a/metrics.jsonl --out training.svg --json"),
    case("figure results/ladder-copy.json results/ladder-parity.json --out reach.svg --json"),
    case("bench ladder runs/a --lengths 2,3 --samples 4 --families zeros --step-samples 2 --floor 0 --json",
         *CPU, "--out", "sweep-a.json", name="bench ladder", shape=True),
    case("bench ladder --table results/ladder-copy.json results/ladder-parity.json"),
    case("status runs --json", shape=True),
    case("cancel runs --wait 0 --json", shape=True),
    case("sweep sweep.json --dry-run --json", *CPU),
    case("reproduce main --dry-run --tasks parity,copy --results none --json"),
    case("reproduce halting --dry-run --tasks parity --methods ut,ponder --results none --json"),
    *(case(f"reproduce {name} --draw --results {ARCHIVE} --json") for name in FIGURES),
    case("cost copy --json"),
    case("cost parity --recipe long --device tflops=50 --seeds 0 --set max_length=100 --json"),
    case("bench rasp --json", shape=True),
    case("bench train --task parity --peer-steps 0 --steps 1 --seeds 1 --length 3 --width 64 --batch 2 --json",
         *CPU, name="bench train", shape=True),
    case("bench scale --seeds 2 --steps 1 --length 3 --width 64 --batch 2 --json", *CPU,
         name="bench scale", shape=True),
    case("--version", shape=True),
)  # fmt: skip

SLOW_CASES = (
    case("sweep sweep.json --workers 1 --json", *CPU, shape=True),
    case("status runs/sweep --json", shape=True),
    case("sweep sweep.json --json", *CPU, name="sweep again", shape=True),
    case("demo --steps 2 --seconds 9 --samples 2 --json", shape=True),
    case("bench equal --steps 2 --train-steps 2 --samples 4 --length 3 --width 64 --batch 2 --json", *CPU,
         name="bench equal", shape=True),
    case("bench memory --steps 10 --length 4 --width 64 --batch 2 --json", *CPU, name="bench memory", shape=True),
    case("bench infer --train-steps 2 --samples 4 --length 32 --width 64 --batch 2 --json", *CPU,
         name="bench infer", shape=True),
    case("bench solve --task parity --samples 4 --length 4 --json", *CPU, name="bench solve", shape=True),
    case("bench survive --seeds 1 --train-steps 1 --samples 2 --length 2 --batch 2 --json", *CPU,
         name="bench survive", shape=True),
)  # fmt: skip

ERROR_CASES = (
    case("xyzzy"),
    case("sampel copy"),
    case("--verison"),
    case("solve"),
    case("solve parity 12"),
    case("solve nothing 1"),
    case("solve parity 1 --model nowhere"),
    case("solve parity 1 --model copy-long"),
    case("solve parity 1 --stop never"),
    case("solve parity 1 2"),
    case("solve parity 1 --lenght 3"),
    case("solve parity 1 --device abacus"),
    case("solve parity 1 --file questions.txt"),
    case("sample copy"),
    case("sample copy --length x"),
    case("sample copy --length 0"),
    case("sample copy --length 3 --family carry"),
    case("trace nothing 1"),
    case("check nowhere.py"),
    case("compile nothing"),
    case("compile parity --out nowhere/a.safetensors"),
    case("compare parity --samples 1"),
    case("train nothing"),
    case("train parity --method none"),
    case("train parity --recipe slow"),
    case("train parity --set nothing=1"),
    case("train parity --seeds a"),
    case("train parity --save-every 0"),
    case("train parity --time-limit soon"),
    case("evaluate"),
    case("evaluate nowhere"),
    case("evaluate parity-long --lengths 5:1"),
    case("evaluate parity-long --stop never --lengths 2 --samples 2"),
    case("evaluate parity-long --precision fp8"),
    case("discover nowhere"),
    case("figure nowhere.json --out a.svg"),
    case("figure results/ladder-copy.json"),
    case("figure results/ladder-copy.json --out a.gif"),
    case("figure broken.json --out a.svg"),
    case("figure sweep.json --kind pie --out a.svg"),
    case("reproduce nothing"),
    case("reproduce main --engine cloud"),
    case("reproduce main --methods nothing"),
    case("reproduce main --draw --dry-run"),
    case("sweep nowhere.json"),
    case("sweep broken.json"),
    case("sweep legal.py"),
    case("sweep sweep.json --address 1 --dry-run"),
    case("status nowhere"),
    case("status results"),
    case("cancel nowhere"),
    case("cancel runs --wait -1"),
    case("cost copy --device abacus"),
    case("cost nothing"),
    case("explore --port 99999"),
    case("explore --model nowhere"),
    case("bench"),
    case("bench nothing"),
    case("bench rasp --seeds 3"),
    case("bench train --steps 0"),
    case("bench ladder"),
    case("bench ladder nowhere"),
    case("bench ladder --table nowhere.json"),
    case("demo --seconds 0"),
)


# --- running and masking -----------------------------------------------------------------------------------


def run(each: Case, folder: Path) -> dict[str, Any]:
    """The exit status and the masked output of one case, as JSON."""
    out, err = io.StringIO(), io.StringIO()
    stdin = contextlib.ExitStack()
    with stdin, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if each.stdin:
            stdin.enter_context(_stdin(each.stdin))
        status = main(list(each.words))
    found: dict[str, Any] = {"status": status}
    printed = [_value(line, each, folder) for line in out.getvalue().splitlines()]
    if printed:
        found["stdout"] = printed
    if status == 2:
        found["stderr"] = _text(err.getvalue(), folder)
    return found


@contextlib.contextmanager
def _stdin(text: str) -> Iterator[None]:
    import sys

    before, sys.stdin = sys.stdin, io.StringIO(text)
    try:
        yield
    finally:
        sys.stdin = before


def _value(line: str, each: Case, folder: Path) -> Any:
    try:
        value = json.loads(line)
    except ValueError:
        return "…" if each.shape else _text(line, folder)
    return _masked(value, each.shape, folder)


def _masked(value: Any, shape: bool, folder: Path) -> Any:
    if isinstance(value, dict):
        return {
            key: "…"
            if key in MASKED and not (key == "seconds" and isinstance(item, dict))
            else _masked(item, shape, folder)
            for key, item in value.items()
        }
    if isinstance(value, list):
        items = [_masked(item, shape, folder) for item in value]
        return [item for i, item in enumerate(items) if not shape or item not in items[:i]]
    if isinstance(value, bool) or value is None:
        return "true or false" if shape and value is not None else value
    if isinstance(value, int | float):
        return "number" if shape else _rounded(value) if isinstance(value, float) else value
    return _text(value, folder)


def _rounded(value: float) -> float:
    """Three digits: of the whole number, or behind the point where it is small."""
    return float(f"{value:.{DIGITS}g}") if abs(value) >= 1 else round(value, DIGITS)


def _text(text: str, folder: Path) -> str:
    for path, name in ((folder.resolve(), "TMP"), (folder, "TMP"), (ROOT, "ROOT")):
        text = text.replace(str(path), name)
    text = re.sub(r"@[0-9a-f]{8}", "@checksum", text)
    text = re.sub(r"TrainConfig has task, .*", "TrainConfig has …", text)
    return re.sub(r"\b[0-9a-f]{40,64}\b", "checksum", text)


# --- what the files hold -----------------------------------------------------------------------------------


def answers() -> dict[str, Any]:
    """What every shipped model answers, by model and question: the answer, its steps, the rule that stopped it."""
    found: dict[str, Any] = {}
    for card in looped.zoo():
        solved = looped.load(card.name).solve(QUESTIONS[card.task])
        found[card.name] = {each.question: [each.answer, each.steps, each.stop] for each in solved}
    return found


def figures(folder: Path) -> dict[str, str]:
    """A checksum of every drawing that the cases of the commands have made."""
    drawn = ["parity.svg", "halting.svg", "reach.svg"]
    drawn += [f"{ARCHIVE}/figures/{name}.svg" for name in FIGURES]
    return {name: checksum((folder / name).read_text(encoding="utf-8")) for name in drawn}


def checksum(svg: str) -> str:
    """Of a drawing without the numbers of its glyphs, which differ between versions of one font."""
    return hashlib.sha256(re.sub(r"(DejaVuSans(?:-[A-Z]\w*)?)-[0-9a-f]+", r"\1", svg).encode()).hexdigest()


def helps() -> dict[str, Any]:
    """The exit status of every command's `--help` and the options it names."""
    found: dict[str, Any] = {}
    for name in (*COMMANDS, "bench ladder"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = main([*name.split(), "--help"])
        options = re.findall(r"^[│ ]*(?:-h, )?(--[a-z][a-z-]*)\b", out.getvalue(), flags=re.M)
        found[name] = {"status": status, "options": sorted(set(options) - {"--help"})}
    return found


def record(folder: Path) -> dict[str, Any]:
    """Everything, file by file."""
    with workplace(folder):
        found: dict[str, Any] = {"commands": {each.name: run(each, folder) for each in COMMAND_CASES}}
        found["figures"] = figures(folder)
        found["errors"] = {each.name: run(each, folder) for each in ERROR_CASES}
        shutil.rmtree(folder / "runs")
        found["slow"] = {each.name: run(each, folder) for each in SLOW_CASES}
    for name in ("commands", "slow"):
        bad = {each: row["stderr"] for each, row in found[name].items() if row["status"] == 2}
        assert not bad, f"these were meant to succeed: {bad}"
    return {**found, "answers": answers(), "help": helps()}
