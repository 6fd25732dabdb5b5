"""The examples of docs/inside.md with other people's tools print what the page shows; skipped where they are absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pages import blocks

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("tool", ["nnsight", "transformer_lens"])
def test_an_example_prints_what_the_page_shows(tool: str) -> None:
    pytest.importorskip(tool)
    found = blocks((DOCS / "inside.md").read_text(encoding="utf-8"))
    at = next(i for i, block in enumerate(found) if f"inside_{tool}.py" in block.text)
    command = [sys.executable, str(DOCS / f"inside_{tool}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=DOCS.parent, check=True)
    assert done.stdout == found[at + 1].text
