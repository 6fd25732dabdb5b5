"""`looped certify`: is a model whose positions read one position back right at every length?

$ looped certify parity-long
2,067 neighbourhoods can arise at any length; all of them arise in questions of at most 20 tokens
617 clusters of radius 1 hold every state found, in words of up to 206 tokens; the farthest is 0.61 from a centre
every pair of centres is mapped into a cluster; every cluster is read and halts right, out to 3.8 radii
parity-long: certified for parity at every length, as long as no state is 3.8 radii from all centres of its class …
"""

from __future__ import annotations

import math
import random
from dataclasses import asdict, dataclass
from typing import Annotated

import torch

from looped import registry, tasks
from looped.cli.arguments import Option, OwnPart, Positional
from looped.cli.output import note, print_json
from looped.errors import InputError
from looped.evaluation.certify import Certificate, LocalRule, certify
from looped.registry import NamedParts
from looped.solve import load
from looped.solve.solver import Solver

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


def run(args: CertifyArgs) -> int:
    """Certify on the CPU and print; 1 where something breaks."""
    if not (1 <= args.window <= 6 and args.radius > 0 and args.growth >= 1 and args.check >= 0):
        raise InputError(
            "--window must be from 1 to 6, --radius above 0, --growth at least 1, --check at least 0"
        )
    given = NamedParts(method=args.method)
    task = None if args.task is None else tasks.get(registry.resolve("task", args.task))
    solver = load(args.model)
    given.check()
    if task is not None and solver.task is not task:
        raise InputError(f"{args.model} is a model for {solver.task.name}, not for {task.name}")
    if solver.method.prediction != "fop" or not solver.method.adaptive:
        raise InputError(f"{args.model} was trained by {solver.method.name}, which does not loop n times")
    if int(solver.loops.first(torch.tensor(7), torch.tensor(7))) != 7:
        raise InputError(
            f"{args.model} was trained to loop more or less than once for every token of a question"
        )
    found = certify(LocalRule(solver.net), solver.task, args.window, args.radius, args.growth)
    wrong, asked = _brute_force(solver, found, args.check)
    if args.json:
        print_json(_as_json(solver, found, wrong, asked))
    else:
        _print(solver, found, args.growth)
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


def _print(solver: Solver, found: Certificate, growth: int) -> None:
    windows, name = found.windows, solver.name
    most = "all of them arise" if found.trained == found.neighbourhoods else f"{found.trained:,} arise"
    print(
        f"{found.neighbourhoods:,} neighbourhoods can arise at any length; {most} in questions of at most 20 tokens"
    )
    print(
        f"{found.clusters:,} clusters of radius {found.radius:g} hold every state found, in words of up to "
        f"{2 * windows.k + growth} tokens; the farthest is {found.spread:.2g} from a centre"
    )
    if found.broken is None:
        print(
            "every pair of centres is mapped into a cluster; every cluster is read and halts right, out to "
            f"{found.safety:.2g} radii"
        )
        print(
            f"{name}: certified for {solver.task.name} at every length, as long as no state is {found.safety:.2g} "
            "radii from all centres of its class (measured, not proven: docs/length.md)"
        )
        return
    print(
        f"{name}: not certified; in words like `{windows.shown(found.broken[0], solver.task)}`: {found.broken[1]}"
    )


def _as_json(solver: Solver, found: Certificate, wrong: list[str], asked: int) -> dict[str, object]:
    broken = found.broken and {
        "neighbourhood": found.windows.shown(found.broken[0], solver.task), "why": found.broken[1]
    }  # fmt: skip
    numbers = {key: value for key, value in asdict(found).items() if key not in ("windows", "broken")}
    safety = None if math.isnan(found.safety) else found.safety
    return {
        "model": solver.name, "task": solver.task.name, "certified": found.broken is None, **numbers,
        "safety": safety, "window": found.windows.k, "memory": found.windows.memory, "broken": broken,
        "asked": asked, "wrong": wrong,
    }  # fmt: skip
