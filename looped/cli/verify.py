"""What a model is worth: `looped verify` measures it by the leaderboard's protocol, `looped certify` at every length.

$ looped verify parity-paper
length  questions  right   worst distribution
    20        144  1.0000  uniform 1.0000
   …
parity-paper: exact to 40 on every input distribution; 71 of 71 edge cases right; fewer than 90% …
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from looped import checkpoints, devices, registry, tasks
from looped.cli.arguments import Option, OwnPart, Positional
from looped.errors import InputError
from looped.evaluation.certify import Certificate, LocalRule, certify
from looped.evaluation.loading import parse_lengths
from looped.evaluation.measure import check_samples
from looped.output import note, print_json, print_table
from looped.registry import NamedParts
from looped.solve import load
from looped.solve.solver import Solver
from looped.solve.verify import SAMPLES, Entrant, of_adapter, of_solver, verify
from looped.tasks.base import Task

QUICK = 16  # questions of each length and distribution where --lengths is given alone


@dataclass(frozen=True)
class VerifyArgs:
    """Measure a model by the leaderboard's protocol: fixed questions of 20 to 1,000 symbols from every input
    distribution, exact match, edge cases. Takes one to ten minutes on two cores; a model that fails takes less."""

    model: Annotated[str, Positional("MODEL")]
    """A shipped model's name, TASK-compiled, a run's folder (its first seed), a checkpoint's file, a published model
    (its folder, or hub:OWNER/NAME), or FILE.py:Name, a callable from a question's tokens to the answer's."""
    task: Annotated[str | None, Option("TASK", default="")] = None
    """What is asked; FILE.py:Name of a model needs it, other models have their own."""
    name: Annotated[str | None, Option("NAME", default="")] = None
    """The model's name in the row; by default as it was given."""
    lengths: Annotated[str, Option("LENGTHS", default="")] = ""
    """Other lengths than the protocol's, for a quick try: 20,40; such a row is not listed."""
    samples: Annotated[int | None, Option("N", default="")] = None
    """Questions of each length and input distribution; such a row is not listed."""
    out: Annotated[Path | None, Option("FILE.json", default="")] = None
    """Also write the row, and how it was measured, to this file."""
    method: OwnPart = ()
    """A method of your own that the model was trained by."""
    block: OwnPart = ()
    """A block of your own that the model was trained with."""
    json: bool = False
    """Print the row, and how it was measured, as one JSON object."""


def run_verify(args: VerifyArgs) -> int:
    """Measure on the CPU and print."""
    plan = _plan(args)
    if args.out is not None:
        checkpoints.check_writable(args.out)
    given = NamedParts(method=args.method, block=args.block)
    entrant = _entrant(args)
    given.check()
    began = time.monotonic()
    lines: list[tuple[object, ...]] = []

    def on_length(length: int, right: dict[str, int], count: int) -> None:
        worst = min(right, key=lambda family: right[family])
        share = sum(right.values()) / (count * len(right))
        lines.append((length, count * len(right), f"{share:.4f}", f"{worst} {right[worst] / count:.4f}"))
        note(f"length {length}: {share:.4f} right after {time.monotonic() - began:.0f} s")

    row = verify(entrant, plan, on_length)
    measured = {"seconds": round(time.monotonic() - began, 1), **devices.facts("cpu")}
    told = {"row": row, "measured": measured}
    if args.out is not None:
        checkpoints.write_json(args.out, told)
    if args.json:
        print_json(told)
        return 0
    print_table(("length", "questions", "right", "worst distribution"), lines)
    print(_sentence(row))
    return 0


def _plan(args: VerifyArgs) -> dict[int, int] | None:
    """Questions by length where they are not the protocol's."""
    if not args.lengths and args.samples is None:
        return None
    if args.samples is not None:
        check_samples(args.samples)
    lengths = parse_lengths(args.lengths) if args.lengths else list(SAMPLES)
    return dict.fromkeys(lengths, args.samples or QUICK)


def _entrant(args: VerifyArgs) -> Entrant:
    file, colon, _ = args.model.rpartition(":")
    if not colon or not file.endswith(".py"):
        solver = _solver(args.model, _task(args.task))
        return of_solver(solver, args.name or solver.name)
    if (task := _task(args.task)) is None:
        raise InputError(f"{args.model} is not ours, so name what it is asked: --task TASK")
    adapter = registry.find("model", registry.resolve("model", args.model))
    return of_adapter(adapter, Path(file), args.name or args.model, task)


def _task(name: str | None) -> Task | None:
    return None if name is None else tasks.get(registry.resolve("task", name))


def _solver(model: str, task: Task | None) -> Solver:
    solver = load(model)
    if task is not None:
        solver.check_task(task, model)
    return solver


def _sentence(row: dict[str, Any]) -> str:
    edges, held = row["edge_cases"], row["exact_to"]
    exact = f"exact to {held} on every input distribution" if held else "not exact at any length"
    ended = f"; ended because {row['ended']}" if row["ended"] else ""
    listed = "" if row["listed"] else f"; not for the leaderboard: {row['not_listed']}"
    return f"{row['model']}: {exact}; {edges['right']} of {edges['of']} edge cases right{ended}{listed}"


