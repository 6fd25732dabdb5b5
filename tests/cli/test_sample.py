"""`looped sample`: rows in the paper's notation, repeatable, refused in a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from looped.tasks import TASKS

Cli = Callable[..., tuple[int, str, str]]
KEYS = ["task", "length", "steps", "question", "answer", "input", "output"]


@pytest.mark.parametrize("name", TASKS)
def test_json_lines_hold_what_the_oracle_says(name: str, cli: Cli) -> None:
    code, out, err = cli("sample", name, "--length", 5, "--count", 20, "--seed", 3, "--json")
    facts = [json.loads(line) for line in out.splitlines()]
    assert (code, err, len(facts)) == (0, "", 20)
    task = TASKS[name]
    for fact in facts:
        assert list(fact) == KEYS
        question = task.parse(fact["question"])
        answer = task.solve(question)
        assert (fact["task"], fact["length"]) == (name, 5)
        assert fact["steps"] == task.steps_of(question)
        assert fact["answer"] == task.format_answer(answer)
        after = task.row_size(5) - len(question)
        assert fact["input"].split() == [*question, ">", *["#"] * (after - 1)]
        assert fact["output"].split() == [*["*"] * len(question), *answer, *["#"] * (after - len(answer))]


def test_rows_for_people(cli: Cli) -> None:
    assert cli("sample", "parity", "--length", 3, "--count", 2, "--family", "ones") == (
        0,
        "1 1 1 > # → * * * 1 #\n" * 2,
        "",
    )


def test_both_kinds_of_multiplication_are_drawn(cli: Cli) -> None:
    _, out, _ = cli("sample", "multiplication", "--length", 4, "--count", 50, "--json")
    assert {json.loads(line)["steps"] for line in out.splitlines()} == {4, 8}


def test_fewer_rows_are_the_first_of_more(cli: Cli) -> None:
    few = cli("sample", "addition", "--count", 3, "--seed", 9)[1]
    many = cli("sample", "addition", "--count", 600, "--seed", 9)[1]
    assert many.startswith(few)
    assert len(many.splitlines()) == 600
    assert len(set(many.splitlines())) > 550
    assert cli("sample", "addition", "--count", 3, "--seed", 10)[1] != few


def test_a_long_row(cli: Cli) -> None:
    _, out, _ = cli("sample", "binary-sum", "--length", 2000, "--count", 1, "--json")
    fact = json.loads(out)
    assert fact["answer"] == f"{fact['question'].count('1'):b}"[::-1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sorting"], "unknown task 'sorting'; the tasks are parity, copy,"),
        (["copy", "--length", "0"], "length must be between 1 and 4096, not 0"),
        (["copy", "--length", "1000000"], "length must be between 1 and 4096, not 1000000"),
        (["copy", "--count", "0"], "--count must be between 1 and 100000, not 0"),
        (["copy", "--count", "100001"], "--count must be between 1 and 100000, not 100001"),
        (["copy", "--seed", "-1"], "--seed must be between 0 and"),
        (["copy", "--seed", str(2**64)], "--seed must be between 0 and"),
        (["copy", "--family", "carry"], "copy has no input distribution 'carry'"),
        (["copy", "--length", "ten"], "--length"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], sentence: str, cli: Cli) -> None:
    code, out, err = cli("sample", *words)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
