"""`looped bench ladder`: a length sweep, up to which length a model is exact.

`looped.evaluation.length_sweep` says what L99 is. A cell of the README's table (`--table`):

    500 / 200     L99 / L999
    –             not even the first length
    ≥ 200 / 60    the sweep is not complete: L99 may turn out longer
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from looped.cli.arguments import Option, OwnPart, Positional
from looped.errors import InputError
from looped.evaluation.length_sweep import LEVELS, LengthDone, SweepRecord, SweepSettings, sweep_runs
from looped.evaluation.loading import Precision, parse_lengths
from looped.output import note, print_json, print_table, progress
from looped.registry import NamedParts, resolve
from looped.result_files import over_seeds, reach_text
from looped.tasks.distributions import UNIFORM


@dataclass(frozen=True, kw_only=True)
class LengthSweepArgs:
    """Find the longest lengths at which every seed of a model is exact, and what fails past them."""

    runs: Annotated[tuple[Path, ...], Positional("RUN…")] = ()
    """Folders of runs, or files such as runs/x/seed-0.safetensors; those that differ in seeds alone are one model."""
    lengths: str = ""
    """Such as 20,30,40 or 10:100:10; unless given 20,30,40,60,100,200,500,1000, the training and the paper's length."""
    samples: int = SweepSettings.samples
    """Problems per length and input distribution; what was measured with as many or more is not measured again."""
    families: Annotated[tuple[str, ...], Option("DISTRIBUTION…")] = SweepSettings.families
    """Input distributions besides uniform: all, or names such as zeros ones carry p=0.05."""
    stop: Annotated[tuple[str, ...], Option("RULE…")] = ()
    """Stopping rules; unless given, oracle and converged, and halt where the model has a halting head."""
    task: OwnPart = ()
    """A task of your own that the runs were trained on."""
    method: OwnPart = ()
    """A method of your own that the runs were trained by."""
    block: OwnPart = ()
    """A block of your own that the runs were trained with."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Precision = "fp32"
    """Of the weights and of matrix products; fp32, or the model's own where that is finer."""
    seed: int = 0
    """Of the test problems."""
    step_samples: int = SweepSettings.step_samples
    """Uniform problems per length that run on to 3·T, for drift and overrun; 0 leaves them out."""
    floor: float = SweepSettings.floor
    """Where no seed has this share right, longer lengths are not measured."""
    limit: Annotated[float, Option("SECONDS", default="(default: none)")] = float("inf")
    """Stop after about this many seconds; the same command again goes on."""
    out: Path = Path("results/ladder.json")
    """The result file; what is in it already for the same weights is not measured again."""
    table: tuple[Path, ...] = ()
    """Measure nothing: print the README's table from these files."""
    json: bool = False
    """Print what was measured, and where it comes from, as one JSON object."""


def run_bench_ladder(args: LengthSweepArgs) -> int:
    """Measure what is missing, then print everything once."""
    if args.table:
        if args.runs:
            raise InputError(f"--table measures nothing: leave out {args.runs[0]}, or --table")
        print(markdown_of(args.table))
        return 0
    record, ended = _measured(args)
    data = record.as_dict()
    if args.json:
        print_json(data)
    else:
        print_table(*reach_table(data["ladder"]))
        if data["steps"]:
            print()
            print_table(*steps_table(data["steps"]))
    if not ended:
        note("stopped at the limit; the same command again goes on")
    note(f"wrote {args.out}")
    return 0


def _measured(args: LengthSweepArgs) -> tuple[SweepRecord, bool]:
    if not args.limit >= 0:
        raise InputError(f"--limit must be 0 seconds or more, not {args.limit}")
    lengths = tuple(parse_lengths(args.lengths)) if args.lengths else ()
    given = NamedParts(task=args.task, method=args.method, block=args.block)
    stops = tuple(resolve("stopping rule", name) for name in args.stop)
    settings = SweepSettings(
        lengths, args.samples, args.families, stops, args.floor, args.step_samples, args.seed
    )
    with progress() as bar:

        def started(record: SweepRecord, keys: Sequence[str]) -> None:
            given.check()
            planned = [record.runs[key] for key in keys]
            bar.total = sum(len(run["lengths"]) * len(run["families"]) for run in planned)

        return sweep_runs(
            args.runs, settings, args.out, device=args.device, precision=args.precision, limit=args.limit,
            on_length=lambda done: bar.done(line(done)), on_start=started,
        )  # fmt: skip


