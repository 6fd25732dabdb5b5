"""`looped trace`: variable × step for people and for scripts, and a sentence for a bad question."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from looped.tasks import TASKS

Cli = Callable[..., tuple[int, str, str]]


def test_a_table_for_people(cli: Cli) -> None:
    assert cli("trace", "copy", "10") == (
        0,
        "copy 10: 2 steps, answer 10\n\n"
        "step  variable  1 0 > # #\n"
        "   0  seq       1 0 # # #\n"
        "   1  seq       · 1 0 # #\n"
        "   2  seq       · · 1 0 #\n"
        " out            * * 1 0 #\n",
        "",
    )


def test_program_and_compiled_model_side_by_side(cli: Cli) -> None:
    assert cli("trace", "copy", "10", "--model", "compiled") == (
        0,
        "copy 10: 2 steps, answer 10\n\n"
        "step  variable  1 0 > # #\n"
        "   0  seq       1 0 # # #\n"
        "   1  seq       · 1 0 # #\n"
        "      program   * * 0 # #\n"
        "      compiled  * * 0 # #\n"
        "   2  seq       · · 1 0 #\n"
        "      program   * * 1 0 #\n"
        "      compiled  * * 1 0 #\n"
        " out            * * 1 0 #\n\n"
        "compiled: right; it says what the program says after 2 of 2 steps and holds the program's variables after 2\n",
        "",
    )


def test_a_shipped_model_beside_them(cli: Cli) -> None:
    code, out, _ = cli("trace", "copy", "1011", "--model", "fast", "--json")
    compiled, trained = json.loads(out)["models"]
    assert code == 0
    assert (compiled["model"], trained["model"]) == ("compiled", "copy-fast")
    assert compiled["held"] == compiled["agreed"] == [1, 2, 3, 4]
    assert compiled["steps"][0]["variables"] == {"seq": [-1, 1, 0, 1, 1, 3, 3, 3, 3]}
    assert trained["correct"]
    assert trained["steps"][-1] == {"step": 4, "output": ["1", "0", "1", "1", "#"]}
    _, out, _ = cli("trace", "copy", "1011", "--model", "copy-fast")
    assert "copy-fast  * * * * 1 0 1 1 #" in out
    assert out.splitlines()[-1].startswith("copy-fast: right; it says what the program says after ")


def test_a_model_is_shown_to_its_own_end(cli: Cli) -> None:
    _, out, _ = cli("trace", "addition", "10+11", "--model", "long")
    lines = [line.split() for line in out.splitlines()]
    assert ["5", "addition-long", *"*****101#"] in lines, "the program takes three steps, the model five"
    assert [line[0] for line in lines if len(line) > 1 and line[1] == "addition-long"] == ["4", "5"]


def test_a_model_of_another_task(cli: Cli) -> None:
    code, out, err = cli("trace", "parity", "10", "--model", "copy-compiled")
    assert (code, out) == (2, "")
    assert err == "looped: copy-compiled is a model for copy, not for parity\n"


@pytest.mark.parametrize("name", TASKS)
def test_json_has_every_step_and_the_oracle_s_answer(name: str, cli: Cli) -> None:
    task = TASKS[name]
    code, out, err = cli("trace", name, task.example, "--json")
    fact = json.loads(out)
    assert (code, err) == (0, "")
    assert list(fact) == ["task", "question", "steps", "answer", "trace"]
    question = task.parse(task.example)
    assert (fact["task"], fact["question"]) == (name, task.format_question(question))
    assert fact["answer"] == task.format_answer(task.solve(question))
    assert [entry["step"] for entry in fact["trace"]][-1] == fact["steps"]
    assert {tuple(entry) for entry in fact["trace"]} == {("step", "name", "values")}
    assert len({len(entry["values"]) for entry in fact["trace"]}) == 1


def test_a_thousand_symbols(cli: Cli) -> None:
    question = "0110" * 250
    code, out, _ = cli("trace", "copy", question)
    assert code == 0
    assert max(map(len, out.splitlines())) < 120
    assert "1000 steps" in out
    _, out, _ = cli("trace", "copy", question, "--json")
    fact = json.loads(out)
    assert (fact["steps"], fact["answer"], len(fact["trace"])) == (1000, question, 1001)


def test_a_program_without_a_task(cli: Cli) -> None:
    _, out, _ = cli("trace", "long-multiplication", "110*101", "--json")
    assert json.loads(out)["answer"] == "011110"


def test_the_empty_answer_is_said(cli: Cli) -> None:
    assert cli("trace", "binary_sum", "00")[1].startswith("binary_sum 00: 2 steps, answer empty\n")


@pytest.mark.parametrize(
    ("task", "question", "sentence"),
    [
        ("copy", "01a", "looped: "),
        ("copy", "", "looped: "),
        ("addition", "11+1+1", "looped: "),
        ("unique_set", "1 77", "looped: "),
        ("nothing", "1", "looped: unknown task 'nothing'; there are programs for parity, copy"),
        ("long_multiplication", "12*1", "looped: a question of long_multiplication looks like 110*101"),
        ("long_multiplication", "", "looped: a question of long_multiplication looks like 110*101"),
        ("long_multiplication", "11", "looped: long_multiplication: a question looks like '1 1 0 × 1 0 1'"),
        ("copy", "1" * 5000, "looped: "),
        ("long_multiplication", "1" * 9000, "looped: a question of long_multiplication looks like"),
    ],
)
def test_a_bad_question(task: str, question: str, sentence: str, cli: Cli) -> None:
    code, out, err = cli("trace", task, question)
    assert (code, out) == (2, "")
    assert err.startswith(sentence)
    assert err.count("\n") == 1
    assert len(err) < 300


def test_a_trace_too_large_for_json(cli: Cli) -> None:
    question = "11*" + "1" * 4000
    code, out, err = cli("trace", "multiplication", question, "--json")
    assert (code, out) == (2, "")
    assert "leave out --json" in err


SWAP = """from looped.rasp import Loop, Program, Seq, State, full, has_seen, where
from looped.vocab import Vocab

