"""docs/nrasp.md tells the truth: its programs are legal, its outputs are what is printed."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from looped.rasp import RULES
from looped.rasp.interpreter import NUMBER_FUNCTIONS
from looped.rasp.lint import check_file
from looped.rasp.programs import PROGRAMS
from looped.rasp.sequence import OPERATIONS
from looped.rasp.toplevel import MODULE_CALLS, VOCAB_FIELDS, TopLevel

GUIDE = (Path(__file__).parents[2] / "docs" / "nrasp.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.M | re.S)
TEXT = re.findall(r"^```text\n(.*?)^```$", GUIDE, flags=re.M | re.S)


def test_the_example_program_is_legal_and_prints_what_the_guide_says(tmp_path: Path) -> None:
    program, use, _ = PYTHON
    path = tmp_path / "any.py"
    path.write_text(program)
    assert check_file(path).legal
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program + use, str(path), "exec"), {})
    assert printed.getvalue() == TEXT[0]


def test_the_illegal_example_is_refused_as_the_guide_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: object
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two_back.py").write_text(PYTHON[2])
    code, out, _ = cli("check", "two_back.py")  # type: ignore[operator]
    assert (code, out) == (1, TEXT[1])


def test_the_grammar_names_every_function_and_operator() -> None:
    grammar = GUIDE.partition("## The grammar")[2].partition("## `looped check")[0]
    signs = "+ - * // % & | ^ ** << >> == != < <= > >="
    for name in (*MODULE_CALLS, *NUMBER_FUNCTIONS, *VOCAB_FIELDS, *TopLevel.methods, *signs.split()):
        assert name in grammar, name


def test_the_guide_names_every_rule_operation_and_program() -> None:
    for name in (*RULES, *OPERATIONS, *PROGRAMS):
        assert f"`{name}`" in GUIDE, name
