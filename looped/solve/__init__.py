"""A question in, an answer out: models from names and files, run until a stopping rule says enough.

>>> model = load("addition-compiled")
>>> model.solve("1011+0110")
1011+0110 → 10001 (right; 5 steps by halt; confidence 1.0000)

`load` takes the name of a shipped model, a run's folder, one seed's checkpoint or a compiled model's file; `voices`
asks a program and several models the same question, side by side.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

import looped.zoo as zoo
from looped import checkpoints, devices, methods, runs, tasks
from looped.compiler import compiled
from looped.compiler.compiled import Compiled, compile_program
from looped.errors import InputError
from looped.evaluation.loading import prepared
from looped.model import hub
from looped.rasp import programs
from looped.rasp.attention import Array
from looped.rasp.program import Program, read_out, unroll
from looped.rasp.sequence import unwrap
from looped.solve import solver
from looped.solve.solver import Answer, Answers, Solver, Step, StepSequence, answer
from looped.training import recipes

__all__ = ["Answer", "Answers", "Solver", "Step", "StepSequence", "answer", "load"]

COMPILED = "-compiled"  # after a task's name: its program, compiled when it is asked for
OTHERS = "a checkpoint's file, a run's folder or hub:OWNER/NAME"


def load(source: str | Path, device: torch.device | str = "cpu") -> Solver:
    """A model ready to answer: a shipped name (`addition`), a run's folder, a checkpoint's file, a published model.

    A name is looked for among the shipped models first: write `./addition` for a folder of that name, which stands for
    its first seed. A published model is its folder or `hub:owner/name`. `TASK-compiled` is the task's n-RASP-L program,
    compiled into weights on the spot. The device is cpu, cuda, cuda:N, or auto for a GPU where there is one.
    """
    device = devices.pick(device) if isinstance(device, str) else device
    if source == "":
        raise InputError(f"a model has a name: {_allowed(source)}")
    if isinstance(source, str) and not (os.sep in source or "/" in source or source.endswith(".safetensors")):
        task = source.removesuffix(COMPILED)
        if source.endswith(COMPILED) and task in tasks.EVERY:
            return _of_program(source, compiled.compile_program(programs.get(task)), device)
        if found := zoo.find(source):
            return replace(_of_seed(found, zoo.path(found), device), card=zoo.card(found))
        if not Path(source).exists():
            raise InputError(f"there is no model {source[:80]!r}: {_allowed(source)}")
    path, name = hub.located(source), ""
    if path.is_dir():
        path = runs.seed_files(path)[0]
        name = str(source) if path.name == hub.WEIGHTS else ""
    if not path.exists():
        raise InputError(f"there is no model {path}: give {OTHERS}")
    if checkpoints.header(path).get("format") == compiled.KIND:
        return _of_program(str(path), compiled.load(path), device)
    return _of_seed(name or str(path), path, device)


def is_known(name: str) -> bool:
    """Whether `load` knows this name without a file."""
    program = name.removesuffix(COMPILED)
    return zoo.find(name) is not None or (program != name and program in tasks.EVERY)


def own(task: str, name: str | None) -> str:
    """What a person means by a model's name beside a task's: `fast` and `compiled` are that task's own."""
    if name is None:
        if not is_known(task):
            program = ", for example `--model compiled`, the task's program as weights"
            other = program if task in {**programs.PROGRAMS, **programs.CHOMSKY} else ""
            raise InputError(
                f"no trained {task} model is shipped with this version: give one with --model{other}"
            )
        return task
    full = f"{task}-{name}"
    return full if is_known(full) else name


def _allowed(source: str) -> str:
    ours = f"give {', '.join(zoo.names())}, " if zoo.names() else "none is shipped with this version; give "
    return f"{ours}TASK{COMPILED}, {OTHERS}"


def _of_program(name: str, made: Compiled, device: torch.device | str) -> Solver:
    if made.card.program not in tasks.EVERY:
        raise InputError(
            f"{name} is the program {made.card.program}, which belongs to no task that asks questions"
        )
    method = methods.get("fop-loop-adaptive-wo")
    task, weights = tasks.get(made.card.program), made.prepare(device)
    own = methods.parse_loops(recipes.program_loops(task.name))  # the program's, which may be more than T(n)
    return Solver(
        name, task, method, made.model, weights, made.card.max_length,
        recipe=solver.COMPILED, loops=own, row=made.row,
    )  # fmt: skip


def _of_seed(name: str, path: Path, device: torch.device | str) -> Solver:
    trained = runs.load_seed(path)
    config = trained.config
    model, weights = prepared([trained], device)
    task, method = tasks.get(config.task), methods.get(config.method)
    return Solver(
        name, task, method, model, weights, config.max_length, trained.seed, config.recipe,
        methods.parse_loops(config.loops), row=None if config.block else trained.row, facts=runs.facts_of(trained),
    )  # fmt: skip