def line(done: LengthDone) -> str:
    """`copy-long@1f0c9a3e  200 zeros   oracle 1.0000  converged .9990   3.2 s`: the worst seed under each rule."""
    worst: dict[str, float] = {}
    for row in done.rows:
        worst[row["stop"]] = min(row["accuracy"], worst.get(row["stop"], 1.0))
    exact = "  ".join(f"{stop} {accuracy:.4f}" for stop, accuracy in worst.items())
    took = "measured before" if done.seconds is None else f"{done.seconds:.1f} s"
    return f"{done.key}  {done.length:>4} {done.family:<9} {exact}  {took}"


# --- tables ------------------------------------------------------------------------------------------------

Json = dict[str, Any]
Table = tuple[Sequence[str], list[Sequence[object]]]


def reach_table(sweeps: Iterable[Json]) -> Table:
    """A line for each run, kind of inputs and rule."""
    columns = ["run", "seeds", "samples", "trained", "paper", "inputs", "stop", *LEVELS, "L99 ended by"]
    rows: list[Sequence[object]] = [
        [
            sweep["run"], _seeds(sweep), sweep["samples"], sweep["trained"], sweep["paper"], entry["inputs"],
            entry["stop"], *(reach_text(entry, level) for level in LEVELS), _end(entry["L99_ended_by"]),
        ]
        for sweep in sweeps
        for entry in sweep["reach"]
    ]  # fmt: skip
    return columns, rows


def steps_table(steps: Iterable[Json]) -> Table:
    """A line for each run and length: means over the seeds, the widest quantiles and the narrowest window of them."""
    groups: dict[tuple[str, int], list[Json]] = {}
    for each in steps:
        groups.setdefault((each["run"], each["length"]), []).append(each)
    extras = list(next(iter(groups.values()))[0]["overrun"]) if groups else []
    columns = ["run", "length", "T", "first right − T", "best − T", "99 % from … to"]
    lines = [_steps_line(key, group, extras) for key, group in groups.items()]
    return [*columns, *(f"at T{extra}" for extra in extras)], lines


def _steps_line(key: tuple[str, int], group: Sequence[Json], extras: Sequence[str]) -> Sequence[object]:
    drifts = [each["drift"] for each in group]
    ever = [drift for drift in drifts if drift["mean"] is not None]
    late, best, held = "–", [drift["best"] for drift in drifts], "–"
    if ever:
        mean = over_seeds([drift["mean"] for drift in ever]).mean
        late = f"{mean:+.1f} ({min(d['low'] for d in ever):+d} to {max(d['high'] for d in ever):+d})"
    if all(drift["from"] is not None for drift in drifts):
        held = f"{max(d['from'] for d in drifts):+d} … {min(d['to'] for d in drifts):+d}"
    overrun = [f"{over_seeds([each['overrun'][extra] for each in group]).mean:.4f}" for extra in extras]
    spread = f"{min(best):+d}" if min(best) == max(best) else f"{min(best):+d} to {max(best):+d}"
    return [*key, group[0]["needed"], late, spread, held, *overrun]


def markdown_of(files: Sequence[Path]) -> str:
    """The README's table from result files."""
    for file in files:
        if not file.exists():
            raise InputError(f"there is no file {file}")
    return markdown([sweep for file in files for sweep in SweepRecord(file).as_dict()["ladder"]])


def markdown(sweeps: Sequence[Json]) -> str:
    """The README's table: the training length, the paper's length and ours, for each rule and kind of inputs."""
    ways = list(dict.fromkeys((each["inputs"], each["stop"]) for sweep in sweeps for each in sweep["reach"]))
    heads = [stop if inputs == UNIFORM else f"{stop}, all inputs" for inputs, stop in ways]
    lines = [["task", "recipe", "seeds", "samples", "trained to", "the paper", *heads]]
    lines.append(["---"] * len(lines[0]))
    for sweep in sweeps:
        reach = {(each["inputs"], each["stop"]): each for each in sweep["reach"]}
        cells = {way: " / ".join(reach_text(each, level) for level in LEVELS) for way, each in reach.items()}
        about = [sweep["task"].replace("_", " "), sweep["recipe"], _seeds(sweep), sweep["samples"]]
        about += [sweep["trained"], sweep["paper"]]
        lines.append([*map(str, about), *(cells.get(way, "") for way in ways)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _seeds(sweep: Json) -> str:
    """`5`, or where each was chosen among replicas, `5, best of 8`."""
    return f"{len(sweep['seeds'])}" + (f", best of {sweep['replicas']}" if "replicas" in sweep else "")


def _end(end: Json | None) -> str:
    if end is None:
        return "the longest length"
    if end["accuracy"] is None:
        return f"{end['length']} not measured"
    where = "" if end["family"] == UNIFORM else f" on {end['family']}"
    return f"{end['accuracy']:.4f} at {end['length']}{where}, seed {end['seed']}"
