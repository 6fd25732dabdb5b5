"""Commands, models and figures answer as recorded; `python -m tests.golden.make` records them again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import matplotlib
import pytest
from golden import COMMAND_CASES, ERROR_CASES, SLOW_CASES, Case, run, workplace

DRAWN_WITH = "3.11"  # the matplotlib of constraints.txt, which the checksums are of


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden.HERE / f"{name}.json").read_text(encoding="utf-8"))
    return found


def plain(value: object) -> object:
    """The same after a trip through JSON."""
    return json.loads(json.dumps(value))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the commands of this file share."""
    with workplace(tmp_path_factory.mktemp("golden")) as path:
        yield path


def compare(name: str, cases: tuple[Case, ...], folder: Path) -> None:
    known = recorded(name)
    assert [each.name for each in cases] == list(known), "cases were added: python -m tests.golden.make"
    odd = {each.name: found for each in cases if (found := plain(run(each, folder))) != known[each.name]}
    assert {name: known[name] for name in odd} == odd


def test_every_command_prints_what_it_printed(folder: Path) -> None:
    compare("commands", COMMAND_CASES, folder)
    if matplotlib.__version__.startswith(DRAWN_WITH):
        assert golden.figures(folder) == recorded("figures")


def test_bad_input_gets_the_sentence_it_got(folder: Path) -> None:
    compare("errors", ERROR_CASES, folder)


@pytest.mark.slow
def test_slow_commands_print_what_they_printed(folder: Path) -> None:
    shutil.rmtree(folder / "runs", ignore_errors=True)
    compare("slow", SLOW_CASES, folder)


def test_every_shipped_model_answers_as_it_did() -> None:
    assert plain(golden.answers()) == recorded("answers")


def test_every_command_has_the_options_it_had() -> None:
    assert plain(golden.helps()) == recorded("help")
