"""`import looped` is light, and hands out what lies further up when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import looped
import looped.zoo as package


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
    assert printed.startswith("1011+0110 → 10001 (right; ")


def test_what_is_promised_is_there() -> None:
    assert all(hasattr(looped, name) for name in looped.__all__)
