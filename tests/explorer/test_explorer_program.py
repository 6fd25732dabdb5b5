from __future__ import annotations

import base64

import numpy as np
import pytest

from looped import tasks
from looped.explorer import queries
from looped.rasp import programs
from looped.rasp.trace import trace


def sent(name: str, question: list[str], size: int) -> dict[str, np.ndarray]:
    """The variables of a program's run as a page reads them."""
    code = programs.get(name)
    message = queries.program_message(trace(code, code.row(question, size), outputs=True))
    variables = message["variables"]
    assert isinstance(variables, list)
    for each in variables:
        assert each["tokens"] == (each["name"] in (queries.OUTPUT, *code.tokens))
    return {
        each["name"]: np.frombuffer(base64.b64decode(each["values"]), "<i2").reshape(-1, size)
        for each in variables
    }


@pytest.mark.parametrize("name", tasks.TASKS)
def test_the_message_is_the_trace_in_a_row_of_the_models_size(name: str) -> None:
    task, code = tasks.get(name), programs.get(name)
    question = task.parse(task.example)
    size = task.row_size(task.measure(question)[0])
    known = trace(code, code.row(question, size))
    found = sent(name, question, size)
    assert list(found) == [queries.OUTPUT, *known.variables]
    assert all(len(rows) == known.steps + 1 for rows in found.values())
    for variable in known.variables:
        rows = [entry.values.tolist() for entry in known.entries if entry.name == variable]
        assert found[variable].tolist() == rows
    assert found[queries.OUTPUT][-1].tolist() == known.output.tolist()


def test_the_output_after_the_last_step_is_the_answer() -> None:
    last = sent("copy", ["1", "0"], 8)[queries.OUTPUT][-1].tolist()
    assert tasks.get("copy").vocab.decode(last)[2:] == ["1", "0", "#", "#", "#", "#"]
