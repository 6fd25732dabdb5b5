"""Random legal programs, as text: every operation of the language, tokens, booleans, indices, one or two loops."""

from __future__ import annotations

import importlib.util
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from looped.rasp.program import Program

HEADER = """from looped.rasp import *
from looped.rasp.program import Loop, Program, State
from looped.vocab import Vocab

VOCAB = Vocab(("0", "1", "2"))
"""
PREDICATES = ("equals", "leq", "lt", "geq", "gt", "lambda k, q: k == q + 1", "lambda k, q: (k + q) % 2 == 0")
TOKENS = (
    "({t} + {t}) % {m}",
    "({t} - {t}) % {m}",
    "({t} * {t}) % {m}",
    "({t} ^ {t}) % {m}",
    "({t} & {t}) % {m}",
    "(2 * {t} + {b}) % {m}",
    "-{t} % {m}",
    "({t} + 3) // {m}",
    "tok_map({t}, lambda v: (v * v + 1) % {m})",
    "seq_map({t}, {t}, lambda x, y: (x + 2 * y) % {m})",
    "where({b}, {t}, {t})",
    "where({b}, {t}, {c})",
    "mask({t}, {b}, {c})",
    "shift_right({t}, {n}, {c})",
    "maximum({t})",
    "minimum({t})",
    "kqv({t}, {t}, {t}, {p}, {c})",
    "kqv({t}, {t}, {t}, {p}, {c}, 'min')",
    "kqv({t}, {t}, {t}, {p}, {c}, 'max')",
    "kqv({i}, {i}, {t}, equals, {c})",
    "kqv({i}, {i}, {t}, lambda k, q: k == q - 1, {c}, 'max')",
    "aggregate(select({t}, {b}, {p}), {t}, {c})",
    "index_select({t}, {i}, {c})",
    "mode({t})",
    "induct({t}, {t}, {n}, {c})",
    "induct_prev({t}, {t}, -{n}, {c})",
)
BOOLS = (
    "{t} == {t}",
    "{t} != {c}",
    "{t} < {t}",
    "{t} >= {c}",
    "~{b}",
    "{b} & {b}",
    "{b} | {b}",
    "{b} ^ {b}",
    "has_seen({t}, {t})",
    "has_seen({t}, full(row, {c}))",
    "seen({b})",
    "shift_right({b}, {n})",
    "{i} == {i}",
    "{i} < {i}",
    "{i} >= {i}",
    "{i} != {c}",
    "where({b}, {b}, {b})",
    "seq_map({i}, {i}, leq)",
)
INDICES = (
    "indices(row)",
    "cumsum({b})",
    "num_prev({t}, {t})",
    "firsts({t}, {t})",
    "lasts({t}, {t}, 0)",
    "first_true({b})",
    "argmax({t})",
    "argmin({t})",
    "sel_width(select({t}, {t}, {p}))",
    "{i} + 1",
    "{i} - 1",
    "where({b}, {i}, {i})",
    "shift_right({i}, {n})",
    "maximum({i})",
    "minimum({i})",
    "index_select({i}, {i})",
    "kqv({t}, {t}, {i}, {p}, {c}, 'max')",
)
FORMS = {"t": TOKENS, "b": BOOLS, "i": INDICES}
FIRST = {"t": "row % {m}", "b": "row == {c}", "i": "firsts(row, full(row, {c}))"}
LAST = {"t": "{x} % 3", "b": "{x}", "i": "where({b}, {x}, indices(row))"}
TIMES = ("n", "n + 1", "2 * n", "3", "n * n - n")


Choose = Callable[[Sequence[Any]], Any]  # one of several


@st.composite
def program_texts(draw: st.DrawFn) -> str:
    """The text of a module with one program, drawn by hypothesis."""
    return program_text(lambda options: draw(st.sampled_from(options)))


def seeded_text(seed: int) -> str:
    """The same from a seed, equal on every machine and every version of Python."""
    generator = random.Random(seed)
    return program_text(lambda options: options[int(generator.random() * len(options))])


def program_text(choose: Choose) -> str:
    """The text of a module with one program."""
    kinds = {f"s{i}": choose("tbi") for i in range(choose((1, 2)))}
    kinds["s0"] = "t"  # what is read out
    names = (f"x{i}" for i in itertools.count())

    def fill(form: str, known: dict[str, str], x: str = "") -> str:
        while "{" in form:
            field = form[form.index("{") + 1]
            if field in "tbi":
                value = choose([n for n, kind in known.items() if kind == field])
            elif field == "x":
                value = x
            elif field == "p":
                value = choose(PREDICATES)
            else:
                value = str(choose((1, 2, 3, 4) if field == "m" else (0, 1, 2)))
            form = form.replace("{" + field + "}", value, 1)
        return form

    def body(known: dict[str, str], size: int) -> list[str]:
        lines = [f"t = {fill('row % {m}', {})}", f"b = {fill('row == {c}', {})}", "i = indices(row)"]
        known |= {"t": "t", "b": "b", "i": "i"}
        for _ in range(size):
            kind = choose("tbi")
            name = next(names)
            lines.append(f"{name} = {fill(choose(FORMS[kind]), known)}")
            known[name] = kind
        return lines

    def result(known: dict[str, str]) -> str:
        parts = []
        for name, kind in kinds.items():
            newest = [n for n, k in known.items() if k == kind][-1]
            parts.append(f'"{name}": {fill(LAST[kind], known, newest)}')
        return "{" + ", ".join(parts) + "}"

    first = ", ".join(f'"{name}": {fill(FIRST[kind], {})}' for name, kind in kinds.items())
    text = [HEADER, "def prepare(row: Seq) -> State:", f"    return {{{first}}}", ""]
    loops = []
    for i in range(choose((1, 2))):
        known = dict(kinds)
        lines = body(known, choose((1, 2, 3, 4)))
        text += [f"def step{i}({', '.join(kinds)}, row: Seq) -> State:"]
        text += [f"    {line}" for line in [*lines, f"return {result(known)}"]] + [""]
        loops.append(f"Loop(step{i}, times=lambda n: {choose(TIMES)})")
    known = {"s0": "t"}
    lines = body(known, choose((0, 1, 2)))
    newest = [n for n, k in known.items() if k == "t"][-1]
    text += ["def readout(s0: Seq, row: Seq) -> Seq:", *(f"    {line}" for line in lines)]
    text += [f"    return ({newest} + s0) % 3", ""]
    text += [
        f"PROGRAM = Program('random', VOCAB, prepare, ({', '.join(loops)},), readout, lambda n: 1, '1 0')"
    ]
    return "\n".join(text) + "\n"


def load(text: str, path: Path) -> Program:
    """The program in a module's text, which is written to a file so that its source can be read."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    program: Program = module.PROGRAM
    return program
