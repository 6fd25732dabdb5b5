from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import looped.zoo as zoo
from looped import solve, tasks
from looped.errors import InputError
from looped.explorer import queries
from looped.explorer.queries import ModelRegistry
from looped.explorer.security import Limits
from looped.tasks import Task


def test_every_task_has_a_model_to_ask_even_where_none_is_shipped(registry: ModelRegistry) -> None:
    assert {registry[key].solver.task.name for key in registry} == set(tasks.TASKS)
    assert registry.problems == ()


def test_a_given_run_comes_first_with_what_it_measured_last(registry: ModelRegistry) -> None:
    first = registry[next(iter(registry))]
    told = first.describe()
    assert (first.key, told["task"], told["trained"], told["trained_steps"]) == (
        "my-copy:seed-0",
        "copy",
        10,
        10,
    )
    assert told["trained_row"] == 24
    assert told["rows"] == [
        {"length": 10, "stop": "oracle", "accuracy": 0.1, "samples": 64},
        {"length": 20, "stop": "oracle", "accuracy": 0.05, "samples": 64},
    ], "the last measurement of a length counts, and only of uniform questions"


@pytest.mark.parametrize(
    ("model", "steps"), [("copy-long", 19), ("addition-long", 39), ("reverse_string-chomsky", 28)]
)
def test_the_longest_loop_of_training_is_that_of_its_own_rule(model: str, steps: int) -> None:
    assert queries.named_model(model).trained_steps == steps, "T(n), q and 2q steps"


def test_no_path_of_this_machine_is_told(registry: ModelRegistry, untrained: Path) -> None:
    assert str(untrained.parent) not in repr([registry[key].describe() for key in registry])


def test_a_compiled_program_was_never_trained(registry: ModelRegistry) -> None:
    told = registry["addition-compiled"].describe()
    assert (told["method"], told["trained"], told["rows"], told["rule"]) == ("compiled", None, [], "halt")


def test_the_longest_question_keeps_row_and_steps_within_bounds(registry: ModelRegistry) -> None:
    model = registry["multiplication-compiled"]
    limits = Limits(length=100, row=200, steps=1000)
    assert model.row_size(model.longest(limits)) <= 200 < model.row_size(model.longest(limits) + 1)
    assert model.longest(Limits(length=100, row=2000, steps=50)) == 25, "two digits times 25 take 50 steps"
    assert model.longest(Limits(length=7)) == 7


def test_the_first_model_of_a_task_is_the_one_that_load_gives() -> None:
    stocked = queries.all_models()
    for task in tasks.TASKS:
        first = next(key for key in stocked if stocked[key].solver.task.name == task)
        assert first == solve.load(task).name


def test_a_task_is_described_with_a_worked_example() -> None:
    told = queries.describe_task(tasks.get("multiplication"))
    assert (told["example"], told["solved"], told["meaning"]) == (
        "11*110",
        "01001",
        "18, least significant first",
    )


def test_a_sentence_of_a_task_of_ones_own_is_told_without_its_full_stop() -> None:
    class Last(Task):
        """The last bit."""

        symbols = "01"

        def solve(self, question: list[str]) -> list[str]:
            return question[-1:]

    told = queries.describe_task(Last())
    assert (told["summary"], told["solved"]) == ("The last bit", str(told["example"])[-1])


def test_every_shipped_model_can_be_asked_and_tells_what_was_measured() -> None:
    stocked = queries.all_models()
    assert stocked.problems == ()
    for name in zoo.names():
        told = stocked[name].describe()
        assert told["rows"]
        assert told["trained"] < told["longest"]
        assert str(Path.cwd()) not in repr(told)


def test_a_shipped_file_that_is_damaged_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy-x.safetensors").write_bytes(b"nothing")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path)
    stocked = queries.all_models()
    assert "copy-x" not in stocked
    assert len(stocked.problems) == 1


def test_two_models_of_one_name_are_refused(registry: ModelRegistry) -> None:
    model = registry["copy-compiled"]
    with pytest.raises(InputError, match="two models are named 'copy-compiled'"):
        ModelRegistry([model, model])


def test_a_given_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="damaged"):
        queries.all_models([tmp_path / "model.safetensors"])
    with pytest.raises(InputError, match="there is no model"):
        queries.all_models([tmp_path / "absent.safetensors"])


def test_a_file_of_any_name_goes_by_it(untrained: Path, tmp_path: Path) -> None:
    shutil.copy(untrained / "seed-0.safetensors", tmp_path / "mine.safetensors")
    assert next(iter(queries.all_models([tmp_path / "mine.safetensors"]))) == "mine"
