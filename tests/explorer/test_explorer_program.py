from __future__ import annotations

import pytest

from looped import tasks
from looped.explorer import program
from looped.rasp import programs
from looped.rasp.trace import trace


@pytest.mark.parametrize("name", tasks.TASKS)
def test_the_grid_is_the_trace_in_a_row_of_the_models_size(name: str) -> None:
    task, code = tasks.get(name), programs.get(name)
    question = task.parse(task.example)
    size = task.row_size(task.measure(question)[0])
    grid, known = program.run(name, question, size), trace(code, code.row(question, size))
    assert grid.steps == known.steps
    assert [each.name for each in grid.variables] == [program.OUTPUT, *known.variables]
    for variable in grid.variables[1:]:
        rows = [entry.values.tolist() for entry in known.entries if entry.name == variable.name]
        assert variable.values.tolist() == rows
        assert variable.tokens == (variable.name in code.tokens)


def test_the_output_after_the_last_step_is_the_answer() -> None:
    copy = tasks.get("copy")
    grid = program.run("copy", ["1", "0"], 8)
    assert copy.vocab.decode(grid.variables[0].values[-1].tolist())[2:] == ["1", "0", "#", "#", "#", "#"]
