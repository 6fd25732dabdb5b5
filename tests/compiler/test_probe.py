"""The probe: all of a compiled program's variables, of a shuffled model's none that its token does not give away."""

from __future__ import annotations

import pytest
import torch

from looped import batches, tasks
from looped.compiler.compiled import compile_program
from looped.compiler.probe import probe
from looped.errors import InputError
from looped.fast import StackedTransformer
from looped.model import ModelConfig
from looped.rasp import programs


def rows(name: str, length: int, count: int) -> torch.Tensor:
    task = tasks.get(name)
    lengths = torch.full((count,), length)
    problems = task.sample(lengths, torch.Generator().manual_seed(0), max_length=length)
    return batches.lay_out(problems, task.vocab, task.row_size(length)).tokens


@pytest.mark.parametrize("name", ["parity", "copy", "addition"])
def test_a_compiled_programs_variables_are_there(name: str) -> None:
    made = compile_program(programs.get(name), longest=64)
    found = probe(programs.get(name), made.model, made.prepare(), rows(name, 6, 400), 6)
    assert [each.step for each in found if each.variable == found[0].variable] == [1, 2, 3, 4, 5, 6]
    assert {each.variable for each in found} == {n for n, _ in made.card.variables} - {"output"}
    for each in found:
        assert each.accuracy > 0.99, each


def test_only_where_the_answer_is_read() -> None:
    """Of a token every position knows itself: `seq` before the question's end, nothing but blanks after it."""
    program = programs.get("copy")
    config = ModelConfig(vocab=len(program.vocab), layers=1, heads=4, width=16, bands=(1, 1, 1, 1))
    model = StackedTransformer(config)
    weights = model.prepare(model.layout.initialise([0]))
    everywhere = probe(program, model, weights, rows("copy", 6, 200), 3)
    there = probe(program, model, weights, rows("copy", 6, 200), 3, answer_only=True)
    assert [each.step for each in there] == [1, 2, 3]
    assert there != everywhere
    for each in there:
        assert abs(each.accuracy - 0.5) < 0.15  # as good as tossed


def test_a_model_without_attention_knows_no_more_than_its_token() -> None:
    config = ModelConfig(vocab=5, layers=1, heads=4, width=16, bands=(1, 1, 1, 1))
    model = StackedTransformer(config)
    found = probe(
        programs.get("parity"), model, model.prepare(model.layout.initialise([0])), rows("parity", 8, 400), 4
    )
    late = [each for each in found if each.step == 4 and each.variable == "answer"]
    assert len(late) == 1
    assert abs(late[0].accuracy - late[0].from_token) < 0.06
    assert late[0].accuracy < 0.8


def test_what_a_probe_cannot_take() -> None:
    made = compile_program(programs.get("parity"), longest=64)
    with pytest.raises(InputError, match="at least 2 rows"):
        probe(programs.get("parity"), made.model, made.prepare(), rows("parity", 3, 1), 1)
    mixed = torch.tensor([[1, 2, 3, 3], [1, 1, 2, 3]])
    with pytest.raises(InputError, match="equal sizes"):
        probe(programs.get("parity"), made.model, made.prepare(), mixed, 1)
