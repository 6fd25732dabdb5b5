"""The page of first tasks: what it says of Figure 4 is what the stored results give."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from pages import blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "first_tasks.md").read_text(encoding="utf-8")


def test_figure_4_is_drawn_from_the_stored_results(
    cli: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "results" / "archive" / "first-start", tmp_path / "stored")
    (command,) = (
        b.text for b in blocks(PAGE) if b.language == "sh" and b.text.startswith("looped reproduce")
    )
    words = command.replace("results/archive/first-start", "stored").split()
    with contextlib.chdir(tmp_path):
        code, out, err = cli(*words[1:])
    (shown,) = (b.text for b in blocks(PAGE) if b.language == "text" and b.text.startswith("task "))
    assert code == 0
    assert [line for line in shown.splitlines() if line not in out.splitlines()] == []
    assert "24 of 24 runs have results" in out + err
    assert (tmp_path / "stored" / "figures" / "main.svg").exists()
