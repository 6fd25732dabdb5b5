"""What the fuzzer has found as a table, and a minute of it where atheris is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from readers import Judge, any_digest

from looped import checkpoints

# Inputs that a reader once met with something else than one printable sentence: the reader, what is replaced in the
# first good file that it has, and by what
FOUND: dict[str, tuple[str, bytes, bytes]] = {
    "a type of tensor with control characters": (
        "seed.safetensors",
        b'"dtype": "F32"',
        rb'"dtype": "\u0000"',
    ),
    "a field with control characters": ("sweep.json", b'{"steps": 5}', rb'{"\u0000": {"a": {}}}'),
    "an axis with control characters": ("sweep.json", b'{"lr": [0.1, 0.2]}', rb'{"\u0007": 3}'),
}
LEAST_COVERAGE = 1500  # edges of the package; the seeds alone reach some 1,200


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    made = Judge(tmp_path)
    monkeypatch.setattr(checkpoints, "digest", any_digest)
    yield made
    made.close()


def test_the_seeds_are_good_files(judge: Judge) -> None:
    for number, (name, (_, files)) in enumerate(judge.readers.items()):
        for data in files[:1]:
            assert judge.judge(bytes([number]) + data) == "read", name


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_is_refused_in_a_sentence(name: str, judge: Judge) -> None:
    reader, old, new = FOUND[name]
    good = judge.readers[reader][1][0]
    assert old in good
    number = list(judge.readers).index(reader)
    assert judge.judge(bytes([number]) + good.replace(old, new, 1)) == "refused"


@pytest.mark.slow
def test_a_minute_of_fuzzing_finds_nothing(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install 'looped[fuzz]'")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "tests/fuzz/readers.py"), str(tmp_path), "-max_total_time=60"],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    found = {path.name: path.read_text() for path in (tmp_path / "findings").glob("*.txt")}
    assert not found
    assert done.returncode == 0, done.stderr[-3000:]
    executions, coverage = map(int, re.findall(r"#(\d+)\s+DONE\s+cov: (\d+)", done.stderr)[0])
    print(f"{executions} executions, {coverage} edges")
    assert coverage >= LEAST_COVERAGE
