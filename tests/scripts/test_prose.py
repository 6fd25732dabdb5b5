"""The prose check finds private words, misspellings and undefined terms, and nothing in code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import prose
from scripts.prose import Text


def words(text: str) -> list[str]:
    return [line.split('"')[1] for line in prose.banned(Text("page.md", 1, text))]


def test_the_project_has_none() -> None:
    assert list(prose.problems()) == []


@pytest.mark.parametrize(
    "text",
    [
        "The length ladder of copy.", "in every input family", "Nobody knows.", "measured without mercy",
        "the mark that ends the question", "64 problems a seed", "one a line", "a line a task", "1.5 ms a step",
    ],
)  # fmt: skip
def test_words_that_are_not_to_be_written(text: str) -> None:
    assert len(words(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Run `looped bench ladder`.",
        "--family zeros, dwell=3 and results/ladder-copy.json",
        "```sh\nlooped bench ladder RUN\n```",
        "[how far](ladder.md)",
        "$ looped bench ladder",
        "Lines mark where each rule stops; a test runs it.",
        "how many steps a problem gets",
    ],
)
def test_code_and_ordinary_english(text: str) -> None:
    assert words(text) == []


def test_a_find_has_its_line() -> None:
    (found,) = prose.banned(Text("page.md", 5, "One.\n```\ncode\n```\nThe shelf.\n"))
    assert found == 'page.md:9: "shelf": write registry'


def test_what_is_read_of_code() -> None:
    source = '''"""Module."""
class Args:
    """Class."""
    length: int = 3
    """Help."""
    stop: Annotated[str, Option("RULE", default="(shown)")] = ""
COMMANDS: dict = {"demo": ("looped.cli.demo", "summary")}
raise InputError(f"there is no {name} here")
print("not read")
'''
    found = {piece.text for piece in prose.sentences_of_code(source, "x.py")}
    assert {"Module.", "Class.", "Help.", "(shown)", "summary", "there is no ", " here"} <= found
    assert "not read" not in found


GLOSSARY = "### Loop step\n\nOne.\n\n### Full-output prediction (FOP)\n\nAll.\n\n### T(n)\n\nSteps.\n"


@pytest.mark.parametrize(
    ("page", "missing"),
    [
        ("A loop\nstep.", ["Loop step"]),
        ("A *loop step* is one. Two loop steps.", []),
        ("A [loop step](docs/glossary.md#loop-step).", []),
        ("A [loop step](https://example.org) and FOP.", ["FOP"]),
        ("Steps are T(n). `FOP` is code. *T(n)* comes too late.", ["T(n)"]),
        ("Full-output prediction", ["Full-output prediction"]),
    ],
)
def test_terms_are_defined_at_their_first_use(page: str, missing: list[str]) -> None:
    terms = prose.terms_of(GLOSSARY)
    assert list(terms) == ["Loop step", "Full-output prediction", "FOP", "T(n)"]
    found = [line.split('"')[1] for line in prose.undefined(Text("README.md", 1, page), terms)]
    assert found == missing


def test_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("docs", *prose.CODE):
        (tmp_path / name).mkdir()
    for name in ("CONTRIBUTING.md", "Makefile"):
        (tmp_path / name).write_text("right\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("This is teh end.\n", encoding="utf-8")
    (found,) = prose.misspelled(tmp_path)
    assert "README.md:1: teh ==> the" in found


def test_an_absent_spell_checker_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 1, "", "No module named codespell_lib\n")
    monkeypatch.setattr(prose.subprocess, "run", lambda *_, **__: answer)
    assert prose.misspelled() == ["No module named codespell_lib"]
