"""`looped tasks`: all of them, with facts a person can check."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from looped.cli.tasks import TasksArgs, run_tasks
from looped.tasks import TASKS

Cli = Callable[..., tuple[int, str, str]]


def test_json_lines(cli: Cli) -> None:
    code, out, err = cli("tasks", "--json")
    facts = {fact["task"]: fact for fact in map(json.loads, out.splitlines())}
    assert (code, err, list(facts)) == (0, "", list(TASKS))
    assert facts["multiplication"]["steps"] == "n1·n"
    assert [facts[name]["max_length"] for name in TASKS] == [20, 19, 19, 19, 11, 19]
    assert facts["copy"]["input"] == "0 1 1 0 > # # # #"
    assert facts["copy"]["output"] == "* * * * 0 1 1 0 #"
    assert all(fact["families"][0] == "uniform" for fact in facts.values())


def test_a_line_a_task_in_a_pipe(cli: Cli) -> None:
    code, out, _ = cli("tasks")
    header, *rows = out.splitlines()
    assert code == 0
    assert header.split("  ")[0] == "task"
    assert [row.split()[0] for row in rows] == list(TASKS)
    assert all(" → * *" in row for row in rows)


def test_the_answer_below_the_question_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "160")
    assert run_tasks(TasksArgs()) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if "1 1 0 1 > #" in line)
    assert lines[at + 1].index("* * * * 1 #") == lines[at].index("1 1 0 1 > #")
