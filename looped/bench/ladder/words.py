"""What may be asked of a ladder, and doing it: shared by `looped bench ladder` and by machines with torch alone.

    python -m looped.bench ladder runs/copy-long runs/parity-long --limit 500 --out results/ladder.json

Prints a line a rung to stderr, then the tables (or with --json the measured objects) to stdout.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from looped import checkpoints, devices, provenance
from looped.bench.ladder import ALL, FLOOR, LENGTHS, SAMPLES, STEP_SAMPLES, table
from looped.bench.ladder.climb import Done, Settings, climb, enter
from looped.bench.ladder.contenders import load
from looped.bench.ladder.record import Record
from looped.errors import InputError
from looped.experiments import locks
from looped.experiments.plan import LARGEST_SEED, Precision, parse_lengths

OUT = Path("results/ladder.json")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What may be asked."""

    runs: tuple[Path, ...] = ()
    """Folders of runs, or files such as runs/x/seed-0.safetensors; those that differ in seeds alone are one model."""
    lengths: str = ""
    """Such as 20,30,40 or 10:100:10; unless given 20,30,40,60,100,200,500,1000, the training and the paper's length."""
    samples: int = SAMPLES
    """Problems a length and input family; rungs measured with as many or more are not measured again."""
    families: tuple[str, ...] = (ALL,)
    """Input families besides uniform: all, or names such as zeros ones carry p=0.05."""
    stop: tuple[str, ...] = ()
    """Stopping rules; unless given, oracle and converged, and halt where the model says when it is done."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """Of the weights and of matrix products; fp32, or the model's own where that is finer."""
    seed: int = 0
    """Of the test problems."""
    step_samples: int = STEP_SAMPLES
    """Uniform problems a length that run on to 3·T, for drift and overrun; 0 leaves them out."""
    floor: float = FLOOR
    """Where no seed has this share right, longer lengths are not measured."""
    limit: float = float("inf")
    """Leave off after about this many seconds; the same command again goes on."""
    out: Path = OUT
    """Where everything is kept; what is in it already for the same weights is not measured again."""
    table: tuple[Path, ...] = ()
    """Measure nothing: print the README's table from these files."""
    json: bool = False
    """Print what was measured, and where it comes from, as one JSON object."""


def settings_of(request: Request) -> Settings:
    """The settings a request stands for; raises if there are none such."""
    if not 0 <= request.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {request.seed}")
    if not request.limit >= 0:
        raise InputError(f"--limit must be 0 seconds or more, not {request.limit}")
    lengths = tuple(parse_lengths(request.lengths)) if request.lengths else ()
    return Settings(
        lengths, request.samples, request.families, request.stop, request.floor, request.step_samples,
        request.seed,
    )  # fmt: skip


def measure(
    request: Request,
    on_rung: Callable[[Done], None] = lambda done: None,
    on_start: Callable[[Record, Sequence[str]], None] = lambda record, keys: None,
) -> tuple[Record, bool]:
    """Climbs every ladder asked for; what was measured of them, and whether all came to their end."""
    settings = settings_of(request)
    start = time.monotonic()
    device = devices.pick(request.device)
    contenders = load(request.runs, device, request.precision, request.seed)
    keys = [each.key for each in contenders]

    def enough() -> bool:
        return time.monotonic() - start > request.limit

    enter(contenders, settings, Record(request.out))  # complains before anything is written, a lock included
    with _alone_at(request.out):
        record = Record(request.out)
        enter(contenders, settings, record)
        record.facts = record.facts or dict(provenance.facts(device))
        record.write()
        on_start(record, keys)
        ended = climb(contenders, settings, record, on_rung=on_rung, enough=enough)
    return record.only(keys), ended


@contextlib.contextmanager
def _alone_at(out: Path) -> Iterator[None]:
    """Nobody else writes this file meanwhile: it is written whole, and what two had measured one would lose."""
    with checkpoints.disk(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        lock = locks.hold(out.with_name(f".{out.name}.lock"), patience_s=0)
    if lock is None:
        raise InputError(
            f"another ladder is being written to {out}: wait for it, or name another file with --out"
        )
    with lock:
        yield


def show_table(request: Request) -> str:
    """The README's table from files of ladders."""
    if request.runs:
        raise InputError(f"--table measures nothing: leave out {request.runs[0]}, or --table")
    for file in request.table:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
    return table.markdown([ladder for file in request.table for ladder in Record(file).as_dict()["ladder"]])


def line(done: Done) -> str:
    """`copy-long@1f0c9a3e  200 zeros   oracle 1.0000  converged .9990   3.2 s`: the worst seed under each rule."""
    worst: dict[str, float] = {}
    for row in done.rows:
        worst[row["stop"]] = min(row["accuracy"], worst.get(row["stop"], 1.0))
    exact = "  ".join(f"{stop} {accuracy:.4f}" for stop, accuracy in worst.items())
    took = "measured before" if done.seconds is None else f"{done.seconds:.1f} s"
    return f"{done.key}  {done.length:>4} {done.family:<9} {exact}  {took}"


# --- a machine with torch and little else ------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Measures as the words say; 2 is bad input, as in `looped bench ladder`."""
    request = Request(**_arguments(words))
    try:
        if request.table:
            print(show_table(request))
            return 0
        record, ended = measure(request, on_rung=lambda done: _say(line(done)))
    except InputError as error:
        _say(f"looped: {' '.join(str(error).split())}")
        return 2
    except KeyboardInterrupt:
        _say("looped: interrupted; the same command again goes on")
        return 130
    if not ended:
        _say("left off at the limit; the same command again goes on")
    data = record.as_dict()
    if request.json:
        print(json.dumps(data, allow_nan=False))
        return 0
    for columns, rows in (table.reach_table(data["ladder"]), table.steps_table(data["steps"])):
        for row in [columns, *rows]:
            print(*row, sep="\t")
    return 0


def _arguments(words: Sequence[str] | None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        prog="python -m looped.bench ladder", description="How far models are exact."
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument(
        "--lengths", default="", help=",".join(map(str, LENGTHS)) + " and two more unless given"
    )
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--families", nargs="+", default=[ALL])
    parser.add_argument("--stop", nargs="+", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--step-samples", type=int, default=STEP_SAMPLES, help="for drift and overrun")
    parser.add_argument("--seed", type=int, default=0, help="of the test problems")
    parser.add_argument(
        "--floor", type=float, default=FLOOR, help="give up where no seed has this share right"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="leave off after about these seconds"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--table", nargs="+", type=Path, default=[], help="print the README's table from files"
    )
    parser.add_argument("--json", action="store_true")
    args = vars(parser.parse_args(words))
    return {name: tuple(value) if isinstance(value, list) else value for name, value in args.items()}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
