"""`looped demo`: train two small models on short inputs, ask them long ones, draw the result; a minute or two on a CPU.

Two models of equal size learn to copy bit strings of up to ten symbols: one applies its layers as often as the string
is long, the other once, as an ordinary Transformer does. Both master these lengths. Then both copy longer strings, up
to twenty times as long, which only the first one can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch

from looped import checkpoints, devices, tasks
from looped.cli.arguments import Option
from looped.cli.train import listener
from looped.errors import InputError
from looped.evaluation import loading
from looped.evaluation.measure import Row, check_samples, measure
from looped.output import note, print_json, print_table, progress
from looped.rasp import lint, programs
from looped.rasp.trace import trace
from looped.serial import to_json
from looped.training import recipes
from looped.training.config import TrainConfig
from looped.training.interrupt import Interrupt
from looped.training.trainer import Cadence, Summary, train

TASK, SEED = "copy", 0
LENGTHS = (5, 10, 11, 12, 15, 20, 50, 100)  # of the exam
FARTHEST = 200  # where a problem costs four times the last of these, and a quarter of them is asked
LAYERS = 2  # with a single one, a model of fixed depth does not learn even the training lengths
MORE = 3  # times as many gradient steps for the model of fixed depth: it needs them, and they are cheap
SHORTER: dict[str, Any] = {"steps": 500, "interval": 30, "noise": 0.2}  # than quick: copy is the easiest task
ILLUSTRATED = (("copy", "1 0"), ("parity", "1 1"), ("addition", "1 0 + 1 1"))  # the paper's figure, n = 2


@dataclass(frozen=True)
class Contestant:
    """One of the two models."""

    name: str  # of its folder
    what: str  # in words
    config: TrainConfig


def contestants(steps: int = 0) -> tuple[Contestant, Contestant]:
    """The looped model and the one of fixed depth; `steps` gradient steps of the looped one, or 500.

    The model of fixed depth has the same layers, and what an ordinary Transformer has: heads that see everything
    before them, and rotary positions. Without both it does not learn even the training lengths.
    """
    looped = recipes.make(TASK, "fop-loop-adaptive", "quick", (SEED,))
    looped = replace(looped, model=replace(looped.model, layers=LAYERS), **SHORTER)
    looped = replace(looped, steps=steps or looped.steps)
    ordinary = replace(looped.model, bands=(), positions="rotary")
    fixed = replace(looped, method="fop", model=ordinary, steps=MORE * looped.steps, noise=0.0)
    return Contestant("looped", "looped, n passes", looped), Contestant("fixed", "ordinary, one pass", fixed)


def race(folder: Path, pair: Sequence[Contestant], seconds: float, stop: Callable[[], bool]) -> list[Summary]:
    """Train one after the other, in so many seconds altogether; the same call goes on where it was stopped."""
    summaries: list[Summary] = []
    end = time.monotonic() + seconds
    for i, each in enumerate(pair):
        summary = train(
            each.config, folder / each.name, "cpu", stop=stop, listeners=[listener()],
            time_limit_s=max((end - time.monotonic()) / (len(pair) - i), 1.0),
            cadence=Cadence(evaluate_steps=each.config.steps),  # at the end
        )  # fmt: skip
        summaries.append(summary)
    return summaries


def exam(folder: Path, pair: Sequence[Contestant], samples: int) -> list[Row]:
    """How often each is exactly right at the lengths of the exam."""
    rows: list[Row] = []
    with progress(len(pair) * (len(LENGTHS) + 1), "copying") as bar:
        for each in pair:
            subject = loading.load(folder / each.name, torch.device("cpu")).subject
            for lengths, count in ((LENGTHS, samples), ((FARTHEST,), -(-samples // 4))):
                rows += measure(subject, lengths, count, seed=1, on_progress=lambda _: bar.done("copying"))
    return rows


def check_programs(longest: int) -> list[str]:
    """The tasks, each of whose n-RASP-L programs is legal and gives the task's answers up to a length; else raises."""
    for name, task in tasks.TASKS.items():
        program = programs.get(name)
        faults = lint.check_program(program)
        assert not faults, f"{name}: {faults[0]}"
        generator = torch.Generator().manual_seed(SEED)
        for n in (n for n in (1, 2, 3, 5, 10, 20, 50, 100, 200) if n <= longest):
            problem = task.sample(torch.tensor([n]), generator, max_length=n)
            question = task.vocab.decode(problem.question[0, : int(problem.question_length)].tolist())
            answer = trace(program, program.row(question)).answer
            assert answer == task.solve(question), f"{name} is wrong on {task.format_question(question)}"
    return list(tasks.TASKS)


