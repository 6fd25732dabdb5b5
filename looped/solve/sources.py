"""Where a model comes from: a shipped name, a run's folder, a checkpoint, or a program compiled on the spot."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from looped import checkpoints, loops, methods, runs, tasks
from looped.compiler import compiled
from looped.compiler.compiled import Compiled
from looped.errors import InputError
from looped.evaluation.loading import prepared
from looped.rasp import programs
from looped.solve import solver
from looped.solve.solver import Solver
from looped.training import start
from looped.zoo import registry

COMPILED = "-compiled"  # after a task's name: its program, compiled when it is asked for


def load(source: str | Path, device: torch.device | str = "cpu") -> Solver:
    """The model of a name (`addition`, `addition-compiled`) or in a file; a run's folder stands for its first seed.

    A name is looked for among the shipped models first: write `./addition` for a folder of that name.
    """
    if source == "":
        raise InputError(f"a model has a name: {_allowed(source)}")
    if isinstance(source, str) and _is_name(source):
        task = source.removesuffix(COMPILED)
        if source.endswith(COMPILED) and task in tasks.TASKS:
            return _of_program(source, compiled.compile_program(programs.get(task)), device)
        if found := registry.find(source):
            return replace(_of_seed(found, registry.path(found), device), card=registry.card(found))
        if not Path(source).exists():
            raise InputError(f"there is no model {source[:80]!r}: {_allowed(source)}")
    path = Path(source)
    if path.is_dir():
        path = runs.seed_files(path)[0]
    if _format(path) == compiled.KIND:
        return _of_program(str(path), compiled.load(path), device)
    return _of_seed(str(path), path, device)


def is_known(name: str) -> bool:
    """Whether `load` knows this name without a file."""
    return registry.find(name) is not None or (
        name.endswith(COMPILED) and name.removesuffix(COMPILED) in tasks.TASKS
    )


def own(task: str, name: str | None) -> str:
    """What a person means by a model's name beside a task's: `fast` and `compiled` are that task's own."""
    if name is None:
        if not is_known(task):
            program = ", for example `--model compiled`, the task's program as weights"
            other = program if task in programs.PROGRAMS else ""
            raise InputError(
                f"no trained {task} model is shipped with this version: give one with --model{other}"
            )
        return task
    full = f"{task}-{name}"
    return full if is_known(full) else name


def _is_name(source: str) -> bool:
    return os.sep not in source and "/" not in source and not source.endswith(".safetensors")


def _allowed(source: str) -> str:
    ours = (
        f"give {', '.join(registry.names())}, "
        if registry.names()
        else "none is shipped with this version; give "
    )
    return f"{ours}TASK{COMPILED}, a checkpoint's file or a run's folder"


def _of_program(name: str, made: Compiled, device: torch.device | str) -> Solver:
    if made.card.program not in tasks.TASKS:
        raise InputError(
            f"{name} is the program {made.card.program}, which belongs to no task that asks questions"
        )
    method = methods.get("fop-loop-adaptive-wo")
    task, weights = tasks.get(made.card.program), made.prepare(device)
    return Solver(
        name,
        task,
        method,
        made.model,
        weights,
        made.card.max_length,
        recipe=solver.COMPILED,
        loops=loops.parse(start.loops(task.name)),  # the program's own steps, which may be more than T(n)
        row=made.row,
    )


def _of_seed(name: str, path: Path, device: torch.device | str) -> Solver:
    trained = runs.load_seed(path)
    config = trained.config
    model, weights = prepared([trained], device)
    task, method = tasks.get(config.task), methods.get(config.method)
    return Solver(
        name,
        task,
        method,
        model,
        weights,
        config.max_length,
        trained.seed,
        config.recipe,
        loops.parse(config.loops),
        row=None if config.block else trained.row,
    )


def _format(path: Path) -> str | None:
    """What kind of checkpoint a file says it is."""
    if not path.exists():
        raise InputError(f"there is no model {path}: give a checkpoint's file or a run's folder")
    return checkpoints.header(path).get("format")
