"""Traces: the paper's illustration for n = 2, long rows cut for people, JSON for scripts."""

import json

import pytest

from looped.rasp.program import run
from looped.rasp.programs import PROGRAMS, get
from looped.rasp.trace import Trace, trace

GOLDEN = {
    # Copy: n iterations of shifting.
    ("copy", "1 0"): """
step  variable  1 0 > # #
   0  seq       1 0 # # #
   1  seq       · 1 0 # #
   2  seq       · · 1 0 #
 out            * * 1 0 #""",
    # Parity: n iterations of shifting and exclusive or.
    ("parity", "1 1"): """
step  variable  1 1 > #
   0  seq       1 1 0 0
      answer    0 0 0 0
   1  seq       0 1 1 0
      answer    0 1 1 0
   2  seq       0 0 1 1
      answer    0 1 0 1
 out            * * 0 #""",
    # Addition: n + 1 iterations of shifted exclusive or, and of and.
    ("addition", "1 0 + 1 1"): """
step  variable  1 0 + 1 1 > # # #
   0  digits    · · 0 1 1 # # # #
      carry     0 0 0 1 0 0 0 0 0
   1  digits    · · · 0 0 1 # # #
      carry     0 0 0 1 0 0 0 0 0
   2  digits    · · · · 1 0 1 # #
      carry     0 0 0 0 0 0 0 0 0
   3  digits    · · · · · 1 0 1 #
      carry     0 0 0 0 0 0 0 0 0
 out            * * * * * 1 0 1 #""",
    ("binary_sum", "1 1"): """
step  variable  1 1 > # #
   0  seq       1 1 0 0 0
      count     # # # # #
   1  seq       0 1 1 0 0
      count     # # 1 # #
   2  seq       0 0 1 1 0
      count     # # 0 1 #
 out            * * 0 1 #""",
    ("unique_set", "14 2 14"): """
step  variable  14  2 14  >  #  #  #
   0  seq       14  2  ○  #  #  #  #
   1  seq        · 14  2  #  #  #  #
   2  seq        ·  · 14  2  #  #  #
   3  seq        ·  ·  · 14  2  #  #
 out             *  *  * 14  2  #  #""",
}


def traced(name: str, question: str) -> Trace:
    program = get(name)
    return trace(program, program.row(question.split()))


@pytest.mark.parametrize(("name", "question"), GOLDEN)
def test_the_illustration(name: str, question: str) -> None:
    assert "\n" + traced(name, question).table() == GOLDEN[name, question]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_ends_with_what_a_run_gives(name: str) -> None:
    program = get(name)
    done = traced(name, program.example)
    assert done.output.tolist() == run(program, done.row).tolist()
    assert done.steps == program.total(program.sizes(done.row.tolist()))
    assert {entry.step for entry in done.entries} == set(range(done.steps + 1))
    assert len(done.entries) == (done.steps + 1) * len(done.variables)


def test_json_has_names_for_tokens_and_numbers_for_numbers() -> None:
    assert traced("copy", "1 0").json()[1] == {"step": 1, "name": "seq", "values": ["·", "1", "0", "#", "#"]}
    entries = json.loads(json.dumps(traced("addition", "1 0 + 1 1").json()))
    assert entries[1] == {"step": 0, "name": "carry", "values": [0, 0, 0, 1, 0, 0, 0, 0, 0]}


def test_a_grid_for_figures() -> None:
    grid = traced("copy", "1 0").grid("seq")
    assert grid == [["1", "0", "#", "#", "#"], ["·", "1", "0", "#", "#"], ["·", "·", "1", "0", "#"]]


def test_a_long_table_leaves_out_the_middle() -> None:
    lines = traced("copy", " ".join("10" * 500)).table().splitlines()
    assert len(lines) < 25
    assert max(map(len, lines)) < 110
    assert lines[0].count("…") == 2
    assert any(line.strip() == "…" for line in lines)
    assert lines[-2].startswith("1000")
    assert " > " in lines[0]


def test_the_answer() -> None:
    assert traced("binary_sum", "0 0").answer == []
    assert traced("long_multiplication", "1 1 1 × 1 1 1").answer == list(f"{49:06b}"[::-1])
    # An answer that fills the row to its end.
    copy = get("copy")
    assert trace(copy, copy.row(["1", "0"], size=4)).answer == ["1", "0"]