def illustrations() -> list[tuple[str, list[str], dict[str, list[list[str]]]]]:
    """The paper's three programs at work on two symbols, as `figures.programs` draws them."""
    drawn = []
    for name, question in ILLUSTRATED:
        program = programs.get(name)
        run = trace(program, program.row(question.split()))
        drawn.append((name, program.vocab.decode(run.row.tolist()), {v: run.grid(v) for v in run.variables}))
    return drawn


@dataclass(frozen=True)
class DemoArgs:
    """Train on short inputs, hold on long ones, draw it: a minute or two on a CPU."""

    out: Path = Path("demo")
    """The folder for the pictures and the two runs; the same command again goes on from there."""
    seconds: Annotated[float, Option("SECONDS")] = 90.0
    """The most that training may take, for both models together."""
    samples: int = 200
    """Problems per length in the exam at the end; a quarter of them at the longest."""
    steps: int = 0
    """Gradient steps of the looped model, 500 where 0 is given; the other takes three times as many."""
    json: bool = False
    """Print what came out as one JSON object."""


def run(args: DemoArgs) -> int:
    """Programs, training, exam, picture."""
    if not args.seconds > 0 or args.samples < 1 or args.steps < 0:
        raise InputError("--seconds and --samples must be above 0, and --steps must not be below it")
    check_samples(args.samples)
    from looped import figures  # matplotlib takes a second to load

    if args.out.exists() and not args.out.is_dir():
        raise InputError(f"{args.out} is a file, not a folder for the demo")
    torch.set_num_threads(1)  # models this small lose by a second thread, and tenfold on a busy machine
    args.out.mkdir(parents=True, exist_ok=True)
    solved = check_programs(200)
    figures.save(figures.programs(illustrations()), args.out / "programs.svg")
    note(f"The n-RASP-L programs of {', '.join(solved)}: all legal, all right at lengths up to 200.")

    pair = contestants(args.steps)
    trained = pair[0].config.max_length
    note(f"Two models of equal size learn to copy up to {trained} bits, one after the other:")
    with Interrupt() as asked:
        summaries = race(args.out, pair, args.seconds, asked)
    if asked.status:
        note("stopped; the same command goes on from there")
        return asked.status
    for summary in summaries:
        if summary.ending == "time limit":
            at = f"{summary.step} of {summary.steps} steps"
            note(f"time was up after {at}; the same command goes on from there")
    note(f"Exam, {args.samples} fresh problems per length:")
    measured = exam(args.out, pair, args.samples)
    rows = [row.as_dict() for row in measured]

    names = {each.config.method: each.what for each in pair}
    drawn = [row | {"method": names[str(row["method"])]} for row in rows]
    figure = figures.accuracy_by_length(drawn, {TASK: trained}, doubling=True)
    for suffix in (".png", ".svg"):
        figures.save(figure, args.out / f"demo{suffix}")
    origin = [{"run": each.name, "config": to_json(each.config)} for each in pair]
    result = {"provenance": {**devices.facts("cpu"), "runs": origin}, "rows": rows}
    checkpoints.write_json(args.out / "results.json", result)
    if args.json:
        seconds = {each.name: round(s.seconds, 1) for each, s in zip(pair, summaries, strict=True)}
        print_json({"rows": rows, "seconds": seconds, "out": str(args.out)})
    _conclude(args, pair, {(row.method, row.length): row.accuracy for row in measured})
    return 0


def _conclude(args: DemoArgs, pair: Sequence[Contestant], found: dict[tuple[str, int], float]) -> None:
    """What was seen, length against model, and what to do next."""
    trained, out = pair[0].config.max_length, args.out
    table = []
    for n in sorted({length for _, length in found}):
        times = "trained to here" if n == trained else f"{n // trained}×" if n % trained == 0 else ""
        table.append([n, *(f"{found[each.config.method, n]:.4f}" for each in pair), times])
    if not args.json:
        print_table(["length", *(each.what for each in pair), ""], table, title="exact match")
    ours, other = (found[each.config.method, 10 * trained] for each in pair)
    note(f"wrote {out / 'demo.png'}, {out / 'demo.svg'}, {out / 'programs.svg'} and {out / 'results.json'}")
    note(
        f"At ten times the training length the looped model is exactly right in {ours:.1%} of the cases, the ordinary "
        f"one of the same size in {other:.1%}.\n"
        "Next: `looped trace addition 1011+0110` shows a program at work; `looped train parity --recipe quick` "
        "trains a model of another task that holds as far."
    )
