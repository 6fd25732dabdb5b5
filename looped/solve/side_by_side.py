"""A program and models on one question, side by side: what each would say if the loop ended after step 1, 2, …

    after step 1 of copy 10     program     0 # #
                                compiled    0 # #       and `seq` in its state is the program's `seq`
                                copy-fast   0 # #

Models are taken by name or file, as `load` takes them; `compiled` is the program itself as weights, of which the
variables can be read too. Knows programs, tasks and models, not how any of this is printed.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from looped import tasks
from looped.compiler.compiled import Compiled, compile_program
from looped.errors import InputError
from looped.rasp.attention import Array
from looped.rasp.program import Program, read_out, unroll
from looped.rasp.sequence import unwrap
from looped.solve import solver
from looped.solve.sources import load, own

COMPILED = "compiled"
Keep = Container[int | None] | None  # which steps are kept; None: all


@dataclass
class Voice:
    """What the program or a model says after each step."""

    name: str
    outputs: dict[int, list[str]] = field(
        default_factory=dict
    )  # step → tokens from `>` on, of the steps kept
    variables: dict[int, dict[str, list[int]]] = field(default_factory=dict)  # step → what its state holds
    agreed: list[int] = field(default_factory=list)  # steps after which it says what the program says
    held: list[int] = field(default_factory=list)  # steps after which its state holds the program's variables
    answer: list[str] = field(default_factory=list)  # after the last step
    steps: int = 0  # that it took: a model's own T(n), which is one less than the program's for addition


@dataclass(frozen=True)
class _Said:
    output: list[str]
    variables: dict[str, list[int]]


def voices(
    program: Program, question: list[str], models: tuple[str, ...], device: torch.device, keep: Keep = None
) -> list[Voice]:
    """The program, the program compiled, and every other model that is named, in this order."""
    row = program.row(question)
    named = [own(program.name, name) for name in models if name not in (COMPILED, f"{program.name}-compiled")]
    names = list(dict.fromkeys([COMPILED, *named]))
    sources = {name: _source(program, question, row, name, device) for name in names}
    first, others = Voice("program"), {name: Voice(name) for name in names}
    step, truths = 0, _program(program, row)
    truth = _Said([], {})
    while True:
        step += 1
        said = {name: found for name, source in sources.items() if (found := next(source, None)) is not None}
        fresh = next(truths, None)
        if fresh is None and not said:
            return [first, *others.values()]
        truth = fresh or truth  # a program that is done says what it said
        if fresh is not None:
            _add(program, first, step, truth, truth, keep)
        for name, found in said.items():
            _add(program, others[name], step, found, truth, keep)


def _add(program: Program, voice: Voice, step: int, said: _Said, truth: _Said, keep: Keep) -> None:
    voice.steps = step
    if keep is None or step in keep:
        voice.outputs[step] = said.output
        if said.variables and said is not truth:
            voice.variables[step] = said.variables
    if said.output == truth.output:
        voice.agreed.append(step)
    if said.variables == truth.variables:
        voice.held.append(step)
    end = program.vocab.decode([program.vocab.eos])[0]
    voice.answer = said.output[: said.output.index(end)] if end in said.output else said.output


def _program(program: Program, row: Array) -> Iterator[_Said]:
    states = unroll(program, row, program.sizes(row.tolist()))
    next(states)
    start = row.tolist().index(program.vocab.eoq)
    for _, _, state in states:
        output = unwrap(read_out(program, state, row)).astype(np.int64)
        variables = {name: unwrap(value).astype(np.int64).tolist() for name, value in state.items()}
        yield _Said(program.vocab.decode(output[start:].tolist()), variables)


def _source(
    program: Program, question: list[str], row: Array, name: str, device: torch.device
) -> Iterator[_Said]:
    if name == COMPILED:
        return _compiled(program, compile_program(program), row, device)
    if program.name not in tasks.TASKS:
        raise InputError(
            f"{program.name} belongs to no task, so only --model compiled can be shown beside it"
        )
    model = load(name, device)
    if model.task.name != program.name:
        raise InputError(f"{name} is a model for {model.task.name}, not for {program.name}")
    if model.method.prediction != "fop" or model.method.pause:
        raise InputError(f"{model.method.name} is fed other rows than the program; trace a looped method")
    room = len(row) - row.tolist().index(program.vocab.eoq)
    return (_Said(list(step.row[:room]), {}) for step in solver.steps(model, question))


def _compiled(program: Program, made: Compiled, row: Array, device: torch.device) -> Iterator[_Said]:
    weights, tokens = made.prepare(device), torch.from_numpy(row)[None, None].to(device)
    start, total = row.tolist().index(program.vocab.eoq), program.total(program.sizes(row.tolist()))
    with torch.inference_mode():
        for h in made.model.unroll(weights, tokens, total):
            ids = made.model.readout(weights, h[:, :, start:].contiguous())[0, 0].argmax(-1)
            variables = {name: value[0, 0].tolist() for name, value in made.decode(h).items()}
            del variables["output"]
            yield _Said(program.vocab.decode(ids.tolist()), variables)
