"""The programs of the tasks, and the one with three loops: exact against interpreter and oracle, short and long."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
import torch
from equality import assert_equal

from looped import batches, tasks
from looped.batches import Batch
from looped.compiler.compiled import Compiled, compile_program
from looped.errors import InputError
from looped.evaluation import decode, stopping
from looped.rasp import programs
from looped.tasks.base import Task

# Lengths up to which every input is tried here; docs/log.md has the run with 8 for all of them.
LONGEST = {"unique_set": 6, "addition": 4, "multiplication": 4}


@cache
def compiled(name: str) -> Compiled:
    return compile_program(programs.get(name))


def questions(task: Task, length: int) -> list[list[str]]:
    """Every question of a length; of the unique set, every pattern of equal and different symbols."""
    if task.name == "unique_set":
        names = [str(7 * i % 50) for i in range(length)]
        return [[names[i] for i in pattern] for pattern in patterns(length)]
    sizes = {"addition": [(length, length)], "multiplication": [(1, length), (2, length)]}
    found = []
    for parts in sizes.get(task.name, [(length,)]):
        for digits in itertools.product("01", repeat=sum(parts)):
            sign = [] if len(parts) == 1 else [task.vocab.symbols[-1]]
            found.append([*digits[: parts[0]], *sign, *digits[parts[0] :]])
    return found


def patterns(length: int) -> list[tuple[int, ...]]:
    """Every way in which symbols of a row can be equal: 0 0, 0 1 of two."""
    found: list[tuple[int, ...]] = [()]
    for _ in range(length):
        found = [(*row, i) for row in found for i in range(max(row, default=-1) + 2)]
    return found


def answered(name: str, batch: Batch, overrun: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows are right where the model stops itself (or `overrun` steps later), and the steps it took."""
    made, rule = compiled(name), stopping.get("halt")
    most = 2 * int(batch.steps.max()) + 2
    found = decode.run_adaptive(made.model, made.prepare(), batch, rule, most)
    if overrun:
        last = found.steps + overrun
        late = Batch(batch.tokens, batch.targets, batch.loss_mask, last[0])
        found = decode.run_adaptive(made.model, made.prepare(), late, stopping.get("oracle"), int(last.max()))
    return decode.exact(found, batch)[0], found.steps[0]


def laid_out(task: Task, asked: list[list[str]]) -> Batch:
    problems = task.problems(asked)
    return batches.lay_out(problems, task.vocab, task.row_size(int(problems.length.max())))


def steps_of(name: str, asked: list[list[str]]) -> list[int]:
    program = programs.get(name)
    return [program.total(program.sizes(program.row(question).tolist())) for question in asked]


@pytest.mark.parametrize("name", tasks.TASKS)
def test_every_short_input_is_answered_at_t(name: str) -> None:
    task = tasks.get(name)
    for length in range(1, LONGEST.get(name, 8) + 1):
        asked = questions(task, length)
        right, steps = answered(name, laid_out(task, asked))
        assert right.all(), asked[int((~right).nonzero()[0])]
        assert steps.tolist() == steps_of(name, asked)


@pytest.mark.parametrize(("name", "length"), [*((n, 8) for n in LONGEST), *((n, 64) for n in tasks.TASKS)])
def test_random_questions_are_answered_and_stay_answered(name: str, length: int) -> None:
    task = tasks.get(name)
    lengths = torch.full((4,), length)
    problems = task.sample(lengths, torch.Generator().manual_seed(length), max_length=length)
    batch = batches.lay_out(problems, task.vocab, task.row_size(length))
    right, _ = answered(name, batch)
    assert right.all()
    late, _ = answered(name, batch, overrun=5)
    assert late.all()


@pytest.mark.parametrize("name", ["parity", pytest.param("binary_sum", marks=pytest.mark.slow)])
def test_a_thousand_bits_are_answered(name: str) -> None:
    task = tasks.get(name)
    problems = task.sample(torch.tensor([1000, 1000]), torch.Generator().manual_seed(1), max_length=1000)
    right, steps = answered(name, batches.lay_out(problems, task.vocab, task.row_size(1000)))
    assert right.all()
    assert steps.tolist() == [1000, 1000]


@pytest.mark.parametrize("name", programs.PROGRAMS)
@pytest.mark.parametrize("length", [1, 2, 5, 12])
def test_every_variable_is_the_interpreters_after_every_step(name: str, length: int) -> None:
    program = programs.get(name)
    sign = list(program.separators)
    generator = np.random.default_rng(length)
    first = {"multiplication": 2, "long_multiplication": 3}.get(name, length) if sign else 0
    highest = 10 if name == "unique_set" else 2
    rows = []
    for _ in range(8):
        one, two = (generator.integers(0, highest, size=n).astype(str).tolist() for n in (first, length))
        rows.append(program.row([*one, *sign, *two]))
    assert_equal(program, compiled(name), np.stack(rows))


def test_a_row_beyond_the_longest_is_refused() -> None:
    made = compile_program(programs.get("parity"), longest=32)
    assert made.card.max_length == 32
    tokens = torch.zeros(1, 1, 33, dtype=torch.long)
    with pytest.raises(InputError, match="rows of 33 tokens are longer"):
        next(made.model.unroll(made.prepare(), tokens, 1))


def test_the_vocabularies_of_programs_and_tasks_agree() -> None:
    for name, task in tasks.TASKS.items():
        assert programs.get(name).vocab == task.vocab
