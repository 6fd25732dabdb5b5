"""`docs/adding_a_task.md` as it stands: its task, its registry line, its console."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from looped import InputError
from looped.tasks import TASKS, Task

PAGE = Path(__file__).parents[1] / "docs" / "adding_a_task.md"
Cli = Callable[..., tuple[int, str, str]]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    """The page's task, registered by the page's line."""
    source, imported, line = blocks("python")
    module = ModuleType("looped.tasks.digit_sum")
    exec(compile(source, str(PAGE), "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    names: dict[str, object] = {}
    exec(imported, names)
    for name, registered in eval("{" + line + "}", names).items():
        monkeypatch.setitem(TASKS, name, registered)
    return TASKS["digit_sum"]


def test_the_example_of_the_page(task: Task) -> None:
    assert task.solve(task.parse("274")) == ["3"]
    assert task.steps_of(task.parse(task.example)) == 3
    assert task.parse(" 2 7\n4") == ["2", "7", "4"]


@pytest.mark.parametrize("family", ["uniform", "repeated"])
@pytest.mark.parametrize("longest", [1, 8, 64, 2000])
def test_sampler_and_oracle_agree(task: Task, family: str, longest: int) -> None:
    generator = torch.Generator().manual_seed(longest)
    lengths = torch.randint(1, longest + 1, (64,), generator=generator)
    lengths[0] = longest
    problems = task.sample(lengths, generator, max_length=longest, family=family)
    rows = zip(problems.question.tolist(), lengths.tolist(), strict=True)
    expected = task.problems([task.vocab.decode(row[:n]) for row, n in rows])
    for field in vars(expected):
        assert torch.equal(getattr(problems, field), getattr(expected, field)), field


@pytest.mark.parametrize("text", ["", "27a", "١", "-3", "2.5", "1" * 5000])
def test_bad_questions_are_refused(task: Task, text: str) -> None:
    with pytest.raises(InputError):
        task.parse(text)


def test_the_console_of_the_page(task: Task, cli: Cli) -> None:
    shown = [block.split("\n", 1) for block in blocks("console")]
    assert shown
    for command, expected in shown:
        assert cli(*command.removeprefix("$ looped ").split()) == (0, expected, "")


def test_the_commands_know_it(task: Task, cli: Cli) -> None:
    code, out, _ = cli("tasks", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["task"] == "digit_sum"
    code, _, err = cli("sample", "digit_sum", "--family", "carry")
    assert (code, "digit_sum has no input family 'carry'; it has uniform, repeated" in err) == (2, True)


def test_the_task_does_not_live_in_the_package() -> None:
    assert "digit_sum" not in TASKS
    assert not (PAGE.parents[1] / "looped" / "tasks" / "digit_sum.py").exists()


def test_the_explorer_does_without_its_program(task: Task) -> None:
    """A task may have no n-RASP-L program yet; then there is nothing to compile."""
    from looped.explorer import models

    assert "digit_sum-compiled" not in list(models.all_models(shipped=()))


def test_no_program_is_offered_where_there_is_none(task: Task, cli: Cli) -> None:
    code, _, err = cli("solve", "digit_sum", "274")
    assert code == 2
    assert err == "looped: no trained digit_sum model is shipped with this version: give one with --model\n"
