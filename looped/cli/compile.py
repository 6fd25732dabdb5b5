"""Models to files: `looped compile` writes a program as weights, `looped publish` a trained model's folder for the hub.

`looped compare` tells whether a trained model computes as the program does.

$ looped compile parity --out p.safetensors
parity: 1 layer a step and 3 before the loop, width 16, 4 heads, 8805 parameters (235 not zero)
exact in float64 on rows of up to 4096 tokens (16 of 53 bits)
wrote p.safetensors
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch

import looped.zoo as zoo
from looped import batches, checkpoints, devices, registry, runs, tasks
from looped.cli.arguments import Option, Positional
from looped.compiler.compiled import LONGEST, MOST_WIDTH, compile_program, draw
from looped.compiler.probe import Decoded, Spoken, probe, spoken
from looped.errors import InputError
from looped.model import hub
from looped.model.weights import Layout
from looped.output import note, print_json, print_table
from looped.rasp import programs
from looped.solve import load, own
from looped.tasks.base import LARGEST_SEED


@dataclass(frozen=True)
class CompileArgs:
    """Turn an n-RASP-L program into the weights of a looped Transformer that does exactly the same."""

    program: Annotated[str, Positional()]
    """A task's name, long_multiplication, or a FILE.py with a Program."""
    out: Annotated[Path | None, Option("FILE.safetensors", default="")] = None
    """Where to write the model; without it, only its sizes are told."""
    name: Annotated[str | None, Option(default="")] = None
    """Which program of a file with several."""
    max_length: int = LONGEST
    """Tokens of the longest row it has to take."""
    max_width: int = MOST_WIDTH
    """The widest state allowed."""
    picture: Annotated[Path | None, Option("FILE.svg", default="")] = None
    """Also draw the matrices of a step, and the state after every step of the program's example."""
    json: bool = False
    """One JSON object."""


def run_compile(args: CompileArgs) -> int:
    """Compile, write, print the sizes."""
    asked = {"--out": args.out, "--picture": args.picture}
    files = {option: path for option, path in asked.items() if path is not None}
    for option, path in files.items():
        checkpoints.check_folder(option, path)
        checkpoints.check_plain(path)
    if len({path.absolute() for path in files.values()}) < len(files):
        raise InputError(f"--out and --picture are two files, not both {args.out}")
    if args.picture is not None and args.picture.suffix != ".svg":
        raise InputError(f"a picture's name ends in .svg, not {args.picture.suffix or 'nothing'!r}")
    if not 2 <= args.max_length <= LONGEST:
        raise InputError(f"--max-length must be between 2 and {LONGEST}, not {args.max_length}")
    program = programs.find(args.program, args.name)
    compiled = compile_program(program, args.max_length, args.max_width)
    if args.out is not None:
        compiled.save(args.out)
    if args.picture is not None:
        draw(program, compiled, args.picture)
    card = compiled.card
    if args.json:
        print_json(asdict(card))
    else:
        layers = f"{card.layers} layer{'s' if card.layers > 1 else ''} a step"
        print(
            f"{card.program}: {layers} and {card.before} before the loop, width {card.width}, {card.heads} heads, "
            f"{card.parameters} parameters ({card.nonzero} not zero)\n"
            f"exact in {card.precision} on rows of up to {card.max_length} tokens ({card.bits:.0f} of 53 bits)"
        )
    for path in files.values():
        note(f"wrote {path}")
    return 0


@dataclass(frozen=True)
class PublishArgs:
    """Write a model as a folder of the Hugging Face hub: flat config.json, model.safetensors, a model card."""

    model: Annotated[str, Positional("MODEL")]
    """A shipped model's name, a run's folder (its first seed), a checkpoint's file, or a published model."""
    folder: Annotated[Path, Positional("DIR")]
    """The folder to write, new or empty; `looped solve TASK --model DIR` and all other commands read it."""
    json: bool = False
    """Print what was written as one JSON object."""


def run_publish(args: PublishArgs) -> int:
    """Write the folder and say how to upload it."""
    if args.folder.is_dir() and any(args.folder.iterdir()):
        raise InputError(f"{args.folder} is not empty: choose another folder")
    shipped = zoo.located(args.model)
    file = shipped or runs.weight_files(Path(args.model))[0]
    trained = runs.load_seed(file)
    config = trained.config
    if shipped is None:
        name, rows = config.name, runs.last_evaluation(file.parent, trained.seed)
    else:
        name, rows = file.stem, [asdict(row) for row in zoo.card(file.stem).rows]
    runs.publish(trained, args.folder, name, rows)
    parameters = sum(each.numel() for each in trained.weights.values()) or Layout(config.model).parameters
    if args.json:
        size = sum((args.folder / each).stat().st_size for each in (hub.CONFIG, hub.WEIGHTS, hub.CARD))
        facts = {"folder": str(args.folder), "model": name, "task": config.task, "parameters": parameters}
        print_json(facts | {"accuracies": len(rows), "bytes": size})
        return 0
    upload = f"upload it with `hf upload OWNER/NAME {args.folder}`"
    print(f"wrote {args.folder}: {name}, {config.task}, {parameters:,} parameters; {upload}")
    return 0