# --- side by side --------------------------------------------------------------------------------------------
# A program and models on one question, side by side: what each would say if the loop ended after step 1, 2, …
#
#     after step 1 of copy 10     program     0 # #
#                                 compiled    0 # #       and `seq` in its state is the program's `seq`
#                                 copy-fast   0 # #
#
# `compiled` is the program itself as weights, of which the variables can be read too.


AS_WEIGHTS = "compiled"
Keep = Container[int | None] | None  # which steps are kept; None: all
Said = tuple[list[str], dict[str, list[int]]]  # after a step: tokens from `>` on, variables in the state


@dataclass
class Voice:
    """What the program or a model says after each step."""

    name: str
    outputs: dict[int, list[str]] = field(default_factory=dict)  # step kept → tokens from `>` on
    variables: dict[int, dict[str, list[int]]] = field(default_factory=dict)  # step → what its state holds
    agreed: list[int] = field(default_factory=list)  # steps after which it says what the program says
    held: list[int] = field(default_factory=list)  # steps after which its state holds the program's variables
    answer: list[str] = field(default_factory=list)  # after the last step
    steps: int = 0  # that it took: a model's own T(n), which is one less than the program's for addition

    def add(self, step: int, said: Said, truth: Said, kept: bool, end: str) -> None:
        """What it says after a step, beside what the program says; an answer ends at `end`."""
        output, variables = said
        self.steps = step
        if kept:
            self.outputs[step] = output
            if variables and said is not truth:
                self.variables[step] = variables
        if output == truth[0]:
            self.agreed.append(step)
        if variables == truth[1]:
            self.held.append(step)
        self.answer = output[: output.index(end)] if end in output else output


def voices(
    program: Program, question: list[str], models: tuple[str, ...], device: torch.device, keep: Keep = None
) -> list[Voice]:
    """The program, the program compiled, and every other model that is named, in this order."""
    row, end = program.row(question), program.vocab.decode([program.vocab.eos])[0]
    compiled = (AS_WEIGHTS, f"{program.name}{COMPILED}")
    names = dict.fromkeys([AS_WEIGHTS, *(own(program.name, name) for name in models if name not in compiled)])
    sources = {name: _source(program, question, row, name, device) for name in names}
    first, others = Voice("program"), {name: Voice(name) for name in names}
    truths, truth = _program(program, row), (list[str](), dict[str, list[int]]())
    for step in itertools.count(1):
        kept = keep is None or step in keep
        said = {name: found for name, source in sources.items() if (found := next(source, None)) is not None}
        fresh = next(truths, None)
        if fresh is not None:  # a program that is done says what it said
            truth = fresh
            first.add(step, truth, truth, kept, end)
        for name, found in said.items():
            others[name].add(step, found, truth, kept, end)
        if fresh is None and not said:
            break
    return [first, *others.values()]


def _program(program: Program, row: Array) -> Iterator[Said]:
    states = unroll(program, row, program.sizes(row.tolist()))
    next(states)
    start = row.tolist().index(program.vocab.eoq)
    for _, _, state in states:
        output = unwrap(read_out(program, state, row)).astype(np.int64)
        variables = {name: unwrap(value).astype(np.int64).tolist() for name, value in state.items()}
        yield program.vocab.decode(output[start:].tolist()), variables


def _source(
    program: Program, question: list[str], row: Array, name: str, device: torch.device
) -> Iterator[Said]:
    if name == AS_WEIGHTS:
        return _compiled(program, compile_program(program), row, device)
    if program.name not in tasks.EVERY:
        raise InputError(
            f"{program.name} belongs to no task, so only --model compiled can be shown beside it"
        )
    model = load(name, device)
    model.check_task(tasks.get(program.name), name)
    if model.method.prediction != "fop" or model.method.pause:
        raise InputError(f"{model.method.name} is fed other rows than the program; trace a looped method")
    room = len(row) - row.tolist().index(program.vocab.eoq)
    return ((list(step.row[:room]), {}) for step in solver.steps(model, question))


def _compiled(program: Program, made: Compiled, row: Array, device: torch.device) -> Iterator[Said]:
    weights, tokens = made.prepare(device), torch.from_numpy(row)[None, None].to(device)
    start, total = row.tolist().index(program.vocab.eoq), program.total(program.sizes(row.tolist()))
    with torch.inference_mode():
        for h in made.model.unroll(weights, tokens, total):
            ids = made.model.readout(weights, h[:, :, start:].contiguous())[0, 0].argmax(-1)
            variables = {name: value[0, 0].tolist() for name, value in made.decode(h).items()}
            del variables["output"]
            yield program.vocab.decode(ids.tolist()), variables
