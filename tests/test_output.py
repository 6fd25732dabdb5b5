"""What a notebook shows: well-formed HTML with everything in it that was typed or read, and none of it as markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import looped
import looped.zoo as zoo
from looped.api import ResultRows
from looped.output import Cell, html_facts, html_table
from looped.rasp import programs
from looped.rasp.trace import trace
from looped.solve.solver import Answer, Answers, Step, StepSequence
from looped.training.trainer import Summary

EVIL = "<script>alert('x')</script>\""


class Balanced(HTMLParser):
    """Reads HTML; complains of an end that fits no beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(markup: str) -> str:
    """The text of HTML that a notebook may show."""
    parser = Balanced()
    parser.feed(markup)
    parser.close()
    assert parser.open == []
    assert parser.tags <= {"table", "thead", "tbody", "tr", "th", "td", "p", "code"}
    return " ".join(parser.text)


def test_a_table_escapes_heads_cells_notes_and_captions() -> None:
    text = read(html_table([EVIL], [[EVIL, Cell(EVIL, note=EVIL)]], EVIL) + html_facts({EVIL: EVIL}))
    assert text.count(EVIL) == 6


def test_a_cell_is_coloured_no_stronger_than_text_can_be_read_on() -> None:
    assert "rgba(0,114,178,0.45)" in Cell("1", fill=1.0).html()
    assert "rgba" not in Cell("1").html()
    assert "font-weight:bold" in Cell("1", bold=True).html()
    assert 'title="99 %"' in Cell("1", note="99 %").html()


def test_answers_say_what_they_stand_for() -> None:
    found = Answers([Answer("11*101", "11110", 6, "halt", 1.0, "11110", "15, least significant first")])
    text = read(found._repr_html_())
    assert "11110 = 15, least significant first" in text
    assert "halt" in text
    assert EVIL in read(Answer(EVIL, EVIL, 1, EVIL, 0.5, "0")._repr_html_())


def test_steps_are_shown_as_a_grid_and_kept() -> None:
    steps = looped.load("copy-compiled").steps("101")
    assert next(steps).number == 1
    markup = steps._repr_html_()
    assert markup.count("<tr>") == 1 + 3
    assert "1 0 1" in " ".join(read(markup).split())
    assert [step.number for step in steps] == [1, 2, 3], "`for` begins with the first"
    assert next(steps).number == 2, "`next` goes on"


def test_a_long_loop_is_shown_in_part() -> None:
    def step(number: int) -> Step:
        return Step(number, EVIL, (EVIL,) * 100, (0.5,) * 100, (True,) * 100, 0.1)

    text = read(StepSequence(iter(map(step, range(1, 101))))._repr_html_())
    assert "40 steps of the middle are left out" in text
    assert text.count(EVIL) == 60 * (60 + 1)


def test_a_trace_is_shown_as_a_table() -> None:
    program = programs.get("copy")
    found = trace(program, program.row(["1", "0"]))
    rows = [line.split() for line in found.table().splitlines()]
    markup = found._repr_html_()
    assert markup.count("<tr>") == 1 + len(rows)
    shown = read(markup).split()
    assert [cell for row in rows for cell in row] == shown[shown.index("step", 6) :], "as the text has it"


def test_a_card_tells_what_was_measured() -> None:
    card = zoo.card("copy-long")
    text = read(card._repr_html_())
    for row in card.rows:
        assert re.search(rf"\b{row.length}\b", text)
    assert f"{card.parameters:,}" in text
    assert EVIL in read(replace(card, chosen=EVIL)._repr_html_())


def test_a_summary_tells_how_a_training_ended() -> None:
    row = {"seed": 0, "length": 10, "stop": EVIL, "accuracy": 0.5, "samples": 64}
    text = read(
        Summary("copy", "m", "quick", EVIL, "finished", 200, 200, 3.2, evaluation=[row])._repr_html_()
    )
    assert "finished: 200 of 200 gradient steps, 3 s" in text
    assert text.count(EVIL) == 2


def test_result_rows_are_a_list_and_a_table() -> None:
    rows = ResultRows([{"task": EVIL, "accuracy": 0.5}, {"task": "copy", "family": "zeros"}])
    assert rows[0]["accuracy"] == 0.5
    text = read(rows._repr_html_())
    assert EVIL in text
    assert "family" in text


@pytest.mark.parametrize("shown", [looped.zoo, Answers])
def test_what_was_a_table_before_still_is(shown: type) -> None:
    assert "<table" in shown()._repr_html_()
