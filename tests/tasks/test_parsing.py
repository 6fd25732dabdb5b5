"""What people type: accepted leniently, refused in a sentence, never a crash."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looped import InputError
from looped.tasks import LONGEST, TASKS

ACCEPTED = [
    ("parity", "1101", "1 1 0 1"),
    ("parity", "  1 1 0 1\n", "1 1 0 1"),
    ("parity", "0", "0"),
    ("copy", "01\t10", "0 1 1 0"),
    ("addition", "1011+0110", "1 0 1 1 + 0 1 1 0"),
    ("addition", " 1 0 + 1 1 ", "1 0 + 1 1"),
    ("addition", "1+1", "1 + 1"),
    ("addition", "101 + 11", "1 0 1 + 0 1 1"),
    ("addition", "1+011", "0 0 1 + 0 1 1"),
    ("binary_sum", "1011", "1 0 1 1"),
    ("multiplication", "11*110", "1 1 × 1 1 0"),
    ("multiplication", "11×110", "1 1 × 1 1 0"),
    ("multiplication", "1x0", "1 × 0"),
    ("multiplication", "01 X 1", "0 1 × 1"),
    ("unique_set", "1 4 2 2 4 3", "1 4 2 2 4 3"),
    ("unique_set", "1,4, 2 ,2", "1 4 2 2"),
    ("unique_set", " 49\n0 ", "49 0"),
]

# the task, what was typed, and what the sentence must say
REFUSED = [
    ("parity", "", "empty question"),
    ("parity", "   ", "empty question"),
    ("parity", "10a1", "'a' is no bit"),
    ("parity", "1012", "'2' is no bit"),
    ("parity", "1,0", "',' is no bit"),
    ("parity", "١", "'١' is no bit"),
    ("parity", "-1", "'-' is no bit"),
    ("copy", "0b101", "'b' is no bit"),
    ("copy", "1" * (LONGEST + 1), f"between 1 and {LONGEST}, not {LONGEST + 1}"),
    ("binary_sum", "1 0 x", "'x' is no bit"),
    ("addition", "", "empty question"),
    ("addition", "1011", r"exactly one \+ .* not 0"),
    ("addition", "1+0+1", r"exactly one \+ .* not 2"),
    ("addition", "+", "a number is missing"),
    ("addition", "101+", "a number is missing"),
    ("addition", "+101", "a number is missing"),
    ("addition", "1a+11", "'a' is neither a bit nor the sign"),
    ("addition", "11*11", r"'\*' is neither a bit nor the sign"),
    ("addition", "1" * 5000 + "+" + "1" * 5000, f"between 1 and {LONGEST}"),
    ("multiplication", "", "empty question"),
    ("multiplication", "110", r"exactly one \* .* not 0"),
    ("multiplication", "1*1*1", r"exactly one \* .* not 2"),
    ("multiplication", "*1", "a number is missing"),
    ("multiplication", "111*1", "first factor .* has 1 or 2 digits, not 3"),
    ("multiplication", "1*12", "'2' is neither"),
    ("multiplication", "1+1", r"'\+' is neither"),
    ("unique_set", "", "empty question"),
    ("unique_set", " , ", "empty question"),
    ("unique_set", "1 50", "'50' is not in the alphabet"),
    ("unique_set", "1 -1", "'-1' is not in the alphabet"),
    ("unique_set", "07", "'07' is not in the alphabet"),
    ("unique_set", "1 two", "'two' is not in the alphabet"),
    ("unique_set", "123456", "'123456' is not in the alphabet"),
    ("unique_set", "9" * 5000, "is not in the alphabet"),
    ("unique_set", "1 " * (LONGEST + 1), f"between 1 and {LONGEST}"),
]


@pytest.mark.parametrize(("name", "text", "tokens"), ACCEPTED)
def test_accepted(name: str, text: str, tokens: str) -> None:
    assert TASKS[name].parse(text) == tokens.split()


@pytest.mark.parametrize(("name", "text", "sentence"), REFUSED)
def test_refused_in_one_short_sentence(name: str, text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        TASKS[name].parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", TASKS)
@settings(max_examples=300)
@given(st.one_of(st.text(), st.text(alphabet="01+*x× ,9\n\x00", max_size=12)))
def test_any_text_is_a_question_or_an_input_error(name: str, text: str) -> None:
    task = TASKS[name]
    try:
        question = task.parse(text)
    except InputError:
        return
    task.vocab.encode(question)
    task.vocab.encode(task.solve(question))
    assert task.parse(task.format_question(question)) == question


BIT = st.sampled_from("01")


def numbers(size: int) -> st.SearchStrategy[list[str]]:
    return st.lists(BIT, min_size=size, max_size=size)


QUESTIONS = {
    "parity": st.lists(BIT, min_size=1, max_size=80),
    "copy": st.lists(BIT, min_size=1, max_size=80),
    "binary_sum": st.lists(BIT, min_size=1, max_size=80),
    "addition": st.integers(1, 40).flatmap(
        lambda n: st.tuples(numbers(n), numbers(n)).map(lambda xy: [*xy[0], "+", *xy[1]])
    ),
    "multiplication": st.tuples(st.integers(1, 2).flatmap(numbers), st.integers(1, 40).flatmap(numbers)).map(
        lambda xy: [*xy[0], "×", *xy[1]]
    ),
    "unique_set": st.lists(st.integers(0, 49).map(str), min_size=1, max_size=80),
}


@pytest.mark.parametrize("name", TASKS)
def test_printing_and_parsing_are_inverse(name: str) -> None:
    task = TASKS[name]

    @settings(max_examples=150)
    @given(QUESTIONS[name])
    def holds(question: list[str]) -> None:
        assert task.parse(task.format_question(question)) == question
        assert task.parse(" ".join(question)) == question
        length, variant = task.measure(question)
        assert len(question) <= task.question_size(length)
        assert 0 <= variant < task.variants
        assert len(task.solve(question)) <= task.answer_size(length)

    holds()
