"""The fifteen tasks of the Chomsky suite: samplers against oracles, questions, and one gradient step of each recipe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import looped
from looped import InputError, tasks
from looped.tasks import Problems, Task
from looped.tasks.suites.chomsky import TASKS, ChomskyTask
from looped.tasks.suites.chomsky.context_sensitive import digits_used, not_zero
from looped.tasks.suites.chomsky.context_sensitive import product as multiplied

Agree = Callable[[Task, Problems, int], list[list[str]]]
Cli = Callable[..., tuple[int, str, str]]
DRAWN = [(name, family) for name, task in TASKS.items() for family in task.families]
LONGEST_TRIED = {2: 9, 3: 8, 4: 6, 5: 6, 8: 5, 9: 5, 11: 5}  # symbols → length up to which all rows are tried

ANSWERS = [
    ("even_pairs", "0", "0"),
    ("even_pairs", "0111", "1"),
    ("even_pairs", "0110", "0"),
    ("modular_arithmetic", "4", "4"),
    ("modular_arithmetic", "1+2*3", "2"),
    ("modular_arithmetic", "1 - 1 - 1", "4"),
    ("modular_arithmetic", "0*1+4*3-2", "0"),
    ("modular_arithmetic", "2-3*3*4", "1"),
    ("parity_check", "1101", "1"),
    ("cycle_navigation", "RLSLL", "3"),
    ("cycle_navigation", "RRRL", "2"),
    ("stack_manipulation", "0 1 1 0 PUSH 1 POP POP", "1 1 0"),
    ("stack_manipulation", "1 1 0 POP POP POP", ""),
    ("stack_manipulation", "1 pop pop push0", "0"),
    ("reverse_string", "0111", "1110"),
    ("modular_arithmetic_brackets", "((1-4)+(-2))", "0"),
    ("modular_arithmetic_brackets", "(1-(2-(-3-4)))", "2"),
    ("modular_arithmetic_brackets", "(1--2)", "3"),
    ("modular_arithmetic_brackets", "-2", "3"),
    ("solve_equation", "((1-x)+(-2))=0", "4"),
    ("solve_equation", "x=3", "3"),
    ("solve_equation", "-x=3", "2"),
    ("solve_equation", "00", "0"),
    ("duplicate_string", "01", "0101"),
    ("missing_duplicate", "01100_10", "1"),
    ("missing_duplicate", "1011_1-", "0"),
    ("missing_duplicate", "1", "1"),
    ("odds_first", "011010", "100011"),
    ("odds_first", "011", "101"),
    ("binary_addition", "01001+011", "00011"),
    ("binary_addition", "001+01101", "01011"),
    ("binary_addition", "000+00", "0"),
    ("binary_addition", "01", "01"),
    ("binary_addition", "10", "1"),
    ("binary_multiplication", "01001*011", "0011011"),
    ("binary_multiplication", "001*01101", "0001101"),
    ("binary_multiplication", "11", "0"),
    ("binary_multiplication", "1", ""),
    ("square_root", "100101", "110"),
    ("square_root", "111", "10"),
    ("bucket_sort", "421302214", "011222344"),
]

REFUSED = [
    ("even_pairs", ""),
    ("even_pairs", "012"),
    ("modular_arithmetic", "1+"),
    ("modular_arithmetic", "12"),
    ("modular_arithmetic", "1++"),
    ("cycle_navigation", "R0L"),
    ("stack_manipulation", "0 POP 1"),
    ("stack_manipulation", "PUSH2"),
    *[
        ("modular_arithmetic_brackets", bad)
        for bad in ("1+2", "(1+2", "1)", "()", "(1+2+3)", "--1", "-(1)", "(+1)", "(1(2))", ")(")
    ],
    *[("solve_equation", bad) for bad in ("x", "1", "01", "1=1", "(x+x)=1", "x=", "x=x", "(x=1)=1", "x+1=2")],
    *[("missing_duplicate", bad) for bad in ("0", "0101", "_", "_1_1", "0_1-", "1_1", "01_0", "-0_")],
    ("binary_addition", "1+"),
    ("binary_addition", "111"),
    ("binary_addition", "1+1+1"),
    ("binary_multiplication", "+1*1"),
    ("bucket_sort", "5"),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(name: str, lengths: Tensor, family: str = "uniform", seed: int = 0) -> Problems:
    return TASKS[name].sample(lengths, generator(seed), max_length=int(lengths.max()), family=family)


def legal(task: Task, question: list[str]) -> bool:
    try:
        task.measure(question)
    except InputError:
        return False
    return True


@pytest.mark.parametrize(("name", "question", "answer"), ANSWERS)
def test_answers_checked_by_hand(name: str, question: str, answer: str) -> None:
    task = TASKS[name]
    assert task.format_answer(task.solve(task.parse(question))) == answer


@pytest.mark.parametrize(("name", "question"), REFUSED)
def test_what_is_no_question_is_refused_in_a_sentence(name: str, question: str) -> None:
    with pytest.raises(InputError, match="questions look like "):
        TASKS[name].parse(question)


@pytest.mark.parametrize("name", TASKS)
def test_the_answers_to_every_short_question(name: str) -> None:
    """Every row of symbols up to a length that is a question: tensors and oracle agree, digit for digit."""
    task = TASKS[name]
    assert isinstance(task, ChomskyTask)
    symbols = task.vocab.symbols
    for n in range(1, LONGEST_TRIED[len(symbols)] + 1):
        questions = [list(row) for row in product(symbols, repeat=n) if legal(task, list(row))]
        if not questions:
            assert name == "modular_arithmetic"
            assert n % 2 == 0
            continue
        expected = task.problems(questions)
        answer, sizes = task.answers(expected.question, expected.question_length)
        assert torch.equal(sizes, expected.answer_length)
        for i in range(len(questions)):
            assert answer[i, : sizes[i]].tolist() == expected.answer[i, : sizes[i]].tolist(), questions[i]


@pytest.mark.parametrize(("name", "family"), DRAWN)
def test_every_distribution_agrees_with_the_oracle(name: str, family: str, agree: Agree) -> None:
    lengths = torch.arange(1, 65).repeat(2)
    agree(TASKS[name], sample(name, lengths, family), 64)


@pytest.mark.parametrize("name", TASKS)
def test_lengths_to_500(name: str, agree: Agree) -> None:
    lengths = torch.cat([torch.randint(41, 501, (20,), generator=generator(1)), torch.tensor([1, 499, 500])])
    agree(TASKS[name], sample(name, lengths), 500)
    agree(TASKS[name], TASKS[name].sample(torch.tensor([1, 2, 5]), generator(), max_length=12), 12)


@pytest.mark.parametrize("name", TASKS)
def test_the_generator_alone_decides(name: str) -> None:
    lengths = torch.arange(1, 41)
    first, again, other = (sample(name, lengths, seed=seed) for seed in (7, 7, 8))
    assert all(torch.equal(getattr(first, field), getattr(again, field)) for field in vars(first))
    assert not torch.equal(first.question, other.question)


@pytest.mark.parametrize("name", TASKS)
def test_nothing_is_asked_of_the_device(name: str) -> None:
    with FakeTensorMode():
        for family in TASKS[name].families:
            problems = TASKS[name].sample(
                torch.full((16,), 5), torch.Generator(), max_length=9, family=family
            )
            assert problems.question.shape == (16, 9)


@pytest.mark.parametrize("name", TASKS)
def test_names_examples_and_unknown_distributions(name: str) -> None:
    task = TASKS[name]
    assert tasks.get(name.replace("_", "-")) is task
    assert (task.name, task.paper.max_length) == (name, 40)
    assert task.format_question(task.parse(task.example)) == task.example
    with pytest.raises(InputError, match=f"^{name} has no input distribution 'gauss'; it has uniform, "):
        task.check_family("gauss")


# --- what is drawn ---------------------------------------------------------------------------------------------
def test_numbers_that_are_not_zero_are_equally_likely() -> None:
    lengths = torch.full((70_000,), 3)
    bits = torch.randint(0, 2, (70_000, 3), generator=generator())
    counts = Counter(map(tuple, not_zero(bits, lengths, generator(1)).tolist()))
    assert len(counts) == 7
    assert all(9_600 < count < 10_400 for count in counts.values())


def test_the_sign_stands_anywhere() -> None:
    questions = sample("binary_addition", torch.full((8_000,), 10)).question
    places = Counter((questions == 2).long().argmax(1).tolist())
    assert sorted(places) == list(range(1, 9))
    assert all(850 < count < 1150 for count in places.values())


def test_an_expression_is_split_anywhere() -> None:
    task = TASKS["modular_arithmetic_brackets"]
    rows = sample("modular_arithmetic_brackets", torch.full((8_000,), 7)).question.tolist()
    shapes = Counter(
        "".join("d" if token.isdigit() else token for token in task.vocab.decode(row)) for row in rows
    )
    expected = {
        f"({left}{sign}{right})"
        for sign in "+-"
        for left, right in [("d", "(d)"), ("-d", "-d"), ("(d)", "d")]
    }
    assert set(shapes) == expected
    assert all(1_200 < count < 1_470 for count in shapes.values())


def test_rare_inputs() -> None:
    deep = sample("modular_arithmetic_brackets", torch.full((50,), 41), "deep")
    task = TASKS["modular_arithmetic_brackets"]
    assert bool(((deep.question == task.vocab.id("(")).sum(1) == 10).all()), "as deep as 41 tokens allow"
    pops = sample("stack_manipulation", torch.full((200,), 20), "pops")
    assert set(pops.question.unique().tolist()) == {0, 1, 2}
    products = sample("modular_arithmetic", torch.full((99,), 9), "products").question
    assert set(products[:, ::2].unique().tolist()) == {1, 2, 3, 4}
    carried = sample("binary_addition", torch.full((200,), 30), "carry")
    assert bool((carried.answer_length > 15).all()), "the carry travels to the top of the longer number"
    roots = sample("square_root", torch.full((400,), 12), "squares")
    numbers = {int("".join(map(str, row)), 2) for row in roots.question.tolist()}
    assert numbers <= {k * k - less for k in range(1, 64) for less in (0, 1)}
    assert {k * k for k in range(1, 20)} & numbers
    assert {k * k - 1 for k in range(1, 20)} & numbers


def test_products_and_used_digits() -> None:
    rows = torch.tensor(list(product((0, 1), repeat=8)))
    first, second = rows[:, :4], rows[:, 4:]
    weights = 2 ** torch.arange(8)
    value = (first * weights[:4]).sum(1) * (second * weights[:4]).sum(1)
    found = multiplied(first, second)
    assert torch.equal((found * weights).sum(1), value)
    assert digits_used(found).tolist() == [max(1, int(v).bit_length()) for v in value]


# --- by name, everywhere ---------------------------------------------------------------------------------------
def test_the_list_of_the_suite(cli: Cli) -> None:
    code, out, err = cli("tasks", "--suite", "chomsky", "--json")
    facts = [json.loads(line) for line in out.splitlines()]
    assert (code, err, [fact["task"] for fact in facts]) == (0, "", list(TASKS))
    assert Counter(fact["level"] for fact in facts) == {
        "regular": 4,
        "context-free": 4,
        "context-sensitive": 7,
    }
    assert not any(fact["summary"].endswith(".") for fact in facts)
    code, _, err = cli("tasks", "--suite", "nobody's")
    assert (code, err.strip()) == (2, 'looped: no suite is named "nobody\'s"; there is chomsky')


def test_sample_takes_a_task_of_the_suite_by_name(cli: Cli) -> None:
    code, out, _ = cli("sample", "modular-arithmetic-brackets", "--length", "5", "--count", "3", "--json")
    assert code == 0
    assert [json.loads(line)["length"] for line in out.splitlines()] == [5, 5, 5]
    assert cli("sample", "even_pair")[2].endswith("(did you mean even_pairs?)\n")


@pytest.mark.parametrize("recipe", ["quick", "fast", "long"])
@pytest.mark.parametrize("name", TASKS)
def test_every_recipe_starts(name: str, recipe: str, tmp_path: Path) -> None:
    """One gradient step in small, then an answer from what it wrote."""
    small = {"model": {"width": 16, "heads": 4, "layers": 1}, "max_length": 5, "batch": 8}
    shape = {} if recipe == "quick" else small
    run = looped.train(name, recipe=recipe, steps=1, interval=1, out=tmp_path / "run", **shape)
    rows = looped.evaluate(run, lengths=[6], samples=4)
    assert [row["task"] for row in rows] == [name]
    task = TASKS[name]
    answer = looped.load(tmp_path / "run").solve(task.example)
    assert answer.expected == task.format_answer(task.solve(task.parse(task.example)))
