"""`looped check`: line and rule, exit 0 for legal, 1 for illegal, 2 for unreadable."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Cli = Callable[..., tuple[int, str, str]]

LEGAL = "from looped.rasp import shift_right\n\ndef f(x):\n    return shift_right(x, 1)\n"
ILLEGAL = "from looped.rasp import indices\n\ndef f(x):\n    return indices(x) + 2\n"


def test_a_legal_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(LEGAL)
    assert cli("check", path) == (0, f"{path}: nothing illegal in f\n", "")
    assert json.loads(cli("check", path, "--json")[1]) == {
        "file": str(path),
        "legal": True,
        "programs": ["f"],
        "violations": [],
    }


def test_an_illegal_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ILLEGAL)
    code, out, err = cli("check", path)
    assert (code, err) == (1, "")
    first, last = out.splitlines()
    assert first.startswith(f"{path}:4: index-arithmetic: an index + 2")
    assert last == f"{path}: 1 broken rule in f"
    fact = json.loads(cli("check", path, "--json")[1])
    assert not fact["legal"]
    assert [(v["rule"], v["line"]) for v in fact["violations"]] == [("index-arithmetic", 4)]


def test_a_file_that_cannot_be_read(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("check", tmp_path / "nothing.py")
    assert (code, out) == (2, "")
    assert "No such file" in err
    path = tmp_path / "mine.py"
    path.write_text("def f(x:\n")
    code, out, err = cli("check", path)
    assert (code, out) == (2, "")
    assert f"{path}:1 is not valid Python" in err
