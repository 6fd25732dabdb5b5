"""`import looped` is light, and hands out what lies further up when it is asked for."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch

import looped
import looped.zoo as package
from looped import tasks
from looped.batches import lay_out


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_and_listing_need_no_torch() -> None:
    run(
        "import sys, looped\n"
        "heavy = {'torch', 'numpy', 'rich', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "first, second = looped.zoo(), looped.zoo()\n"
        "assert first == second and str(first)\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )


def test_the_zoo_is_a_package_and_can_be_called() -> None:
    assert looped.zoo() == package.zoo()
    assert [card.name for card in looped.zoo()] == package.names()


def test_three_lines() -> None:
    printed = run("import looped\nmodel = looped.load('addition-compiled')\nprint(model.solve('1011+0110'))")
    assert printed.startswith("1011+0110 → 10001 = 17 (right; ")


def test_what_is_promised_is_there() -> None:
    assert all(hasattr(looped, name) for name in looped.__all__)


def test_data_without_the_trainer() -> None:
    first, second = itertools.islice(looped.data("multiplication", max_length=4, batch=6), 2)
    again = next(iter(looped.data("multiplication", max_length=4, batch=6)))
    task = tasks.get("multiplication")
    assert first.tokens.shape == first.targets.shape == (6, task.row_size(4))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, second.tokens)
    assert 1 <= int(first.steps.min()) <= int(first.steps.max()) <= 8
    loaded = next(iter(torch.utils.data.DataLoader(looped.data("copy", max_length=3), batch_size=None)))
    assert loaded.tokens.shape[0] == 64


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"max_length": 0}, "length must be between 1 and"),
        ({"max_length": 3, "batch": 0}, "batch must be at least 1"),
        ({"max_length": 3, "family": "odd"}, "no input distribution 'odd'"),
    ],
)
def test_data_that_cannot_be_had(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(looped.InputError, match=sentence):
        looped.data("copy", **words)


@pytest.mark.parametrize("name", ["copy-long", "parity-paper", "copy-compiled"])
def test_a_loaded_model_is_a_module_that_can_be_trained_further(name: str) -> None:
    solver = looped.load(name)
    task, net = solver.task, solver.net
    problems = task.problems([task.parse("10110")])
    batch = lay_out(problems, task.vocab, task.row_size(5))
    out = net(batch.tokens, batch.steps, labels=batch.targets.masked_fill(~batch.loss_mask, -100))
    assert bool(((out.logits.argmax(-1) == batch.targets) | ~batch.loss_mask).all()), "it answers as before"
    before = out.loss.item()
    rate = 1e-2 if name == "parity-paper" else 1e-4
    optimizer = torch.optim.SGD(net.parameters(), lr=rate)
    out.loss.backward()
    optimizer.step()
    after = net(
        batch.tokens, batch.steps, labels=batch.targets.masked_fill(~batch.loss_mask, -100)
    ).loss.item()
    assert after <= before
    assert solver.solve("10110").correct, "the solver keeps the loaded weights"


def test_a_loaded_model_is_measured_as_it_is() -> None:
    rows = looped.evaluate(looped.load("copy-compiled"), lengths=[3, 5], stop=["oracle", "halt"], samples=8)
    assert [(row["length"], row["stop"], row["accuracy"], row["samples"]) for row in rows] == [
        (3, "oracle", 1.0, 8),
        (3, "halt", 1.0, 8),
        (5, "oracle", 1.0, 8),
        (5, "halt", 1.0, 8),
    ]