LONGEST = 4000  # question tokens of `--check`
LOOKED = (20, 40, 80, 160)  # lengths at which a break is looked for among questions
QUESTIONS = 16  # random ones of each


@dataclass(frozen=True)
class CertifyArgs:
    """Show that a model is right at every length, or name the first neighbourhood that breaks it. For models of one
    layer whose heads all see one position back, such as parity-long and copy-long; takes a minute."""

    model: Annotated[str, Positional("MODEL")]
    """A shipped model's name, a run's folder, a checkpoint's file or a published model."""
    task: Annotated[str | None, Option("TASK", default="")] = None
    """The task, where it is one of your own: FILE.py:Name."""
    method: OwnPart = ()
    """A method of your own that the model was trained by."""
    window: int = 3
    """Tokens that are told apart at each end of what has reached a position, 1 to 6."""
    radius: float = 1.0
    """Of the clusters that states fall into."""
    growth: int = 200
    """Tokens by which words grow while their states are followed."""
    check: Annotated[int, Option("N", default="")] = 0
    """Also answer N random questions of up to 4,000 tokens, which takes minutes each."""
    json: bool = False
    """Print one JSON object."""


def run_certify(args: CertifyArgs) -> int:
    """Certify on the CPU and print; 1 where something breaks."""
    if not (1 <= args.window <= 6 and args.radius > 0 and args.growth >= 1 and args.check >= 0):
        bounds = "--window must be from 1 to 6, --radius above 0, --growth at least 1"
        raise InputError(f"{bounds}, --check at least 0")
    given = NamedParts(method=args.method)
    solver = _solver(args.model, _task(args.task))
    given.check()
    if solver.method.prediction != "fop" or not solver.method.adaptive:
        raise InputError(f"{args.model} was trained by {solver.method.name}, which does not loop n times")
    if int(solver.loops.first(torch.tensor(7), torch.tensor(7))) != 7:
        often = "more or less than once for every token of a question"
        raise InputError(f"{args.model} was trained to loop {often}")
    found = certify(LocalRule(solver.net), solver.task, args.window, args.radius, args.growth)
    wrong, asked = _brute_force(solver, found, args.check)
    broken = None
    if found.broken is not None:
        word, why = found.broken
        broken = {"neighbourhood": found.windows.shown(word, solver.task), "why": why}
    if args.json:
        numbers = {key: value for key, value in asdict(found).items() if key not in ("windows", "broken")}
        safety = None if math.isnan(found.safety) else found.safety
        print_json({
            "model": solver.name, "task": solver.task.name, "certified": found.broken is None, **numbers,
            "safety": safety, "window": found.windows.k, "memory": found.windows.memory, "broken": broken,
            "asked": asked, "wrong": wrong,
        })  # fmt: skip
    else:
        _print(solver, found, broken, args.growth)
        if asked:
            first = f"; the shortest: {wrong[0]}" if wrong else ""
            print(f"{len(wrong)} of {asked} random questions answered wrong{first}")
    return int(found.broken is not None or bool(wrong))


def _brute_force(solver: Solver, found: Certificate, count: int) -> tuple[list[str], int]:
    """Random questions that are answered wrong, the shortest first, and how many were asked.

    Where something breaks, short ones are tried first.
    """
    draw = random.Random(0)
    lengths = [draw.randint(21, LONGEST) for _ in range(count)]
    groups = [[length] * QUESTIONS for length in LOOKED] if found.broken else []
    wrong, asked = [], 0
    for group in (*groups, *([length] for length in sorted(lengths))):
        questions = [solver.task.question(length, draw) for length in group]
        texts = [solver.task.format_question(question) for question in questions]
        answers = solver.solve(texts)
        wrong += [text for text, answer in zip(texts, answers, strict=True) if not answer.correct]
        asked += len(group)
        if count:
            note(f"{group[0]} tokens: {sum(answer.correct for answer in answers)} of {len(group)} right")
        if wrong and found.broken and not count:
            break
    return wrong, asked


def _print(solver: Solver, found: Certificate, broken: dict[str, str] | None, growth: int) -> None:
    most = "all of them arise" if found.trained == found.neighbourhoods else f"{found.trained:,} arise"
    print(
        f"{found.neighbourhoods:,} neighbourhoods can arise at any length; {most} in questions of at most 20 tokens\n"
        f"{found.clusters:,} clusters of radius {found.radius:g} hold every state found, in words of up to "
        f"{2 * found.windows.k + growth} tokens; the farthest is {found.spread:.2g} from a centre"
    )
    if broken is not None:
        print(f"{solver.name}: not certified; in words like `{broken['neighbourhood']}`: {broken['why']}")
        return
    print(
        "every pair of centres is mapped into a cluster; every cluster is read and halts right, out to "
        f"{found.safety:.2g} radii\n"
        f"{solver.name}: certified for {solver.task.name} at every length, as long as no state is {found.safety:.2g} "
        "radii from all centres of its class (measured, not proven: docs/length.md)"
    )
