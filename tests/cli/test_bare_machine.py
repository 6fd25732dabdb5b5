"""Training, measuring and running jobs need torch, numpy, safetensors and jaxtyping alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

MISSING = {"rich", "matplotlib", "starlette", "uvicorn"}

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from looped.cli import main

TINY = "--steps 2 --interval 1 --width 16 --heads 2 --bands 2,2 --layers 1 --max-length 3 --batch 4 --device cpu"
for words in (
    "tasks", "sample copy", "trace copy 10", "solve copy 101", "cost copy",
    f"train copy --recipe quick --seeds 0 {TINY} --out runs/a",
    "evaluate runs/a --lengths 2 --samples 2 --device cpu",
    "discover runs/a --lengths 2 --samples 2 --device cpu",
    "bench ladder runs/a --lengths 2 --samples 2 --step-samples 2 --families uniform --device cpu",
    "status runs", "reproduce main --dry-run --tasks copy", "cancel runs --wait 0",
):
    assert main(words.split()) == 0, words
"""


def test_commands_run_where_only_torch_is_installed(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