VOCAB = Vocab(("a", "b"))
EOQ, EOS = VOCAB.eoq, VOCAB.eos


def prepare(row: Seq) -> State:
    return {"seq": row}


def step(seq: Seq, row: Seq) -> State:
    return {"seq": where(has_seen(row, full(row, EOQ)), EOS, 1 - seq)}


def readout(seq: Seq) -> Seq:
    return seq


def times(n):
    return 1


PROGRAMS = [
    Program("swap", VOCAB, prepare, (Loop(step, times),), readout, times, "a b"),
    Program("stay", VOCAB, prepare, (), readout, times, "a b"),
]
"""


def test_the_program_of_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SWAP)
    code, out, err = cli("trace", file, "aab", "--name", "swap")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "swap aab: 1 steps, answer empty"
    assert "   1  seq       1 1 0 3 3" in out.splitlines()
    assert cli("trace", file, "a a b", "--name", "swap") == (code, out, err)
    assert (
        cli("trace", file, "ab")[2] == f"looped: {file} has the programs swap, stay; pick one with --name\n"
    )
    assert "compile the file instead" in cli("trace", file, "ab", "--name", "stay", "--model", "compiled")[2]


def test_an_illegal_file_is_not_traced(cli: Cli, tmp_path: Path) -> None:
    file, trap = tmp_path / "mine.py", tmp_path / "trap"
    file.write_text(SWAP + f"open({str(trap)!r}, 'w')\n")
    code, out, err = cli("trace", file, "ab", "--name", "swap")
    assert (code, out) == (2, "")
    assert err.startswith(f"looped: {file}:{len(SWAP.splitlines()) + 1}: hidden-state: ")
    assert not trap.exists()
