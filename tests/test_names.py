"""One class name means one thing in the whole package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


def twice(sources: dict[str, str]) -> dict[str, set[str]]:
    """Class name → files, for every name that several classes have."""
    found: dict[str, list[str]] = defaultdict(list)
    for file, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(file)
    return {name: set(files) for name, files in found.items() if len(files) > 1}


def test_no_class_name_occurs_twice() -> None:
    folder = ROOT / "looped"
    sources = {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in folder.rglob("*.py")}
    assert twice(sources) == {}


def test_a_second_class_of_a_name_is_noticed() -> None:
    assert twice({"a.py": "class Row: ...", "b.py": "class Row: ...", "c.py": "class Other: ..."}) == {
        "Row": {"a.py", "b.py"}
    }
    assert twice({"a.py": "class Row: ...\ndef f():\n    class Row: ..."}) == {"Row": {"a.py"}}
