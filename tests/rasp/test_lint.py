"""`check_file` as such: what it reads, what it never runs, what it cannot read."""

from pathlib import Path

import cases
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import looped.rasp.programs
from looped.errors import InputError
from looped.rasp import RULES
from looped.rasp.lint import check_file, check_source

IMPORT = "from looped.rasp import *\n"
F = "def f(x):\n    return x\n"


def check(tmp_path: Path, text: str) -> list[tuple[str, int]]:
    path = tmp_path / "file.py"
    path.write_text(text)
    return [(violation.rule, violation.line) for violation in check_file(path).violations]


def test_the_shipped_files_are_legal() -> None:
    found = []
    for file in Path(looped.rasp.programs.__file__).parent.glob("[a-z]*.py"):
        report = check_file(file)
        assert report.legal, [str(violation) for violation in report.violations]
        found += [program.name for program in report.loaded.values()]
    assert sorted(found) == sorted([*looped.rasp.programs.PROGRAMS, *looped.rasp.programs.CHOMSKY])


@pytest.mark.parametrize(
    ("text", "rule", "line"),
    [
        ("import os\n" + F, "unknown-name", 1),
        ("from subprocess import run\n" + F, "unknown-name", 1),
        ("from . import x\n" + F, "unknown-name", 1),
        ("print('hello')\n" + F, "hidden-state", 1),
        ("X = open('/dev/null')\n" + F, "hidden-state", 1),
        ("X = ().__class__.__bases__[0]\n" + F, "hidden-state", 1),
        ("tuple = eval\n" + F, "hidden-state", 1),
        ("str = eval\nX = str('1')\n" + F, "hidden-state", 1),
        ("X = [y := 3]\n" + F, "hidden-state", 1),
        ("for i in range(3):\n    pass\n" + F, "hidden-state", 1),
        ("K = 1\nK = 2\n" + F, "hidden-state", 2),
        (F + F, "hidden-state", 3),
        (
            "from looped.rasp.sequence import unwrap as seen\ndef f(x):\n    return seen(x)\n",
            "unknown-name",
            3,
        ),
        ("from looped.rasp.reference import seen\ndef f(x):\n    return seen(x)\n", "unknown-name", 3),
        ("import looped.rasp.sequence as s\ndef f(x):\n    return s.unwrap(x)\n", "hidden-state", 3),
        ("class A:\n    pass\n" + F, "hidden-state", 1),
        ("while True:\n    pass\n" + F, "hidden-state", 1),
        ("def f(x: print('run')):\n    return x\n", "hidden-state", 1),
        ("def f(x) -> print('run'):\n    return x\n", "hidden-state", 1),
        ("def f(x, y=print('run')):\n    return x\n", "hidden-state", 1),
        ("@print\ndef f(x):\n    return x\n", "hidden-state", 1),
        ("X: print('run') = 1\n" + F, "hidden-state", 1),
        ("async def f(x):\n    return x\n" + F, "hidden-state", 1),
        ("def f(*x):\n    return x\n", "hidden-state", 1),
        ("def f(x):\n    return tok_map(x, lambda a: [a][0])\n", "indexing", 2),
        ("def f(x):\n    return tok_map(x, lambda a: open('file'))\n", "hidden-state", 2),
        ("def f(x):\n    return x / 2\n", "unknown-name", 2),
        ("def f(x):\n    return x ** 2\n", "unknown-name", 2),
        ("def f(x):\n    return nothing(x)\n", "unknown-name", 2),
        ("def f(x):\n    return x if True else x\n", "control-flow", 2),
        ("def f(x):\n    return (y := x)\n", "hidden-state", 2),
        ("def f(x):\n    return x is None\n", "control-flow", 2),
    ],
)
def test_what_does_not_belong_in_a_file(tmp_path: Path, text: str, rule: str, line: int) -> None:
    assert (rule, line + 1) in check(tmp_path, IMPORT + text)


def test_a_file_that_fails_the_reading_is_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    text = f"import pathlib\npathlib.Path({str(trap)!r}).touch()\n{F}"
    assert check(tmp_path, text)
    assert not trap.exists()


def test_the_main_block_is_left_alone(tmp_path: Path) -> None:
    assert check(tmp_path, f"{IMPORT}{F}\nif __name__ == '__main__':\n    print(f)\n") == []


def test_every_fault_of_a_file_is_named_in_order(tmp_path: Path) -> None:
    text = "def f(x):\n    if x:\n        return x\n    return x[0]\n\ndef g(x):\n    return not x\n"
    assert check(tmp_path, text) == [("control-flow", 2), ("indexing", 4), ("control-flow", 7)]


def test_what_only_a_trial_shows(tmp_path: Path) -> None:
    assert check(tmp_path, IMPORT + "def f(x):\n    return shift_right(x, -1)\n") == [("causality", 3)]
    assert check(tmp_path, IMPORT + "def f(x):\n    return tok_map(x, lambda a: 1 // a)\n") == [
        ("argument", 3)
    ]
    assert check(tmp_path, IMPORT + "def f(x):\n    return 3\n") == [("argument", 2)]
    assert check(tmp_path, "from looped.rasp import nothing\n" + F) == [("unknown-name", 1)]


def test_a_program_that_would_run_for_ever_is_not_tried(tmp_path: Path) -> None:
    text = (
        "from looped.rasp import Loop, Program\nfrom looped.vocab import Vocab\n"
        "def prepare(row):\n    return {'seq': row}\n"
        "def step(seq):\n    return {'seq': seq}\n"
        "def readout(seq):\n    return seq\n"
        "P = Program(name='p', vocab=Vocab(('0', '1')), prepare=prepare, readout=readout,\n"
        "    loops=(Loop(step, lambda n: 10 ** 9),), answer_size=lambda n: n, example='1 0')\n"
    )
    (found,) = check_file(_written(tmp_path, text)).violations
    assert "asks for 1000000000 steps" in found.detail


def _written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "written.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"def f(x:\n", r"written.py:1 is not valid Python"),
        (b"\xff\xfe", "cannot read .*written.py: it is not UTF-8 text"),
        (b"", "has no n-RASP-L program"),
        (b"K = 3\n", "has no n-RASP-L program"),
        (b"a\0b", "is not valid Python"),
        (b"f = " + b"(" * 5000 + b")" * 5000, "not valid Python|nested too deeply"),
        (b"x = " + b"-" * 100_000 + b"1", "not valid Python|nested too deeply"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "written.py"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        check_file(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*: No such file"):
        check_file(tmp_path / "nothing.py")
    with pytest.raises(InputError, match=r"is a folder, not a regular file"):
        check_file(tmp_path)


def _verdict(text: str) -> None:
    """A check ends in a report or in a sentence, whatever it is given."""
    try:
        report = check_source(text, "nowhere.py")
    except InputError:
        return
    assert all(violation.rule in RULES for violation in report.violations)


@given(st.text())
@settings(deadline=None, max_examples=300)
def test_arbitrary_text_never_crashes_the_check(text: str) -> None:
    _verdict(text)


LINES = sorted(
    {line for case in cases.ILLEGAL.values() for line in case.text.splitlines()} | {"    return x"}
)


@given(st.lists(st.sampled_from(LINES), max_size=8))
@settings(deadline=None, max_examples=300)
def test_shuffled_lines_never_crash_the_check(lines: list[str]) -> None:
    _verdict("\n".join([cases.HEADER, "def f(x):", "    y = x", *lines]))
