"""Hostile files are refused with line and rule, in less than two seconds, and nothing of them is executed."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hostile
import pytest

from looped.errors import InputError
from looped.rasp import lint, programs

Cli = Callable[..., tuple[int, str, str]]
TABLE = {**hostile.CODE, **hostile.RULES, **hostile.SLOW}
SECONDS = 2.0  # of processor time: other work on the machine does not count
WATCHED = ("exec", "open", "import", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.")
_events: list[str] | None = None  # what the interpreter of Python does, while it is watched


def _audit(event: str, args: tuple[object, ...]) -> None:
    if _events is not None and event.startswith(WATCHED):
        _events.append(f"{event} {args!r:.100}")


sys.addaudithook(_audit)  # cannot be removed; it does nothing unless `watched` is active


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collect every execution of code, import, opened file and system call."""
    global _events
    _events = []
    try:
        yield _events
    finally:
        _events = None


def written(folder: Path, text: str) -> tuple[Path, Path]:
    """The file with the text, and the trap that it must not create."""
    file, trap = folder / "mine.py", folder / "trap"
    file.write_text(hostile.HEADER + text.replace("TRAP", repr(str(trap))), encoding="utf-8")
    return file, trap


def line_of(text: str) -> int | None:
    lines = (hostile.HEADER + text).splitlines()
    return next((i for i, line in enumerate(lines, 1) if "# <-" in line), None)


def test_the_watch_sees_what_it_must(tmp_path: Path) -> None:
    file, trap = written(tmp_path, hostile.RUN + "\n")
    with watched() as events:
        exec(file.read_text())
    assert trap.exists()
    assert {event.split()[0] for event in events} >= {"open", "exec"}


def test_the_table_is_large_enough() -> None:
    assert len(TABLE) + len(hostile.UNREADABLE) >= 100


@pytest.mark.parametrize("name", TABLE)
def test_a_hostile_file_is_refused_and_not_executed(name: str, tmp_path: Path) -> None:
    case = TABLE[name]
    file, trap = written(tmp_path, case.text)
    text = file.read_text(encoding="utf-8")
    start = time.process_time()
    with watched() as events:
        report = lint.check_source(text, str(file))
    assert time.process_time() - start < SECONDS
    assert events == []
    assert not trap.exists()
    assert not report.legal
    assert all(violation.line > 0 for violation in report.violations)
    found = {(violation.rule, violation.line) for violation in report.violations}
    line = line_of(case.text)
    wanted = {(rule, line) for rule in case.rules.split()}
    if line is None:
        assert {rule for rule, _ in found} & set(case.rules.split()), found
    else:
        assert found & wanted, found


@pytest.mark.parametrize("name", hostile.UNREADABLE)
def test_an_unreadable_file_is_refused_in_a_sentence(name: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(hostile.UNREADABLE[name], encoding="utf-8")
    start = time.process_time()
    with pytest.raises(InputError) as refused:
        raise InputError(str(lint.check_file(file).violations[0]))  # a deep but readable file is refused too
    assert time.process_time() - start < SECONDS
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", hostile.CODE)
@pytest.mark.parametrize("command", ["check", "trace", "compile"])
def test_no_command_executes_a_file(name: str, command: str, tmp_path: Path, cli: Cli) -> None:
    file, trap = written(tmp_path, hostile.CODE[name].text)
    code, out, err = cli(command, file, *(["10"] if command == "trace" else []))
    assert not trap.exists()
    assert code == (1 if command == "check" else 2)
    assert f"{file}:" in (out or err)


def test_a_legal_file_is_not_executed_either(tmp_path: Path) -> None:
    text = (
        hostile.program(before="def twice(a):\n    return 2 * a % 3")
        + "if __name__ == '__main__':\n    BOOM\n"
    )
    file, _ = written(tmp_path, text)
    source = file.read_text()
    with watched() as events:
        report = lint.check_source(source, str(file))
    assert events == []
    assert report.legal


def test_a_file_called_main_is_not_run(tmp_path: Path) -> None:
    file, trap = tmp_path / "__main__.py", tmp_path / "trap"
    run = hostile.RUN.replace("TRAP", repr(str(trap)))
    file.write_text(hostile.HEADER + hostile.program() + f"if __name__ == '__main__':\n    {run}\n")
    assert programs.find(str(file)).name == "p"
    assert not trap.exists()


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    for path in ("/dev/zero", tmp_path / "pipe.py"):
        with pytest.raises(InputError, match="not a regular file"):
            lint.check_file(path)


def test_a_run_is_bounded_too(tmp_path: Path) -> None:
    file, _ = written(tmp_path, hostile.program("kqv(indices(row), indices(row), seq, leq)"))
    program = lint.load(file)
    with pytest.raises(
        InputError, match="budget: more work than one call of a function may take, which is 5000000"
    ):
        lint.run(program, program.row(["1", "0", "1"], size=20_000))
    steps, _ = written(tmp_path, hostile.program(times="lambda n: n ** 5"))
    program = lint.load(steps)
    with pytest.raises(InputError, match="budget: prepare: the program asks for 102400000 steps"):
        lint.run(program, program.row(["1"] * 40))
