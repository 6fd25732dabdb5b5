"""Streams that are closed or full, a terminal of one column, a backend that nobody knows: no traceback, no silence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = (
    "--recipe quick --seeds 0 --steps 2 --interval 1 "
    "--width 16 --heads 2 --bands 2,2 --layers 1 --max-length 3 --batch 4 "
    "--device cpu --out run"
)


def shell(
    words: str, folder: Path, redirect: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m looped {words} {redirect}"
    package = str(Path(__file__).parents[2])
    return subprocess.run(
        ["sh", "-c", command], cwd=folder, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": package, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("words", ["--help", "tasks", "tasks --json", "status .", "train --help"])
def test_a_closed_stdout_is_no_traceback(words: str, tmp_path: Path) -> None:
    (tmp_path / ".jobs").mkdir()
    done = shell(words, tmp_path, ">&-")
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode in (0, 2)


@pytest.mark.parametrize("redirect", ["2>&-", "2>/dev/full"])
def test_a_training_goes_on_without_stderr(redirect: str, tmp_path: Path) -> None:
    done = shell(f"train copy {TINY} --json", tmp_path, redirect)
    assert (done.returncode, '"finished"' in done.stdout) == (0, True), done
    assert (tmp_path / "run" / "seed-0.safetensors").exists()


def test_a_terminal_of_one_column_gets_its_help(tmp_path: Path) -> None:
    done = shell("train --help", tmp_path, COLUMNS="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--steps" in done.stdout


def test_a_backend_that_nobody_knows_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text("{}")
    done = shell("figure rows.json --out x.svg", tmp_path, MPLBACKEND="nonsense")
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        "looped: matplotlib knows no backend 'nonsense', which the variable MPLBACKEND names; unset it\n"
    )
