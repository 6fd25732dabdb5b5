"""Program, compiled model and trained model side by side: the compiled one agrees everywhere, files are taken too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from looped import tasks
from looped.compiler.compiled import compile_program
from looped.errors import InputError
from looped.rasp import programs
from looped.solve import voices
from looped.training.recipes import make
from looped.training.trainer import Cadence, train

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_a_compiled_program_says_and_holds_what_the_program_does(name: str) -> None:
    program = programs.get(name)
    question = program.example.split()
    first, compiled = voices(program, question, ("compiled",), CPU)
    total = program.total(program.sizes(program.row(question).tolist()))
    every = list(range(1, total + 1))
    assert (first.name, compiled.name) == ("program", "compiled")
    assert compiled.agreed == compiled.held == every
    assert list(compiled.outputs) == list(compiled.variables) == every
    assert compiled.outputs == first.outputs
    if name in tasks.TASKS:
        assert compiled.answer == tasks.get(name).solve(question)


def test_a_trained_model_stands_beside_both(tmp_path: Path) -> None:
    config = make("copy", "fop-loop-adaptive", "quick", (0,))
    train(replace(config, steps=2, batch=4, max_length=3), tmp_path, cadence=Cadence(samples=4))
    program = programs.get("copy")
    found = voices(program, ["1", "0", "1"], (str(tmp_path), "compiled", str(tmp_path)), CPU, keep=[3])
    assert [voice.name for voice in found] == ["program", "compiled", str(tmp_path)]
    trained = found[-1]
    assert list(trained.outputs) == [3]
    assert len(trained.outputs[3]) == 4
    assert not trained.variables
    assert set(trained.agreed) <= {1, 2, 3}
    assert trained.held == []


def test_a_model_takes_its_own_number_of_steps() -> None:
    """Addition's program takes a step more than T(n), after which its model is asked."""
    first, compiled, trained = voices(programs.get("addition"), [*"101", "+", *"011"], ("fast",), CPU)
    assert (first.steps, compiled.steps, trained.steps) == (4, 4, 3)
    assert trained.answer == first.answer == ["1", "0", "0", "0"]


def test_what_cannot_stand_beside_a_program(tmp_path: Path) -> None:
    file = tmp_path / "parity.safetensors"
    compile_program(programs.get("parity"), longest=64).save(file)
    with pytest.raises(InputError, match="is a model for parity, not for copy"):
        voices(programs.get("copy"), ["1"], (str(file),), CPU)
    with pytest.raises(InputError, match="only --model compiled can be shown"):
        voices(programs.get("long_multiplication"), ["1", "×", "1"], ("fast",), CPU)
    with pytest.raises(InputError, match="there is no model"):
        voices(programs.get("copy"), ["1"], ("nothing",), CPU)
