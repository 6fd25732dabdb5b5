"""What `docs/compiler.md` says of sizes and rules is so, and its picture can be drawn."""

from __future__ import annotations

import re
from pathlib import Path

from looped.compiler.compiled import compile_program, draw
from looped.compiler.graph import LIMITS
from looped.rasp import programs

GUIDE = (Path(__file__).parents[2] / "docs" / "compiler.md").read_text(encoding="utf-8")


def test_the_table_of_sizes() -> None:
    rows = {}
    for line in GUIDE.partition("\n## Sizes\n")[2].splitlines():
        cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")]
        if cells[0] in programs.PROGRAMS:
            rows[cells[0]] = [int(cell) for cell in cells[1:]]
    assert rows.keys() == programs.PROGRAMS.keys()
    for name, told in rows.items():
        card = compile_program(programs.get(name)).card
        sizes = [card.before, card.layers, card.heads, card.width, card.parameters, card.nonzero]
        assert told == [*sizes, round(card.bits)], name


def test_every_rule_is_told() -> None:
    told = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", GUIDE))
    assert LIMITS.keys() <= told


def test_the_picture(tmp_path: Path) -> None:
    program = programs.get("copy")
    file = tmp_path / "copy.svg"
    draw(program, compile_program(program, longest=64), file)
    assert file.read_text(encoding="utf-8").count("<image") >= 8  # a matrix or a state each
