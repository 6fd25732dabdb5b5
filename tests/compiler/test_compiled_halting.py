"""The rule `halt` on a step grid: a compiled model stops at T, and a grid of one that never says is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from looped import batches, tasks
from looped.compiler.compiled import compile_program
from looped.errors import InputError
from looped.evaluation import rollout, stopping
from looped.rasp import programs


def test_halt_is_the_programs_t_for_every_length_in_a_batch() -> None:
    task, made = tasks.get("binary_sum"), compile_program(programs.get("binary_sum"), longest=64)
    lengths = torch.tensor([1, 3, 7, 7])
    problems = task.sample(lengths, torch.Generator().manual_seed(0), max_length=7)
    batch = batches.lay_out(problems, task.vocab, task.row_size(7))
    parts = [
        rollout.unroll_grid(made.model, made.prepare(), batch.rows(part), 12)
        for part in (slice(0, 2), slice(2, 4))
    ]
    whole = rollout.join(parts)
    assert stopping.get("halt").steps(whole).tolist() == [lengths.tolist()]
    assert whole.correct[:, 6:].all(), "what is done stays done"
    with pytest.raises(InputError, match="halt is for models that say when they are done"):
        stopping.get("halt").steps(replace(whole, done=None))