SAME = 0.99  # accuracies above this count as equal
GAIN = 0.05  # how much better than its controls a variable has to be read to count as there
COLUMNS = {"from state": "accuracy", "from token": "from_token", "from input": "from_input",
           "untrained": "untrained", "shuffled": "shuffled"}  # fmt: skip


@dataclass(frozen=True)
class CompareArgs:
    """Fit a linear map from a model's states to the variables of the task's n-RASP-L program, step by step."""

    task: Annotated[str, Positional()]
    """The task's name."""
    model: Annotated[str | None, Option("NAME|PATH", default="")] = None
    """A shipped model, `compiled`, a checkpoint (seed-0.safetensors, or what `looped compile` wrote) or a run's folder;
    by default the shipped model of the task."""
    length: int = 12
    """Length of the questions."""
    samples: int = 512
    """Questions; half of them fit the maps, the other half test them."""
    seed: int = 0
    """Of the questions."""
    no_controls: bool = False
    """Leave out the fits to the embedded input, to fresh weights of the same shape, and to another row's variables."""
    answer_only: bool = False
    """Read variables only where the answer is read, from the end of the question on."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    json: bool = False
    """One JSON object per variable and step."""


def run_compare(args: CompareArgs) -> int:
    """Probe and print."""
    task, device = tasks.get(registry.resolve("task", args.task)), devices.pick(args.device)
    solver = load(own(task.name, args.model), device)
    solver.check_task(task, args.model)
    if solver.method.prediction != "fop" or solver.method.pause:
        raise InputError(f"{solver.method.name} is fed other rows than the program; compare a looped method")
    if not 2 <= args.samples <= 65536:
        raise InputError(f"--samples must be between 2 and 65536, not {args.samples}")
    if not 0 <= args.seed <= LARGEST_SEED:
        raise InputError(f"--seed must be between 0 and {LARGEST_SEED}, not {args.seed}")
    lengths = torch.full((args.samples,), task.check_length(args.length))
    problems = task.sample(lengths, torch.Generator().manual_seed(args.seed), max_length=args.length)
    rows = batches.lay_out(problems, task.vocab, task.row_size(args.length)).tokens.to(device)
    program, steps = programs.get(task.name), int(problems.steps.max())
    found = probe(program, solver.model, solver.weights, rows, steps, not args.no_controls, args.answer_only)
    said = spoken(program, solver.model, solver.weights, rows, steps)
    if args.json:
        for each in (*map(asdict, found), *map(asdict, said)):
            print_json({"task": task.name, "length": args.length, "model": solver.name, **each})
    else:
        columns = dict(list(COLUMNS.items())[: 2 if args.no_controls else None])
        lines = [(e.variable, e.step, *(f"{getattr(e, n):.4f}" for n in columns.values())) for e in found]
        print_table(("variable", "step", *columns), lines)
        print()
        spoke = [(s.step, f"{s.as_program:.4f}", f"{s.as_answer:.4f}", f"{s.begun:.4f}") for s in said]
        print_table(("step", "says as the program", "says as the answer", "answer begun"), spoke)
        print()
        print(verdict(solver.name, found, said))
    return 0


def verdict(name: str, found: Sequence[Decoded], said: Sequence[Spoken]) -> str:
    """One sentence: does the model compute as the program does?"""
    worst = min(found, key=lambda each: each.accuracy)
    if min(worst.accuracy, *(each.as_program for each in said)) > SAME:
        return f"{name} computes as the program does: its states hold every variable, and it says the same."
    gains = [each.accuracy - max(each.from_token, each.untrained or 0.0) for each in found]
    there = sum(gain > GAIN for gain in gains)
    controls = "its input token" if worst.untrained is None else "its input token or untrained weights"
    return (
        f"{name} does not compute as the program does: of {len(found)} pairs of variable and step, "
        f"{there} are read better from its states than from {controls}, "
        f"`{worst.variable}` after step {worst.step} with accuracy {worst.accuracy:.2f}."
    )
