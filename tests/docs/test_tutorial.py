"""`docs/tutorial.py` runs from start to end, and prints what its page shows of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.slow
def test_the_tutorial_runs() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "tutorial.py")],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    exact = re.findall(
        r"^```text\n(.*?)^```$", (DOCS / "tutorial.md").read_text(encoding="utf-8"), re.M | re.S
    )[0]
    assert done.stdout.startswith(exact)
    assert "finished after" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("step 3: ")


def test_it_is_cells() -> None:
    text = (DOCS / "tutorial.py").read_text(encoding="utf-8")
    assert len(re.findall(r"^# %% \w", text, re.M)) == 7
