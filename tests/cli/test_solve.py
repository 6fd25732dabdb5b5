"""`looped solve`: one question, many from a pipe or a file, steps shown, and a sentence for what is wrong."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from looped import tasks
from looped.cli.solve import print_steps
from looped.solve import load
from looped.solve.solver import steps

Cli = Callable[..., tuple[int, str, str]]


def test_questions_from_stdin(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1101\n\n0\n  111  "))
    code, out, _ = cli("solve", "parity", "--model", "compiled")
    assert code == 0
    assert out.splitlines() == [
        "1101: 1 = odd, after 4 steps by halt (right; parity-compiled)",
        "0: 0 = even, after 1 step by halt (right; parity-compiled)",
        "111: 1 = odd, after 3 steps by halt (right; parity-compiled)",
    ]


@pytest.mark.parametrize(
    ("task", "question", "line", "note"),
    [
        ("addition", "101+11", "101+011: 1000 = 8, after 4 steps", "asked as 101+011"),
        ("multiplication", "11*101", "11*101: 11110 = 15, least significant first, after 6 steps", ""),
        ("binary_sum", "0110", "0110: 01 = 2 ones, least significant first, after 4 steps", ""),
        ("unique_set", "4 4 2", "4 4 2: 4 2, after 3 steps", ""),
    ],
)
def test_an_answer_says_what_it_stands_for(cli: Cli, task: str, question: str, line: str, note: str) -> None:
    code, out, err = cli("solve", task, question, "--model", "compiled")
    assert code == 0
    assert out.startswith(line)
    assert err.startswith(note)
    assert bool(err) == bool(note)


def test_two_right_answers_as_json(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1011+0110\n1+1\n"))
    code, out, err = cli("solve", "addition", "--model", "compiled", "--json")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [(f["question"], f["answer"], f["correct"]) for f in found] == [
        ("1011+0110", "10001", True),
        ("1+1", "10", True),
    ]
    assert list(found[0]) == [
        "task",
        "question",
        "answer",
        "steps",
        "stop",
        "confidence",
        "model",
        "expected",
        "correct",
    ]
    assert {f["model"] for f in found} == {"addition-compiled"}


def test_questions_from_a_file_keep_their_order(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    texts = ["1" * n for n in (7, 1, 9, 2, 2, 40, 3)]
    file.write_text("\n".join(texts))
    code, out, _ = cli("solve", "copy", "--model", "compiled", "--file", file, "--json")
    assert code == 0
    assert [json.loads(line)["answer"] for line in out.splitlines()] == texts


def test_a_pipe_is_answered_before_it_ends() -> None:
    """The first answer comes while the writer still waits: nothing is held back to fill a batch."""
    words = [sys.executable, "-m", "looped", "solve", "parity", "--model", "compiled", "--device", "cpu"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for question, answer in (("1101", "1"), ("11", "0")):
            process.stdin.write(question + "\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith(f"{question}: {answer} =")
        process.stdin.close()
        assert process.wait() == 0


def test_what_stands_before_a_bad_line_is_answered(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("11\n\n12\n1\n"))
    code, out, err = cli("solve", "parity", "--model", "compiled")
    assert (code, out) == (2, "11: 0 = even, after 2 steps by halt (right; parity-compiled)\n")
    assert err.startswith("looped: line 3: ")
    assert err.count("\n") == 1


def test_the_answer_after_every_step(cli: Cli) -> None:
    _, out, _ = cli("solve", "addition", "10+11", "--model", "compiled", "--show-steps")
    assert out.splitlines()[-1] == "10+11: 101 = 5, after 3 steps by halt (right; addition-compiled)"
    cells = [line.split() for line in out.splitlines()[:-1]]
    assert cells[0] == ["step", "answer", "row", "least", "sure", "changed", "halted"]
    assert [line[:2] for line in cells[1:]] == [["1", "1"], ["2", "01"], ["3", "101"]]
    assert cells[3][2:7] == ["1", "0", "1", "#", "#"]
    assert [line[-1] for line in cells[1:]] == ["0.0000", "0.0000", "1.0000"], "why it stopped"


def test_steps_as_json(cli: Cli) -> None:
    _, out, _ = cli("solve", "parity", "110", "--model", "compiled", "--show-steps", "--json")
    trace = json.loads(out)["trace"]
    assert [step["step"] for step in trace] == [1, 2, 3]
    assert [step["answer"] for step in trace] == ["0", "1", "0"]
    assert set(trace[0]) == {"step", "answer", "row", "confidence", "changed", "surprise", "halted"}
    fast = cli("solve", "parity", "110", "--model", "fast", "--show-steps", "--json").out
    assert "halted" not in json.loads(fast)["trace"][0], "it has no halting head"


def test_steps_on_a_terminal_are_coloured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    task, solver = tasks.get("parity"), load("parity-compiled")
    print_steps(task, ["1", "0"], list(steps(solver, ["1", "0"])))
    drawn = capsys.readouterr().out
    assert "\x1b[" in drawn
    assert "least sure" in drawn


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("solve", "parity", "1", "--model", "nothing"), "there is no model 'nothing'"),
        (("solve", "parity", "1", "--model", "copy-compiled"), "is a model for copy, not for parity"),
        (("solve", "parity", "1", "--model", "compiled", "--file", "x"), "a question or --file, not both"),
        (
            ("solve", "parity", "--model", "compiled", "--file", "no/such"),
            "No such file or directory: no/such",
        ),
        (("solve", "parity", "1", "--model", "compiled", "--stop", "soon"), "unknown stopping rule 'soon'"),
        (("solve", "sorting", "1"), "unknown task 'sorting'"),
    ],
)
def test_one_sentence_for_what_is_wrong(words: tuple[str, ...], sentence: str, cli: Cli) -> None:
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_without_a_shipped_model_the_sentence_says_what_to_do(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("looped.zoo.FOLDER", tmp_path)
    code, _, err = cli("solve", "parity", "1")
    assert code == 2
    assert "no trained parity model is shipped with this version" in err
    assert "--model compiled" in err


def test_a_file_from_windows(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_bytes(b"\xef\xbb\xbf11\r\n10\r\n")
    code, out, _ = cli("solve", "parity", "--file", file, "--model", "compiled", "--json")
    assert code == 0
    assert [json.loads(line)["answer"] for line in out.splitlines()] == ["0", "1"]


def test_a_byte_that_is_no_text_is_named_with_its_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "questions.txt"
    file.write_bytes(b"11\n10\n\xff\n1\n")
    code, out, err = cli("solve", "parity", "--file", file, "--model", "compiled")
    assert (code, len(out.splitlines())) == (2, 2), "what stood before it is answered"
    assert err.startswith("looped: line 3: ")


def test_there_may_be_nothing_to_read_from(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as under a daemon
    code, out, err = cli("solve", "parity", "--model", "compiled")
    assert (code, out) == (2, "")
    assert err == "looped: there is nothing to read questions from: name one, or a --file\n"


def test_a_model_without_a_name(cli: Cli) -> None:
    code, out, err = cli("solve", "parity", "11", "--model", "")
    assert (code, out) == (2, "")
    assert err.startswith("looped: a model has a name: give ")
